//! Comparisons of `cargo xtask verify`: `tests/oracle/verify_check.py`.

use std::path::Path;
use worker_orcd_tests::oracle;

#[test]
fn a_changed_file_fails_the_rows_that_depend_on_it_and_no_other() {
    let program = Path::new(env!("CARGO_BIN_EXE_orcd-logits"));
    let folder = program.parent().expect("a program lies in a folder");
    oracle::run("verify_check.py", &[folder.as_os_str()]);
}
