//! Tables of models, tensor types, settings and fields: the pages agree with the code.
//!
//! With [`WRITE`], which `cargo xtask tables` sets, the tests write the tables instead.

mod fields;

use crate::repository::{read, rust_sources};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use worker_orcd::config::options::{self, Syntax};
use worker_orcd_gpu::device::cuda;
use worker_orcd_gpu::model::catalogue::{REFUSED, SERVED, Served};
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::cpu::{PackedShape, ROWS};
use worker_orcd_tests::model::repository_root;

const WRITE: &str = "ORCD_WRITE_TABLES";

/// Test that compares logits with llama.cpp's, for the models of each row and for each tensor type.
const LOGITS: &str = "every_architecture_and_tensor_type_agrees_with_llama_cpp";

/// Models of that test.
const TINY_MODELS: &str = "tests/oracle/tiny_models.py";

#[test]
fn the_page_on_settings_shows_every_option() {
    let mut table = String::from("| setting | default | description |\n|---|---|---|\n");
    for spec in options::all() {
        let value = match spec.syntax {
            Syntax::Value(name) | Syntax::List(name) => format!(" {name}"),
            Syntax::Switch => String::new(),
        };
        let default = spec.default.map(|it| format!("`{it}`")).unwrap_or_default();
        let help = spec.help.replace('<', "&lt;").replace('|', "\\|");
        let name = spec.name;
        writeln!(table, "| `--{name}{value}` | {default} | {help} |")
            .expect("a string takes everything");
    }
    is_in("docs/guide/settings.md", "settings", &table);
}

#[test]
fn the_page_on_models_shows_what_is_served_and_what_others_need() {
    is_in("docs/guide/models.md", "models", &served());
    let mut table = String::from("| architecture | what it needs |\n|---|---|\n");
    for kind in REFUSED {
        let names: Vec<_> = kind.names.iter().map(|name| format!("`{name}`")).collect();
        let (names, needs) = (names.join(", "), kind.needs);
        writeln!(table, "| {names} | {needs} |").expect("a string takes everything");
    }
    is_in("docs/guide/models.md", "refused", &table);
}

#[test]
fn the_page_on_tensor_types_shows_what_each_takes() {
    let mut types = TensorType::ALL;
    let in_file = |ty: TensorType| (ty.block_bytes() * 8) as f64 / ty.block_elements() as f64;
    types.sort_by(|one, other| in_file(*other).total_cmp(&in_file(*one)));
    let mut table = String::from("| Type | File | CPU | CUDA |\n|---|---|---|---|\n");
    for ty in types {
        let (file, cpu, cuda) = (in_file(ty), on_cpu(ty), cuda::bits_a_weight(ty));
        writeln!(
            table,
            "| {} | {file:.2} | {cpu:.2} | {cuda:.2} |",
            ty.name()
        )
        .expect("a string takes everything");
    }
    is_in("docs/guide/tensor-types.md", "types", &table);
}

#[test]
fn each_row_names_tests_that_are_there() {
    let sources = rust_sources("tests/tests");
    let declared = format!("fn {LOGITS}()");
    assert!(sources.iter().any(|(_, text)| text.contains(&declared)));
    let models = read(Path::new(TINY_MODELS));
    for row in SERVED {
        let architecture = row.architecture.name();
        for model in row.held_by {
            let declared = format!("\"{model}\", \"{architecture}\"");
            assert!(
                models.contains(&declared),
                "{TINY_MODELS} has no {declared}"
            );
        }
    }
    for ty in TensorType::ALL {
        let named = format!("\"{}\"", ty.name());
        assert!(models.contains(&named), "{TINY_MODELS} has no {named}");
    }
}

fn served() -> String {
    let mut table =
        String::from("| architecture | what is served | devices | held by |\n|---|---|---|---|\n");
    for row in SERVED {
        let Served { models, .. } = row;
        let held_by: Vec<_> = row.held_by.iter().map(|name| format!("`{name}`")).collect();
        let (name, held_by) = (name_of(row), held_by.join(", "));
        let devices = if row.on_cuda { "CPU, CUDA" } else { "CPU" };
        writeln!(
            table,
            "| {name} | {models} | {devices} | `{LOGITS}`: {held_by} |"
        )
        .expect("a string takes everything");
    }
    table
}

/// Name of a row, with the key that distinguishes files of one architecture.
fn name_of(row: &Served) -> String {
    let name = row.architecture.name();
    let same = SERVED
        .iter()
        .filter(|it| it.architecture == row.architecture);
    match row.with_key.filter(|_| same.count() > 1) {
        Some(key) => format!("`{name}` with `{name}.{key}`"),
        None => format!("`{name}`"),
    }
}

/// Bits per weight in a row of the longest block.
fn on_cpu(ty: TensorType) -> f64 {
    const COLS: usize = 256;
    let shape = PackedShape {
        ty,
        rows: ROWS,
        cols: COLS,
    };
    (shape.bytes() * 8) as f64 / (ROWS * COLS) as f64
}

/// Asserts that the page has the table between its marks, or writes it.
fn is_in(page: &str, name: &str, table: &str) {
    let path = Path::new(page);
    let text = read(path);
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- /{name} -->"));
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{page} has no {begin}"));
    let (mark, rest) = rest.split_once("-->\n").expect("a mark ends");
    let (found, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("{page} has no {end}"));
    let table = format!("\n{table}\n");
    if std::env::var_os(WRITE).is_some() {
        let whole = format!("{before}{begin}{mark}-->\n{table}{end}{after}");
        fs::write(repository_root().join(path), whole).expect("the checkout can be written");
    } else {
        assert_eq!(found, table, "{page}: run `cargo xtask tables`");
    }
}
