//! Checks beyond the compilers': completeness of the compared items, and tables that stand for macros
//! and functions of the kernels.

use super::*;
use crate::device::cuda::attention::{HEAD_DIMS, together_warps};
use crate::device::cuda::weights::unit_bytes;
use crate::device::cuda::wide::BLOCKS;
use crate::device::cuda::{delta_net, mamba};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use worker_orcd_kernels::TensorType;

/// All files of a folder and its subfolders by path, without comments and without tests.
fn files(folder: &str) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut files, mut folders) = (BTreeMap::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("tests.rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
                let text = fs::read_to_string(&path).expect("a source");
                let lines = text.lines().map(|line| line.split("//").next().unwrap());
                let text = lines.collect::<Vec<_>>().join("\n");
                files.insert(name.to_owned(), text);
            }
        }
    }
    files
}

fn kernels() -> BTreeMap<String, String> {
    files("../kernels/cuda")
}

/// Texts between each `mark` and the next of `ends`.
fn behind<'a>(text: &'a str, mark: &str, ends: &[char]) -> Vec<&'a str> {
    let rests = text.split(mark).skip(1);
    rests
        .map(|rest| rest.split(ends).next().unwrap().trim())
        .collect()
}

/// Names of the fields that a struct declares, in order. Functions of a struct come last.
fn declared(text: &str, name: &str) -> Vec<String> {
    let body = behind(text, &format!("struct {name} {{"), &['}']);
    let body = body.first().unwrap_or_else(|| panic!("no struct {name}"));
    let fields = body.split("DEVICE").next().unwrap().split([';', ',']);
    let name = |field: &str| {
        let bare = field.split('[').next().unwrap().trim();
        let word = bare.rsplit([' ', '*', '\n']).next().unwrap();
        (!word.is_empty()).then(|| word.to_owned())
    };
    fields.filter_map(name).collect()
}

#[test]
fn every_struct_is_compared_and_every_field_of_it() {
    let here: BTreeSet<(String, String)> = files("src/device/cuda")
        .values()
        .flat_map(|text| {
            let heads = text.lines().filter_map(|line| line.split_once("struct "));
            let heads = heads.filter_map(|(_, rest)| rest.split_once(" in \""));
            heads.map(|(name, file)| (file.split('"').next().unwrap().to_owned(), name.to_owned()))
        })
        .collect();
    let mut there = BTreeSet::new();
    for (file, text) in kernels() {
        for layout in behind(&text, "\nLAYOUT(", &['\0']) {
            let (name, rest) = layout.split_once(',').expect("a name");
            let fields = rest.split("))").next().unwrap();
            let fields = behind(fields, "AT(", &[',']);
            assert_eq!(declared(&text, name), fields, "{file}: {name}");
            there.insert((file.clone(), name.to_owned()));
        }
    }
    assert_eq!(here, there);
    let arguments = kernels().into_values().flat_map(|text| {
        let found = behind(&text, "const __grid_constant__ ", &[' ', ')']);
        found.into_iter().map(str::to_owned).collect::<Vec<_>>()
    });
    for name in arguments {
        assert!(there.iter().any(|(_, other)| *other == name), "{name}");
    }
}

#[test]
fn no_struct_of_the_device_is_laid_out_without_a_word_to_the_kernels() {
    for (file, text) in files("src/device/cuda") {
        let count = text.matches("#[repr(C)]").count();
        assert_eq!(count, usize::from(file == "headers.rs"), "{file}");
    }
}

#[test]
fn kernels_are_compiled_for_what_the_host_asks_for() {
    let kernels = kernels();
    let stands = |file: &str, text: &str| assert!(kernels[file].contains(text), "{file}: {text}");
    for head_dim in HEAD_DIMS {
        let warps = together_warps(head_dim);
        stands("attention.cu", &format!("ATTENTION({head_dim}, {warps})"));
    }
    for head_dim in delta_net::HEAD_DIMS {
        stands("delta_net.cu", &format!("DELTA_NET({head_dim})"));
        stands("delta_prompt.cu", &format!("DELTA_PROMPT({head_dim})"));
    }
    for state in mamba::STATES {
        stands("mamba.cu", &format!("MAMBA_SCAN({state})"));
    }
    for block in BLOCKS {
        let (groups, rows, together) = (block.warpgroups, block.rows, block.together);
        let (of_floats, of_quantized) = (TensorType::F16, TensorType::Q8_0);
        let kind = match block.multiplies(of_floats) {
            true => "wide",
            false => "warps",
        };
        let ty = match block.multiplies(of_quantized) {
            true => "T",
            false => of_floats.name(),
        };
        let text = format!("MATMUL_WIDE_OF({kind}, {ty}, {groups}, {rows}, {together})");
        stands("matmul_wide.cu", &text);
    }
    for ty in TensorType::ALL {
        let (name, number) = (ty.name(), ty as u32);
        stands("weights.cuh", &format!(" {name} = {number}"));
        match ty {
            TensorType::F16 | TensorType::BF16 => {
                stands("weights.cuh", &format!(": {};", unit_bytes(ty)))
            }
            _ => stands(
                "weights.cuh",
                &format!("type == {name} ? {}", unit_bytes(ty)),
            ),
        }
    }
}

#[test]
fn every_kernel_that_the_host_names_is_there() {
    let kernels: String = kernels().into_values().collect();
    let mut names = 0;
    for text in files("src/device/cuda").into_values() {
        for name in behind(&text, "kernel(\"", &['"']) {
            let stands = [" ", "\n"].map(|before| format!("{before}{name}(const __grid"));
            assert!(stands.iter().any(|it| kernels.contains(it)), "{name}");
            names += 1;
        }
        for stem in behind(&text, "kernel(&format!(\"", &['{', '"']) {
            assert!(kernels.contains(&format!("{stem}##")), "{stem}");
        }
    }
    assert!(names > 10, "{names}");
}

#[test]
fn a_number_is_read_where_its_name_stands_alone() {
    let header = "constexpr int MAX_ROWS = 7;  // ROWS\nconstexpr int ROWS = 40, ODD = 0xFFu;\n";
    assert_eq!(read_constant(header, "ROWS"), 40);
    assert_eq!(read_constant(header, "MAX_ROWS"), 7);
    assert_eq!(read_constant(header, "ODD"), 255);
}

#[test]
fn a_layout_that_says_anything_else_is_refused() {
    let header =
        "LAYOUT(RowArgs, 1, AT(x, 0))\nLAYOUT(Row, 16, AT(token, 0)\n       AT(table, 8))\n";
    let differs = |size, fields: &[(&str, usize)]| {
        std::panic::catch_unwind(|| check_layout(header, "Row", size, fields)).is_err()
    };
    assert!(!differs(16, &[("token", 0), ("table", 8)]));
    assert!(differs(24, &[("token", 0), ("table", 8)]));
    assert!(differs(16, &[("token", 0), ("table", 4)]));
    assert!(differs(16, &[("token", 0), ("tables", 8)]));
    assert!(differs(16, &[("token", 0)]));
    assert!(differs(16, &[("token", 0), ("table", 8), ("unused", 12)]));
}
