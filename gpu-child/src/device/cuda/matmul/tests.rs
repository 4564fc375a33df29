//! Blocks of `matmul_wide.cu`, alone and in clusters, give the same bits.

use super::*;
use crate::device::cuda::load::Device;
use crate::device::cuda::memory::{Arena, Purpose, read, upload};
use crate::device::cuda::pack::pack;
use crate::device::cuda::weights::Matrix;
use crate::device::cuda::wide::tiling_of;
use crate::model::TensorView;
use half::f16;
use worker_orcd_kernels::synthetic::random_rows;

/// Rows of each weight: no whole block of tiles.
const WEIGHT_ROWS: usize = 328;
/// Columns: segments of one unit, and of several.
const COLUMNS: [usize; 2] = [768, 4608];
/// Rows on both sides of those of a block.
const ROWS: [usize; 10] = [1, 7, 8, 9, 16, 17, 24, 25, 64, 140];

/// Two weights of a type on the device, and their product with rows of F16.
struct Products<'a> {
    device: &'a Device,
    kernels: OfType,
    /// Owner of the memory of `parts`.
    _weights: Arena,
    parts: [Part; 2],
    columns: usize,
    x: Arena,
    out: Arena,
}

impl<'a> Products<'a> {
    fn new(device: &'a Device, ty: TensorType, columns: usize) -> Self {
        let context = &device.context;
        let arena = |bytes| Arena::new(context, Purpose::Scratch, bytes as u64).expect("memory");
        let matrix = |offset| Matrix {
            ty,
            rows: WEIGHT_ROWS,
            cols: columns,
            offset,
        };
        let bytes = matrix(0).bytes();
        let weights = arena(2 * bytes as usize);
        let data = [1, 2].map(|seed| random_rows(ty, WEIGHT_ROWS, columns, 0.3, seed));
        let views = data.each_ref().map(|data| TensorView {
            name: "random",
            ty,
            rows: WEIGHT_ROWS,
            cols: columns,
            data,
            runs: None,
        });
        let [one, other] = views;
        let both = [(one, matrix(0)), (other, matrix(bytes))];
        pack(device, &weights, &both, None, &mut |_| ()).expect("packed");
        let part = |index: usize| Part {
            weight: weights.at(index as u64 * bytes, bytes as usize),
            bias: DevicePtr::NULL,
            rows: WEIGHT_ROWS as i32,
            tiles: matrix(0).tiles() as i32,
            column: (index * WEIGHT_ROWS) as i32,
            ty: multiplied_as(ty) as i32,
        };
        let most = ROWS[ROWS.len() - 1].next_multiple_of(8);
        let halves: Vec<u16> = (0..most * units(columns) * UNIT)
            .map(|i| f16::from_f32(((i * 37) % 101) as f32 / 50.0 - 1.0).to_bits())
            .collect();
        let x = arena(2 * halves.len());
        // SAFETY: as large.
        unsafe { upload(context, x.at(0, halves.len()), &halves) }.expect("a copy");
        Self {
            device,
            kernels: OfType::load(context, &device.module, multiplied_as(ty)).expect("kernels"),
            parts: [part(0), part(1)],
            _weights: weights,
            columns,
            x,
            out: arena(4 * most * 2 * WEIGHT_ROWS.next_multiple_of(UNIT)),
        }
    }

    /// Outputs of a tiling.
    fn run(&self, rows: usize, paired: Option<Power>, tiling: Tiling) -> Vec<u32> {
        let context = &self.device.context;
        self.out.fill(context, 0).expect("zeros");
        let arguments = MatmulArgs {
            parts: [self.parts[0], self.parts[1], Part::NONE],
            n_parts: 2,
            rows: rows as i32,
            units: units(self.columns) as i32,
            out_stride: 2 * WEIGHT_ROWS as i32,
            add: 0,
            scale_of_all: 1.0,
            x: self
                .x
                .at(0, rows.next_multiple_of(8) * units(self.columns) * UNIT),
            scale: DevicePtr::NULL,
            out: self.out.at(0, self.out.bytes() as usize / 4),
        };
        // SAFETY: weights, rows and outputs are as large; the tiling is of this product.
        unsafe {
            let launched = self
                .kernels
                .launch_tiling(context, arguments, paired, tiling);
            launched.expect("a launch");
            let len = self.out.bytes() as usize / 4;
            let outputs = read(context, self.out.at(0, len), len).expect("a copy");
            outputs.into_iter().map(f32::to_bits).collect()
        }
    }

    /// Compares all tilings of a number of rows, and returns how many there are.
    fn compare(&self, rows: usize, paired: Option<Power>) -> usize {
        let tiles = self.parts.map(|part| part.tiles as usize);
        let product = Product {
            ty: self.kernels.ty,
            tiles: &tiles,
            units: units(self.columns),
            rows,
            paired: paired.is_some(),
        };
        let capacity = capacity(&self.device.context);
        let clusters = (2..=8).map(Cluster::Segments);
        let clusters = [Cluster::Alone, Cluster::Weights]
            .into_iter()
            .chain(clusters);
        let (mut expected, mut count) = (None, 0);
        for (index, block) in BLOCKS.iter().enumerate() {
            if !block.multiplies(product.ty) {
                continue;
            }
            for cluster in clusters.clone() {
                if matches!(cluster, Cluster::Segments(split) if split > segments(product.units)) {
                    continue;
                }
                let Some((_, tiling)) = tiling_of(&product, capacity, index, cluster, 1) else {
                    continue;
                };
                let found = self.run(rows, paired, tiling);
                assert!(found.iter().any(|bits| *bits != 0));
                let expected = expected.get_or_insert_with(|| found.clone());
                assert!(*expected == found, "{product:?} {tiling:?}");
                count += 1;
            }
        }
        count
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_block_and_cluster_gives_the_same_bits() {
    let device = Device::open(0).expect("a device");
    if !device.context.has_wgmma() {
        return;
    }
    let types = TensorType::ALL.map(multiplied_as);
    for ty in TensorType::ALL.into_iter().filter(|ty| types.contains(ty)) {
        for columns in COLUMNS {
            let products = Products::new(&device, ty, columns);
            for rows in ROWS {
                for paired in [None, Power::below(1e6)] {
                    assert!(products.compare(rows, paired) > BLOCKS.len() - 3);
                }
            }
        }
    }
}
