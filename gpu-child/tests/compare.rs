//! Exit codes of `worker-orcd-compare`: 0 for agreement, 1 for a difference, 2 for an unreadable file.

use std::path::Path;
use std::process::Command;

fn row(token: u32, values: &str) -> String {
    format!(
        r#"{{"request":1,"checkpoint":"logits","token_idx":{token},"shape":[9],"values":[{values}]}}"#
    )
}

fn write(directory: &Path, name: &str, rows: &[String]) -> String {
    let path = directory.join(name);
    std::fs::write(&path, rows.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn compare(arguments: &[&str]) -> Option<i32> {
    let program = env!("CARGO_BIN_EXE_worker-orcd-compare");
    let status = Command::new(program)
        .args(arguments)
        .output()
        .unwrap()
        .status;
    status.code()
}

#[test]
fn a_difference_a_missing_row_and_what_is_no_number_fail() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, rows: &[String]| write(directory.path(), name, rows);
    let one = file("one", &[row(1, "1,2"), row(2, "3,4")]);
    let near = file("near", &[row(1, "1,2"), row(2, "3,4.25")]);
    let nan = file("nan", &[row(1, "1,2"), row(2, "3,NaN")]);
    let short = file("short", &[row(1, "1,2")]);
    let empty = file("empty", &[]);
    assert_eq!(compare(&[&one, &one]), Some(0));
    assert_eq!(compare(&[&one, &near]), Some(1));
    assert_eq!(compare(&[&one, &near, "--tolerance", "0.5"]), Some(0));
    for other in [&nan, &short, &empty] {
        assert_eq!(
            compare(&[&one, other, "--tolerance", "1e9"]),
            Some(1),
            "{other}"
        );
    }
    assert_eq!(compare(&[&empty, &empty]), Some(1));
    assert_eq!(compare(&[&one, "/no/such/trace"]), Some(2));
    assert_eq!(compare(&[&one, &one, "--tolerance", "inf"]), Some(2));
}
