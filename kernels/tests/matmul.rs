//! Packed weights and the fast matmul against the reference, and the law of the fast paths.

use worker_orcd_kernels::cpu::{
    Activations, BlockMeta, Isa, PackedMatrix, PackedShape, Q_BLOCK, ROWS, matmul_group,
    quantize_row,
};
use worker_orcd_kernels::reference::matmul::matmul;
use worker_orcd_kernels::synthetic::{Noise, random_rows};
use worker_orcd_kernels::{TensorType, compare, dequantize_row};

/// A matrix as the file holds it and as it is packed.
struct Weights {
    shape: PackedShape,
    file: Vec<u8>,
    packed: Vec<u8>,
}

impl Weights {
    fn random(ty: TensorType, rows: usize, cols: usize, seed: u64) -> Self {
        let shape = PackedShape { ty, rows, cols };
        let file = random_rows(ty, rows, cols, 1.0, seed);
        let packed = shape.pack(&file);
        Self {
            shape,
            file,
            packed,
        }
    }

    fn packed(&self) -> PackedMatrix<'_> {
        PackedMatrix::new(self.shape, &self.packed)
    }

    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.rows * self.shape.cols];
        dequantize_row(self.shape.ty, &self.file, &mut values);
        values
    }
}

struct Inputs {
    cols: usize,
    values: Vec<f32>,
    q: Vec<i8>,
    meta: Vec<BlockMeta>,
}

impl Inputs {
    fn random(isa: Isa, tokens: usize, cols: usize, seed: u64) -> Self {
        let values = Noise::new(seed).values(tokens * cols, 2.0);
        let whole = cols.is_multiple_of(Q_BLOCK);
        let mut q = vec![0; if whole { values.len() } else { 0 }];
        let mut meta = vec![BlockMeta::default(); q.len() / Q_BLOCK];
        if whole {
            quantize_row(isa, &values, &mut q, &mut meta);
        }
        Self {
            cols,
            values,
            q,
            meta,
        }
    }

    fn view(&self) -> Activations<'_> {
        let Self {
            cols,
            values,
            q,
            meta,
        } = self;
        Activations {
            cols: *cols,
            values,
            q,
            meta,
        }
    }

    /// What the matmul of weights of type `ty` really sees of a token.
    fn seen(&self, ty: TensorType, token: usize) -> Vec<f32> {
        let at = token * self.cols..(token + 1) * self.cols;
        if !Activations::is_quantized(ty) {
            return self.values[at].to_vec();
        }
        at.map(|i| f32::from(self.q[i]) * self.meta[i / Q_BLOCK].d)
            .collect()
    }
}

fn run(isa: Isa, w: &Weights, x: &Inputs, first: usize, tokens: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![0.0; w.shape.groups() * ROWS]; tokens];
    for group in 0..w.shape.groups() {
        let mut out = vec![[f32::NAN; ROWS]; tokens];
        matmul_group(isa, &w.packed(), group, &x.view(), first, &mut out);
        for (row, out) in rows.iter_mut().zip(out) {
            row[group * ROWS..][..ROWS].copy_from_slice(&out);
        }
    }
    rows
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter()
        .map(|row| row.iter().map(|v| v.to_bits()).collect())
        .collect()
}

fn widths(ty: TensorType) -> &'static [usize] {
    match ty.block_elements() {
        1 => &[1, 31, 32, 33, 101],
        32 => &[32, 96, 576],
        _ => &[256, 768],
    }
}

#[test]
fn a_packed_row_dequantizes_to_the_bits_of_the_file_row() {
    for ty in TensorType::ALL {
        for &cols in widths(ty) {
            let w = Weights::random(ty, 19, cols, 3);
            let expected = w.values();
            for row in 0..19 {
                let mut out = vec![f32::NAN; cols];
                w.packed().dequantize_row(row, &mut out);
                let expected = &expected[row * cols..][..cols];
                assert_eq!(
                    bits(&[out]),
                    bits(&[expected.to_vec()]),
                    "{} row {row} of {cols} columns",
                    ty.name()
                );
            }
        }
    }
}

/// Only rounding may be left, because the reference gets the activations as the kernel sees them.
/// 3e-6 is some twenty roundings of the largest value.
#[test]
fn every_type_and_body_agrees_with_the_reference() {
    for ty in TensorType::ALL {
        for &cols in widths(ty) {
            let w = Weights::random(ty, 21, cols, 5);
            let values = w.values();
            for isa in Isa::all() {
                let x = Inputs::random(isa, 5, cols, 7);
                for (token, row) in run(isa, &w, &x, 0, 5).iter().enumerate() {
                    let expected = matmul(&values, &x.seen(ty, token), None);
                    let seen = compare(&expected, &row[..21]);
                    assert!(seen.within(3e-6), "{} {cols} {isa:?}: {seen:?}", ty.name());
                    assert!(row[21..].iter().all(|&v| v == 0.0), "padding is zero");
                }
            }
        }
    }
}

#[test]
fn a_token_does_not_know_how_many_came_with_it() {
    for ty in TensorType::ALL {
        let cols = widths(ty)[1];
        let w = Weights::random(ty, 16, cols, 9);
        for isa in Isa::all() {
            let x = Inputs::random(isa, 17, cols, 11);
            let alone: Vec<_> = (0..17).flat_map(|t| run(isa, &w, &x, t, 1)).collect();
            for tokens in 2..=17 {
                for first in [0, 17 - tokens] {
                    let together = run(isa, &w, &x, first, tokens);
                    let expected = bits(&alone[first..first + tokens]);
                    assert_eq!(bits(&together), expected, "{} {isa:?} {tokens}", ty.name());
                }
            }
        }
    }
}

/// The largest codes and activations that exist: a 16-bit sum that overflowed would show here.
#[test]
fn extreme_codes_do_not_saturate() {
    for ty in TensorType::ALL
        .into_iter()
        .filter(|&ty| Activations::is_quantized(ty))
    {
        let cols = widths(ty)[0];
        for code in [0x00, 0x80, 0x7F, 0xFF] {
            let mut w = Weights::random(ty, 8, cols, 13);
            let scales = w.file.clone();
            w.file.fill(code);
            keep_scales(ty, &scales, &mut w.file);
            w.packed = w.shape.pack(&w.file);
            for isa in Isa::all() {
                for sign in [1.0, -1.0] {
                    let mut x = Inputs::random(isa, 1, cols, 15);
                    x.values.fill(sign);
                    quantize_row(isa, &x.values, &mut x.q, &mut x.meta);
                    let expected = matmul(&w.values(), &x.seen(ty, 0), None);
                    let seen = compare(&expected, &run(isa, &w, &x, 0, 1)[0]);
                    assert!(
                        seen.within(3e-6),
                        "{} {code:#x} {isa:?}: {seen:?}",
                        ty.name()
                    );
                }
            }
        }
    }
}

/// Puts the F16 fields of `from` back, so that filling with one byte changes codes only.
fn keep_scales(ty: TensorType, from: &[u8], to: &mut [u8]) {
    let fields = match ty {
        TensorType::Q2_K => 80..84,
        TensorType::Q3_K => 108..110,
        TensorType::Q6_K => 208..210,
        TensorType::MXFP4 => 0..1,
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => 0..4,
        _ => 0..2,
    };
    let bytes = ty.block_bytes();
    for (from, to) in from.chunks_exact(bytes).zip(to.chunks_exact_mut(bytes)) {
        to[fields.clone()].copy_from_slice(&from[fields.clone()]);
    }
}

#[test]
fn a_nan_in_the_activations_reaches_every_output() {
    for ty in TensorType::ALL {
        let cols = *widths(ty).last().expect("a width");
        let w = Weights::random(ty, 8, cols, 17);
        for isa in Isa::all() {
            let mut x = Inputs::random(isa, 2, cols, 19);
            x.values[cols - 1] = f32::NAN;
            if Activations::is_quantized(ty) {
                quantize_row(isa, &x.values, &mut x.q, &mut x.meta);
            }
            let rows = run(isa, &w, &x, 0, 2);
            assert!(rows[0].iter().all(|v| v.is_nan()), "{} {isa:?}", ty.name());
            assert!(
                rows[1].iter().all(|v| v.is_finite()),
                "{} {isa:?}",
                ty.name()
            );
        }
    }
}
