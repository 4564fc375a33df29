use super::*;
use crate::device::cuda::load::Device;
use crate::device::cuda::memory::upload;
use crate::device::cuda::pack::pack;
use crate::device::cuda::weights::{Matrix, multiplied_as};
use crate::model::TensorView;
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::dequantize::dequantize_row;
use worker_orcd_kernels::synthetic::random_rows;

/// The largest F16.
const LARGEST: f32 = 65504.0;

#[test]
fn a_bound_comes_to_the_upper_end_of_f16_with_a_bit_to_spare() {
    for bound in [1e-3_f32, 0.999, 1.0, 1.5, 1000.0, 32767.9, 32768.0, 4e8] {
        let power = Power::below(bound).expect("a power");
        let largest = bound * power.up();
        assert!((16384.0..=LARGEST / 1.99).contains(&largest), "{bound}");
    }
}

#[test]
fn what_is_below_its_bound_by_no_more_than_a_row_s_own_power_would_leave_is_told_as_exactly() {
    // A row's own power scales its largest value to at least 1.
    let power = Power::below(32767.0).expect("a power");
    assert!(power.up() * 32767.0 / 32768.0 >= 0.499);
    assert_eq!(power.up() * power.down(), 1.0);
}

#[test]
fn a_bound_that_is_too_high_or_no_number_gives_a_unit_no_power() {
    for bound in [2_f32.powi(29), 1e20, f32::INFINITY, f32::NAN] {
        assert_eq!(Power::below(bound), None, "{bound}");
    }
    assert_eq!(Power::below(2_f32.powi(28)), Some(Power(Power::LEAST)));
}

/// Values are F16 for any bound, so their mean is in the range of F16.
#[test]
fn a_mean_of_values_in_f16_is_never_made_smaller() {
    for bound in [65504.0, 1e9, f32::INFINITY, f32::NAN] {
        assert_eq!(Power::of_mean(bound), Power(0), "{bound}");
    }
    assert_eq!(Power::of_mean(1.0), Power(14));
}

#[test]
fn no_weights_at_all_give_the_largest_power() {
    assert_eq!(Power::of_mean(0.0), Power(Power::MOST));
    assert_eq!(Power::below(0.0), Some(Power(Power::MOST)));
}

#[test]
fn each_layer_has_its_bounds_and_a_clamped_unit_its_own() {
    let bounds = [1.0, 2.0, 4.0, 1e30];
    let silu = layers_of(Activation::Silu, &bounds);
    let layer = |mixer, unit: Option<i32>| LayerPowers {
        mixer: Power(mixer),
        unit: unit.map(Power),
    };
    assert_eq!(silu, [layer(14, Some(13)), layer(12, None)]);
    let clamped = layers_of(Activation::ClampedSwiglu, &bounds);
    assert_eq!(clamped, [layer(14, Some(9)), layer(12, Some(9))]);
}

#[test]
fn the_largest_tile_decides_and_what_is_no_number_is_larger() {
    let of = |squares: &[f32]| bound_of(squares.iter().map(|it| it.to_bits()));
    assert_eq!(of(&[4.0, 9.0, 1.0]), 3.0);
    assert!(of(&[4.0, f32::NAN, f32::INFINITY]).is_nan());
    assert_eq!(of(&[]), 0.0);
}

const ROWS: usize = 20;

/// A matrix in memory, and its rows in the definition of the file format.
struct Random {
    view: (TensorType, usize),
    data: Vec<u8>,
}

impl Random {
    fn new(ty: TensorType, cols: usize, seed: u64) -> Self {
        let data = random_rows(ty, ROWS, cols, 0.3, seed);
        let view = (ty, cols);
        Self { view, data }
    }

    /// Packs the matrix on the device, with an optional bias.
    fn pack(&self, device: &Device, arena: &Arena, bias: DevicePtr<f32>) -> Part {
        let (ty, cols) = self.view;
        let view = TensorView {
            name: "random",
            ty,
            rows: ROWS,
            cols,
            data: &self.data,
            runs: None,
        };
        let matrix = Matrix {
            ty,
            rows: ROWS,
            cols,
            offset: 0,
        };
        pack(device, arena, &[(view, matrix)], None, &mut |_| ()).expect("packed");
        Part {
            weight: arena.at(0, matrix.bytes() as usize),
            bias,
            rows: ROWS as i32,
            tiles: matrix.tiles() as i32,
            column: 0,
            ty: multiplied_as(ty) as i32,
        }
    }

    /// Sum of squares of each row, as `bound.cu` computes it.
    fn squares(&self, norm: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
        let (ty, cols) = self.view;
        let row_bytes = self.data.len() / ROWS;
        let square = |(row, bytes): (usize, &[u8])| {
            let mut values = vec![0.0; cols];
            dequantize_row(ty, bytes, &mut values);
            let products = values.iter().zip(norm).map(|(w, n)| f64::from(w * n));
            let square = cols as f64 * products.map(|it| it * it).sum::<f64>();
            match bias {
                Some(bias) => 2.0 * (square + f64::from(bias[row]).powi(2)),
                None => square,
            }
        };
        self.data
            .chunks(row_bytes)
            .enumerate()
            .map(square)
            .collect()
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_device_finds_the_bounds_of_the_reference() {
    let device = Device::open(0).expect("a device");
    let context = &device.context;
    let arena = |bytes: usize| Arena::new(context, Purpose::Scratch, bytes as u64).expect("memory");
    // SAFETY: bound.cu takes BoundArgs.
    let kernel: Kernel<BoundArgs> =
        unsafe { device.module.kernel("bound") }.expect("a kernel of this name");
    // Widths that are no whole units, for types with blocks of 32.
    let odd = [TensorType::F16, TensorType::Q8_0].map(|ty| (ty, 288));
    let whole = TensorType::ALL.map(|ty| (ty, 512));
    for (ty, cols) in whole.into_iter().chain(odd) {
        let wave = |i: usize| ((i * 37) % 101) as f32 / 50.0 - 1.0;
        let norm: Vec<f32> = (0..cols).map(wave).collect();
        let bias: Vec<f32> = (0..ROWS).map(|i| 20.0 * wave(i + 3)).collect();
        let [gate, up] = [1, 2].map(|seed| Random::new(ty, cols, seed));
        let (norm_at, bias_at) = (arena(4 * cols), arena(4 * ROWS));
        // SAFETY: as large.
        unsafe {
            upload(context, norm_at.at(0, cols), &norm).expect("a copy");
            upload(context, bias_at.at(0, ROWS), &bias).expect("a copy");
        }
        let weights = [arena(1 << 20), arena(1 << 20)];
        let parts = [
            gate.pack(&device, &weights[0], bias_at.at(0, ROWS)),
            up.pack(&device, &weights[1], DevicePtr::NULL),
        ];
        let gates = gate.squares(&norm, Some(&bias));
        let both = gates
            .iter()
            .zip(up.squares(&norm, None))
            .map(|(a, b)| a * b);
        for (n_parts, expected) in [(1, gates.clone()), (2, both.collect())] {
            let tiles = ROWS.div_ceil(8);
            let squares = arena(4 * tiles);
            let arguments = BoundArgs {
                parts,
                norm: norm_at.at(0, cols),
                squares: squares.at(0, tiles),
                n_parts,
                units: units(cols) as i32,
                cols: cols as i32,
                unused: 0,
            };
            let mut found = vec![0_u32; tiles];
            // SAFETY: a block a tile; there is room for a word of each.
            unsafe {
                kernel
                    .launch(context, Geometry::line(tiles, THREADS), &arguments)
                    .expect("a launch");
                download(context, &mut found, squares.at(0, tiles)).expect("a copy");
            }
            for (tile, (rows, found)) in expected.chunks(8).zip(found).enumerate() {
                let expected = rows.iter().copied().fold(0.0, f64::max);
                let apart = f64::from(f32::from_bits(found)) / expected - 1.0;
                assert!(
                    apart.abs() < 1e-3,
                    "{ty:?}, {n_parts} parts, tile {tile}: {apart}"
                );
            }
        }
    }
}
