//! The smaller operations of a layer against their references, sweeping the edges.

use worker_orcd_kernels::cpu::{self, Isa, ROWS, RopeRow};
use worker_orcd_kernels::reference;
use worker_orcd_kernels::reference::rope::{Rope, RopePairs};
use worker_orcd_kernels::synthetic::Noise;
use worker_orcd_kernels::{Activation, compare};

#[test]
fn rmsnorm_agrees_at_every_width() {
    let mut noise = Noise::new(1);
    for isa in Isa::all() {
        for width in [1, 7, 15, 16, 17, 31, 32, 33, 64, 101, 576] {
            let (x, w) = (noise.values(width, 3.0), noise.values(width, 2.0));
            let mut out = vec![f32::NAN; width];
            cpu::rmsnorm(isa, &x, &w, 1e-5, &mut out);
            let seen = compare(&reference::rmsnorm::rmsnorm(&x, &w, 1e-5), &out);
            assert!(seen.within(1e-6), "{isa:?} {width}: {seen:?}");
        }
    }
}

/// Each with what it may be apart from the reference, relatively: of the clamped one the exponent itself is rounded.
const ACTIVATIONS: [(Activation, f32); 4] = [
    (Activation::Silu, 1e-6),
    (Activation::Gelu, 1e-6),
    (Activation::ClampedSwiglu, 1e-5),
    (Activation::Relu, 1e-7),
];

#[test]
fn glu_agrees_from_one_end_of_the_range_to_the_other() {
    let all = Isa::all().into_iter();
    for (isa, (activation, apart)) in all.flat_map(|isa| ACTIVATIONS.map(|it| (isa, it))) {
        let gates: Vec<f32> = (-1000..1000).map(|i| i as f32 * 0.13).collect();
        for eight in gates.chunks_exact(ROWS) {
            let up = [[1.7, -0.5, 6.9, 7.1, -6.9, -7.1, 50.0, 0.0]];
            let expected = reference::glu::glu(activation, eight, &up[0]);
            let mut gate: [[f32; ROWS]; 1] = [eight.try_into().expect("eight")];
            cpu::glu(activation, isa, &mut gate, &up);
            for (i, (want, got)) in expected.iter().zip(gate[0]).enumerate() {
                // Where GELU is next to nothing, a rounding of what is exponentiated is a large part of it.
                let rounded = match activation {
                    Activation::Gelu => 0.1 * eight[i].abs().min(1.0) * up[0][i].abs(),
                    Activation::Silu | Activation::ClampedSwiglu | Activation::Relu => 0.0,
                };
                // Past exp's range the result is a tiny number instead of zero.
                let allowed = apart * (want.abs() + rounded) + 1e-34;
                assert!(
                    (want - got).abs() <= allowed,
                    "{isa:?} {activation:?}: {want} {got}"
                );
            }
        }
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut gate = [[gate; ROWS]];
            cpu::glu(activation, isa, &mut gate, &[[up; ROWS]]);
            assert!(gate[0].iter().all(|v| v.is_nan()), "a NaN stays one");
        }
    }
}

#[test]
fn rope_with_shared_angles_is_the_reference_bit_for_bit() {
    let mut noise = Noise::new(2);
    for pairs in [RopePairs::Adjacent, RopePairs::HalfOffset] {
        for (dims, head_dim) in [(64, 64), (32, 80), (2, 3)] {
            let factors = Some((0..dims / 2).map(|i| 1.0 + i as f32).collect());
            let rope = Rope {
                pairs,
                dims,
                base: 1e4,
                scale: 2.0,
                factors,
                attn_factor: 1.19,
            };
            for position in [0, 1, 77, 100_000] {
                let mut expected = noise.values(head_dim, 1.0);
                let mut head = expected.clone();
                reference::rope::rope(&mut expected, position, &rope);
                let mut row = RopeRow::default();
                row.set(&rope, position);
                cpu::apply_rope(&mut head, &rope, &row);
                assert_eq!(head, expected);
            }
        }
    }
}

#[test]
fn f16_rounds_to_nearest_even() {
    let values = [
        1.0,
        1.0 + 2f32.powi(-11),
        65504.0,
        1e6,
        -0.0,
        1e-7,
        -2.5,
        3.0,
        0.1,
    ];
    for isa in Isa::all() {
        let mut out = [0; 9];
        cpu::convert::to_f16(isa, &values, &mut out);
        assert_eq!(out[..5], [0x3C00, 0x3C00, 0x7BFF, 0x7C00, 0x8000]);
        assert_eq!(
            out,
            values.map(|v| half::f16::from_f32(v).to_bits()),
            "{isa:?}"
        );
    }
}
