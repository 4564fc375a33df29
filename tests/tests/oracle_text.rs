//! Token ids and detokenized text against llama.cpp: `tests/oracle/tokenizer_ids.py`.

use worker_orcd_tests::model::real_model;
use worker_orcd_tests::oracle;

#[test]
fn ids_and_text_equal_llama_cpp() {
    oracle::run(
        "tokenizer_ids.py",
        &[
            real_model().as_os_str(),
            env!("CARGO_BIN_EXE_orcd-tokenize").as_ref(),
        ],
    );
}
