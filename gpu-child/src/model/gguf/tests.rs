use super::*;
use crate::model::gguf_builder::{GgufBuilder, Meta};

fn small() -> GgufBuilder {
    GgufBuilder::new()
        .meta("general.architecture", "llama")
        .meta("a.number", 7_u32)
        .meta("a.list", Meta::Strings(vec!["x".into(), "yy".into()]))
        .meta("a.flag", true)
        .tensor_f32("t", &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
        .tensor("q", TensorType::Q8_0, &[32, 2], vec![7; 68])
}

fn refusal(bytes: &[u8]) -> String {
    parse(bytes)
        .map(drop)
        .expect_err("hostile bytes are refused")
        .to_string()
}

#[test]
fn what_was_written_is_read() {
    let bytes = small().build();
    let header = parse(&bytes).unwrap();
    assert_eq!(header.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(header.u32("a.number").unwrap(), Some(7));
    assert_eq!(header.strings("a.list").unwrap(), Some(vec!["x", "yy"]));
    assert_eq!(header.bool("a.flag").unwrap(), Some(true));
    assert_eq!(header.u32("absent").unwrap(), None);
    let tensor = header.tensor("t").unwrap();
    assert_eq!((tensor.rows, tensor.cols), (3, 2));
    assert_eq!(tensor.to_f32().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let quantized = header.tensor("q").unwrap();
    assert_eq!(
        (quantized.ty, quantized.row_bytes()),
        (TensorType::Q8_0, 34)
    );
}

#[test]
fn ranges_of_rows_and_elements_stay_inside() {
    let bytes = small().tensor_f32("v", &[4], &[9.0, 8.0, 7.0, 6.0]).build();
    let header = parse(&bytes).unwrap();
    let matrix = header.tensor("t").unwrap();
    assert_eq!(
        matrix.row_range(1, 2).unwrap().to_f32().unwrap(),
        [2.0, 3.0, 4.0, 5.0]
    );
    assert!(matrix.row_range(2, 2).is_none());
    assert!(matrix.row_range(0, 0).is_none());
    assert!(matrix.row_range(usize::MAX, 2).is_none());
    let vector = header.tensor("v").unwrap();
    assert_eq!(
        vector.element_range(1, 2).unwrap().to_f32().unwrap(),
        [8.0, 7.0]
    );
    assert!(vector.element_range(3, 2).is_none());
    assert!(matrix.element_range(0, 1).is_none());
}

#[test]
fn rows_of_each_part_are_found_one_run_after_another() {
    let values: Vec<f32> = (0..12).map(|n| n as f32).collect();
    let bytes = small().tensor_f32("m", &[2, 3, 2], &values).build();
    let header = parse(&bytes).unwrap();
    let whole = header.tensor("m").unwrap();
    let last = whole.rows_of_each(2, 1, 2).unwrap();
    assert_eq!((last.rows, last.row_bytes(), last.bytes()), (4, 8, 32));
    let rows = [0, 1, 2, 3].map(|row| last.row_range(row, 1).unwrap().to_f32().unwrap()[0]);
    assert_eq!(rows, [2.0, 4.0, 8.0, 10.0]);
    assert_eq!(
        last.row_range(2, 2).unwrap().to_f32().unwrap(),
        [8.0, 9.0, 10.0, 11.0]
    );
    assert!(last.row_range(1, 2).is_none(), "of two runs");
    assert!(last.to_f32().is_none());
    for (parts, start, len) in [
        (2, 2, 2),
        (4, 0, 1),
        (0, 0, 1),
        (2, 0, 0),
        (2, usize::MAX, 2),
    ] {
        assert!(
            whole.rows_of_each(parts, start, len).is_none(),
            "{parts} {start} {len}"
        );
    }
    assert!(last.rows_of_each(2, 0, 1).is_none(), "of a part");
}

#[test]
fn every_truncation_is_refused() {
    let bytes = small().build();
    for end in 0..bytes.len() {
        assert!(
            parse(&bytes[..end]).is_err(),
            "{end} of {} bytes were accepted",
            bytes.len()
        );
    }
    parse(&bytes).unwrap();
}

#[test]
fn no_single_changed_byte_causes_a_panic() {
    let bytes = small().build();
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut hostile = bytes.clone();
            hostile[at] ^= change;
            if let Ok(header) = parse(&hostile) {
                let read = header
                    .tensors()
                    .iter()
                    .filter_map(|t| header.tensor(t.name));
                assert!(read.map(|view| view.data.len()).sum::<usize>() <= hostile.len());
            }
        }
    }
}

#[test]
fn magic_and_version_are_checked() {
    assert!(refusal(b"GGML\x03\0\0\0").contains("not a GGUF file"));
    assert!(refusal(&small().version(2).build()).contains("version 2 is not supported"));
    assert!(refusal(&small().version(0x0300_0000).build()).contains("big-endian"));
}

#[test]
fn huge_counts_are_refused_before_anything_is_allocated() {
    for at in [8, 16] {
        let mut bytes = small().build();
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(refusal(&bytes).contains("entries are announced"));
    }
    let mut bytes = GgufBuilder::new().meta("k", Meta::F32s(vec![1.0])).build();
    let length = bytes.len() - 4 - 8;
    bytes[length..length + 8].copy_from_slice(&(u64::MAX / 4 + 1).to_le_bytes());
    assert!(refusal(&bytes).starts_with("k: "));
}

#[test]
fn arrays_are_nested_only_so_deep() {
    let nested = |levels: u32| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([0_u64, 1].map(u64::to_le_bytes).concat());
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, b'k', 9, 0, 0, 0]);
        for _ in 1..levels {
            bytes.extend([9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    parse(&nested(3)).unwrap();
    assert!(refusal(&nested(4)).contains("nested more than 3 deep"));
    assert!(refusal(&nested(100_000)).contains("nested more than 3 deep"));
}

#[test]
fn duplicates_are_refused() {
    let twice = small().push_tensor("t", 0, &[1], vec![0; 4]);
    assert!(refusal(&twice.build()).contains("tensor t occurs twice"));
    // Two keys of one name: written by hand, because the builder replaces.
    let key = |name: &[u8]| {
        [
            &(name.len() as u64).to_le_bytes()[..],
            name,
            &[7, 0, 0, 0, 1],
        ]
        .concat()
    };
    let twice = [
        b"GGUF\x03\0\0\0",
        &[0; 8][..],
        &2_u64.to_le_bytes(),
        &key(b"k"),
        &key(b"k"),
    ]
    .concat();
    assert!(refusal(&twice).contains("key k occurs twice"));
}

#[test]
fn alignment_must_be_a_power_of_two() {
    for alignment in [0, 3, 48] {
        let message = refusal(&small().meta("general.alignment", alignment).build());
        assert!(
            message.contains(&format!("general.alignment is {alignment}")),
            "{message}"
        );
    }
    let message = refusal(&small().meta("general.alignment", "32").build());
    assert!(message.contains("an integer expected"), "{message}");
    let huge = small()
        .meta("general.alignment", Meta::U64(1 << 63))
        .build();
    assert!(refusal(&huge).contains("reach past"));
}

#[test]
fn tensor_shapes_are_checked() {
    let with =
        |ty: u32, dims: &[u64]| refusal(&small().push_tensor("bad", ty, dims, vec![0; 64]).build());
    assert!(with(0, &[]).contains("tensor bad: 0 dimensions"));
    assert!(with(0, &[1; 5]).contains("tensor bad: 5 dimensions"));
    assert!(with(0, &[4, 0]).contains("empty or overflow"));
    assert!(with(0, &[u64::MAX, 4]).contains("empty or overflow"));
    assert!(with(0, &[1 << 32, 1 << 32]).contains("empty or overflow"));
    assert!(with(0, &[1 << 62]).contains("empty or overflow"));
    assert!(with(8, &[33]).contains("no whole number of Q8_0 blocks"));
    assert!(with(0, &[1000]).contains("reach past"));
}

#[test]
fn unknown_tensor_types_are_named() {
    let named =
        |number: u32| refusal(&small().push_tensor("x", number, &[32], vec![0; 17]).build());
    assert_eq!(
        named(40),
        "tensor x: type 40 (NVFP4) is not supported: there are no products of it"
    );
    assert!(named(4).contains("type 4 (no type that this version knows)"));
    // Each of ggml's numbers is either supported or refused by its name.
    let retired = [4, 5, 31, 32, 33, 36, 37, 38];
    for number in (0..=40).filter(|number| !retired.contains(number)) {
        if TensorType::from_gguf(number).is_none() {
            let message = named(number);
            assert!(!message.contains("no type that"), "{message}");
        }
    }
}

#[test]
fn offsets_are_aligned_and_inside() {
    let bytes = small().build();
    // The offset is the last field of the last entry of the tensor table.
    let at = bytes
        .windows(8)
        .rposition(|window| window == 32_u64.to_le_bytes())
        .unwrap();
    for (offset, message) in [
        (1_u64, "not aligned"),
        (u64::MAX - 31, "reach past"),
        (1 << 20, "reach past"),
    ] {
        let mut hostile = bytes.clone();
        hostile[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        assert!(refusal(&hostile).contains(message), "{offset}");
    }
}

#[test]
fn opening_what_is_no_file_says_which() {
    let message = GgufFile::open(Path::new("/")).unwrap_err().to_string();
    assert!(message.contains("not a regular file"), "{message}");
    let missing = Path::new("/no/such/model.gguf");
    assert!(
        GgufFile::open(missing)
            .unwrap_err()
            .to_string()
            .starts_with("/no/such/model.gguf")
    );
}

#[test]
fn a_part_is_read_again_from_the_file_and_is_an_error_where_the_file_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let bytes = small().build();
    std::fs::write(&path, &bytes).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let header = file.header().unwrap();
    let data = header.tensor("q").unwrap().data;
    let part = &data[data.len() - 20..];
    let mut read = [0; 20];
    file.read_again(part, &mut read).unwrap();
    assert_eq!(read, bytes[bytes.len() - 20..]);
    let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(bytes.len() as u64 - 1).unwrap();
    let error = file.read_again(part, &mut read).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn what_is_no_regular_file_is_refused_by_its_kind_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, kind) in [
        (fifo.as_path(), "a FIFO"),
        (&socket, "a socket"),
        (dir.path(), "a directory"),
        (Path::new("/dev/zero"), "a character device"),
    ] {
        let message = GgufFile::open(path).unwrap_err().to_string();
        assert!(message.contains(kind), "{message}");
    }
}

/// Writes the files of one model, and opens the model by the name of the first.
fn open_parts(dir: &Path, parts: &[GgufBuilder]) -> Result<GgufFile, GgufError> {
    let path = |number: usize| dir.join(format!("m-{number:05}-of-{:05}.gguf", parts.len()));
    for (number, part) in (1..).zip(parts) {
        std::fs::write(path(number), part.build()).unwrap();
    }
    GgufFile::open(&path(1))
}

#[test]
fn a_model_in_several_files_is_what_it_is_in_one() {
    let dir = tempfile::tempdir().unwrap();
    let whole = small().build();
    let whole = parse(&whole).unwrap();
    let file = open_parts(dir.path(), &small().parts(2)).unwrap();
    assert_eq!(file.files().len(), 2);
    let header = file.header().unwrap();
    assert_eq!(header.u32("a.number").unwrap(), Some(7));
    assert_eq!(header.tensors().len(), 2);
    for name in ["t", "q"] {
        let (one, other) = (header.tensor(name).unwrap(), whole.tensor(name).unwrap());
        assert_eq!(
            (one.ty, one.rows, one.cols),
            (other.ty, other.rows, other.cols)
        );
        assert_eq!(one.data, other.data);
        let mut again = vec![0; one.data.len()];
        file.read_again(one.data, &mut again).unwrap();
        assert_eq!(again, one.data);
    }
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |parts: &[GgufBuilder]| {
        let file = open_parts(dir.path(), parts).unwrap();
        file.header().map(drop).unwrap_err().to_string()
    };
    let parts = small().parts(2);
    let [first, second] = [&parts[0], &parts[1]].map(Clone::clone);
    let why = refused(&[first.clone(), first.clone()]);
    assert!(
        why.contains("file 2 of the model: it calls itself file 1 of 2"),
        "{why}"
    );
    let why = refused(std::slice::from_ref(&first));
    assert!(why.contains("-00001-of-00002.gguf"), "{why}");
    let why = refused(&[first.clone(), second.clone().without_tensor("q")]);
    assert!(why.contains("1 tensors, and file 1 says 2"), "{why}");
    let twice = second.clone().tensor_f32("t", &[1], &[0.0]);
    let why = refused(&[first.clone(), twice]);
    assert!(why.contains("tensor t occurs twice"), "{why}");
    for count in [0x7fff_ffff_u32, 0] {
        let why = refused(&[
            first.clone(),
            second.clone().meta("split.tensors.count", count),
        ]);
        assert!(
            why.contains(&format!("2 tensors, and file 2 says {count}")),
            "{why}"
        );
    }
    for parts in [
        [
            first.clone(),
            second.clone().meta("split.tensors.count", Meta::I32(-1)),
        ],
        [
            first.clone().meta("split.tensors.count", Meta::I32(-1)),
            second.clone(),
        ],
    ] {
        let why = refused(&parts);
        assert!(
            why.contains("split.tensors.count: a count expected"),
            "{why}"
        );
    }
    // Repeated as some files do, and with another model's value.
    let same = second
        .clone()
        .meta("a.number", 7_u32)
        .meta("general.name", "of a part");
    let file = open_parts(dir.path(), &[first.clone(), same]).unwrap();
    assert!(file.header().is_ok());
    let first_of_llama = first.clone().meta("general.architecture", "llama");
    for (first, second, key) in [
        (&first, second.clone().meta("a.number", 8_u32), "a.number"),
        (
            &first_of_llama,
            second.clone().meta("general.architecture", "qwen2"),
            "general.architecture",
        ),
    ] {
        let why = refused(&[first.clone(), second]);
        let expected = format!("file 2 is of another model than the first one: {key}");
        assert!(why.contains(&expected), "{why}");
    }
    let misaligned = second.meta("general.alignment", 3_u32);
    let why = refused(&[first, misaligned]);
    assert!(
        why.starts_with("file 2 of the model: general.alignment"),
        "{why}"
    );
}

#[test]
fn a_part_that_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let parts = small().parts(3);
    drop(open_parts(dir.path(), &parts).unwrap());
    std::fs::remove_file(dir.path().join("m-00002-of-00003.gguf")).unwrap();
    let why = GgufFile::open(&dir.path().join("m-00001-of-00003.gguf")).unwrap_err();
    assert!(why.to_string().contains("m-00002-of-00003.gguf"), "{why}");
}
