//! The reference against ggml's own layouts: `golden/generate.py` wrote what the `gguf` package
//! makes of random blocks of every type.

use worker_orcd_kernels::reference::dequantize::grid::grid;
use worker_orcd_kernels::{TensorType, dequantize_row};

/// Blocks of a file, then the values that `gguf` made of them.
fn equals_ggml(ty: TensorType, file: &str, blocks: usize) {
    let path = format!(
        "{}/tests/golden/{file}_{}.bin",
        env!("CARGO_MANIFEST_DIR"),
        ty.name()
    );
    let golden = std::fs::read(&path).expect("golden file");
    let (bytes, expected) = golden.split_at(blocks * ty.block_bytes());
    let expected: Vec<u32> = expected
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
        .collect();
    let mut values = vec![f32::NAN; blocks * ty.block_elements()];
    dequantize_row(ty, bytes, &mut values);
    let values: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
    assert_eq!(values, expected, "{file} {}", ty.name());
}

#[test]
fn every_type_equals_ggml_bit_for_bit() {
    for ty in TensorType::ALL {
        equals_ggml(ty, "dequantize", 4);
    }
}

#[test]
fn scales_as_large_and_small_as_there_are_equal_ggml_bit_for_bit() {
    let quantized = TensorType::ALL
        .into_iter()
        .filter(|ty| ty.block_elements() > 1);
    for ty in quantized {
        equals_ggml(ty, "extreme", 7);
    }
}

#[test]
fn every_entry_of_every_grid_equals_ggml_bit_for_bit() {
    let entries_of_a_block = [
        (TensorType::IQ2_XXS, 32),
        (TensorType::IQ2_XS, 32),
        (TensorType::IQ2_S, 32),
        (TensorType::IQ3_XXS, 64),
        (TensorType::IQ3_S, 64),
    ];
    for (ty, entries) in entries_of_a_block {
        equals_ggml(ty, "grid", grid(ty).len() / entries);
    }
}
