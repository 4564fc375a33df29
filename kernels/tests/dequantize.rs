//! The reference against ggml's own layouts: `golden/generate.py` wrote what the `gguf` package
//! makes of random blocks of every type.

use worker_orcd_kernels::{TensorType, dequantize_row};

const BLOCKS: usize = 4;

#[test]
fn every_type_equals_ggml_bit_for_bit() {
    for ty in TensorType::ALL {
        let path = format!(
            "{}/tests/golden/dequantize_{}.bin",
            env!("CARGO_MANIFEST_DIR"),
            ty.name()
        );
        let golden = std::fs::read(&path).expect("golden file");
        let (bytes, expected) = golden.split_at(BLOCKS * ty.block_bytes());
        let expected: Vec<u32> = expected
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect();
        let mut values = vec![f32::NAN; BLOCKS * ty.block_elements()];
        dequantize_row(ty, bytes, &mut values);
        let values: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
        assert_eq!(values, expected, "{}", ty.name());
    }
}
