//! Choice of experts against the reference, and products of every way against those of one expert alone.

use super::*;
use crate::device::cuda::context::Context;
use crate::device::cuda::expert_arguments::{Choice, ExpertsPackArgs, Routing, Share};
use crate::device::cuda::experts_wide::PLACE_GROUP;
use crate::device::cuda::kernels::MatmulArgs;
use crate::device::cuda::load::Device;
use crate::device::cuda::matmul::few_geometry;
use crate::device::cuda::memory::{Arena, DevicePtr, Plain, Purpose, download, upload};
use crate::device::cuda::pack::pack;
use crate::device::cuda::weights::Matrix;
use crate::model::TensorView;
use half::f16;
use worker_orcd_kernels::reference::routing::{Router, route};
use worker_orcd_kernels::synthetic::{Noise, random_rows};
use worker_orcd_kernels::{Activation, Weighing};

const WAYS: [Way; 3 + experts_wide::BLOCKS.len()] = {
    let mut ways = [Way::Row; 3 + experts_wide::BLOCKS.len()];
    (ways[1], ways[2]) = (Way::Walk, Way::Many);
    let mut block = 0;
    while block < experts_wide::BLOCKS.len() {
        ways[3 + block] = Way::Wide(block);
        block += 1;
    }
    ways
};

/// Ways that the device supports for a matrix of this type.
fn ways_of(kernels: &Experts, ty: TensorType) -> impl Iterator<Item = Way> {
    WAYS.into_iter().filter(move |way| match way {
        Way::Wide(block) => {
            let mut of_type = kernels.kernels.iter();
            let kernels = of_type.find(|it| it.ty == multiplied_as(ty));
            let wide = kernels.and_then(|it| it.wide.as_ref());
            wide.is_some_and(|wide| wide.has(*block))
        }
        Way::Row | Way::Walk | Way::Many => true,
    })
}

#[test]
fn there_are_no_more_shares_than_are_reckoned_with() {
    for share_rows in WAYS.map(Way::share_rows) {
        for experts in [1, 2, 7, 128] {
            for pairs in 1..300_usize {
                // The maximum: all experts but one have one row each.
                let chosen = experts.min(pairs);
                let rest = pairs - (chosen - 1);
                let shares = chosen - 1 + rest.div_ceil(share_rows);
                let most = most_shares(pairs, experts, share_rows);
                assert!(shares <= most && most <= pairs, "{pairs} of {experts}");
            }
        }
    }
}

/// Device memory, allocated piece by piece.
struct Room<'a> {
    context: &'a Context,
    arena: Arena,
    end: u64,
}

impl<'a> Room<'a> {
    fn new(context: &'a Context) -> Self {
        let arena = Arena::new(context, Purpose::Scratch, 512 << 20).expect("memory");
        arena.clear(context).expect("cleared");
        Self {
            context,
            arena,
            end: 0,
        }
    }

    fn place<T>(&mut self, count: usize) -> DevicePtr<T> {
        let at = self.end;
        self.end = (at + (count * size_of::<T>()) as u64).next_multiple_of(256);
        self.arena.at(at, count)
    }

    fn hold<T: Plain>(&mut self, values: &[T]) -> DevicePtr<T> {
        let at = self.place(values.len());
        // SAFETY: its own place, as large.
        unsafe { upload(self.context, at, values) }.expect("a copy");
        at
    }

    fn get<T: Plain + Default>(&self, at: DevicePtr<T>, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        // SAFETY: places of as many.
        unsafe { download(self.context, &mut values, at) }.expect("a copy");
        values
    }

    /// Allocates a routing for these numbers of pairs and places.
    fn routing(&mut self, pairs: usize, places: usize) -> Routing {
        Routing {
            choices: self.place::<Choice>(pairs),
            places: self.place(pairs),
            rows: self.hold(&vec![-1; places]),
            shares: self.place::<Share>(pairs),
            counts: self.hold(&[0, 0]),
        }
    }

    /// Expert and weight of each pair.
    fn choices(&self, routing: &Routing, pairs: usize) -> Vec<(usize, f32)> {
        let words: Vec<u32> = self.get(routing.choices.cast(), 2 * pairs);
        let of = |two: &[u32]| (two[0] as usize, f32::from_bits(two[1]));
        words.chunks(2).map(of).collect()
    }

    /// Shares in use.
    fn shares(&self, routing: &Routing) -> Vec<[usize; 3]> {
        let counts = self.get(routing.counts, 2);
        assert_eq!(counts[1], 0, "blocks are counted anew in the next step");
        let words: Vec<i32> = self.get(routing.shares.cast(), 3 * counts[0] as usize);
        let of = |three: &[i32]| [0, 1, 2].map(|at| three[at] as usize);
        words.chunks(3).map(of).collect()
    }
}

fn config(count: usize, used: usize, weighing: Weighing) -> ExpertsConfig {
    ExpertsConfig {
        shared_n_ff: Some(8),
        gates_shared: true,
        weighing,
        ..ExpertsConfig::plain(count, used, 8)
    }
}

/// Rows with a stride, like the router's logits beside the shared expert's.
fn arguments(
    config: &ExpertsConfig,
    logits: DevicePtr<f32>,
    to: Routing,
    rows: usize,
    way: Way,
) -> RouteArgs {
    RouteArgs {
        logits,
        to,
        stride: config.logits() as i32,
        rows: rows as i32,
        experts: config.count as i32,
        used: config.used as i32,
        weighing: config.weighing as i32,
        share_rows: way.share_rows() as i32,
        place_group: way.place_group() as i32,
        factor: 1.0,
        scales: DevicePtr::NULL,
        choice_bias: DevicePtr::NULL,
        scale: config.scale,
        unused: 0,
    }
}

/// Every pair has a place in the range of its expert, which begins at a multiple of the way's groups, and every place
/// of a pair is in one share.
fn assert_sorted(
    room: &Room<'_>,
    routing: &Routing,
    (rows, used): (usize, usize),
    (way, places): (Way, usize),
) {
    let pairs = rows * used;
    let choices = room.choices(routing, pairs);
    let of_pair: Vec<i32> = room.get(routing.places, pairs);
    let of_place: Vec<i32> = room.get(routing.rows, places);
    let mut expert_of = vec![usize::MAX; places];
    for (pair, &place) in of_pair.iter().enumerate() {
        assert_eq!(of_place[place as usize] as usize, pair / used);
        expert_of[place as usize] = choices[pair].0;
    }
    let (mut next, mut in_shares) = (0, 0);
    let shares = room.shares(routing);
    for [expert, first, count] in &shares {
        assert_eq!(*first, next);
        assert!((1..=way.share_rows()).contains(count));
        assert!(expert_of[*first..][..*count].iter().all(|it| it == expert));
        next = (next + count).next_multiple_of(way.place_group());
        in_shares += count;
    }
    assert_eq!(in_shares, pairs);
    if way != Way::Row {
        assert!(shares.is_sorted(), "experts, and places of each, ascend");
        // Rows of an expert keep their order.
        let of_expert = of_place.iter().zip(&expert_of);
        let keys: Vec<_> = of_expert
            .filter(|(row, _)| **row >= 0)
            .map(|(row, expert)| (expert, row))
            .collect();
        assert_eq!(keys.len(), pairs);
        assert!(keys.is_sorted());
    }
}

/// Rows, weights, and whether experts have a bias that chooses and weights a factor.
const ROUTERS: [(usize, Weighing, bool); 12] = [
    (1, Weighing::Renormalized, false),
    (4, Weighing::Softmax, false),
    (9, Weighing::Renormalized, false),
    (256, Weighing::Softmax, false),
    (1000, Weighing::Renormalized, false),
    (1, Weighing::OfChosen, false),
    (9, Weighing::OfChosen, false),
    (1000, Weighing::OfChosen, false),
    (1, Weighing::Sigmoid, false),
    (9, Weighing::Sigmoid, true),
    (9, Weighing::RenormalizedSigmoid, true),
    (9, Weighing::Renormalized, true),
];

/// Experts and weights of a row are those of the reference.
fn assert_chosen(chosen: &[(usize, f32)], expected: &[(usize, f32)], what: &str) {
    for (chosen, expected) in chosen.iter().zip(expected) {
        assert_eq!(chosen.0, expected.0, "{what}");
        let apart = (chosen.1 - expected.1).abs();
        // Subnormal numbers have few bits.
        assert!(
            apart <= 1e-5 * expected.1.max(f32::MIN_POSITIVE),
            "{what}: {chosen:?} {expected:?}"
        );
    }
}

/// A row with a NaN has distinct experts, and weights that show it.
fn assert_broken(chosen: &[(usize, f32)], count: usize, what: &str) {
    let mut experts: Vec<_> = chosen.iter().map(|it| it.0).collect();
    experts.sort_unstable();
    experts.dedup();
    assert_eq!(experts.len(), chosen.len(), "{what}");
    assert!(experts.iter().all(|it| *it < count), "{what}");
    assert!(chosen.iter().all(|it| it.1.is_nan()), "{what}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_device_chooses_the_experts_of_the_reference_and_sorts_by_them() {
    let Device { context, module } = Device::open(0).expect("a device");
    let mut noise = Noise::new(5);
    for (count, used) in [
        (1, 1),
        (2, 2),
        (7, 3),
        (60, 4),
        (128, 8),
        (129, 40),
        (512, 10),
    ] {
        for (rows, weighing, has_bias) in ROUTERS {
            let config = ExpertsConfig {
                scale: if has_bias { 2.5 } else { 1.0 },
                ..config(count, used, weighing)
            };
            let bias: Vec<f32> = (0..count).map(|_| noise.value()).collect();
            let router = Router {
                weighing,
                choice_bias: has_bias.then_some(&*bias),
                scale: config.scale,
            };
            let kernels =
                Experts::load(&context, &module, config, [].into_iter()).expect("kernels");
            let mut logits: Vec<f32> = (0..rows * (count + 1))
                .map(|_| 4.0 * noise.value())
                .collect();
            // One row has equal experts, one has a NaN. In another all probabilities but the largest are zero, so the
            // order of the rest is undefined.
            logits[..count].fill(1.5);
            if rows > 4 {
                logits[3 * (count + 1) + count / 2] = f32::NAN;
                if weighing == Weighing::OfChosen {
                    let unlikely = &mut logits[2 * (count + 1)..][..count];
                    unlikely.iter_mut().for_each(|it| *it *= 100.0);
                }
            }
            for way in WAYS {
                let mut room = Room::new(&context);
                let places = way.places(rows * used, count);
                let (held, routing) = (room.hold(&logits), room.routing(rows * used, places));
                let held_bias = room.hold(&bias);
                let arguments = RouteArgs {
                    choice_bias: if has_bias { held_bias } else { DevicePtr::NULL },
                    ..arguments(&config, held, routing, rows, way)
                };
                // Twice: a launch must leave a clean state for the next.
                for _ in 0..2 {
                    // SAFETY: logits and room for every row.
                    unsafe { kernels.route(&context, &arguments) }.expect("a launch");
                }
                let choices = room.choices(&routing, rows * used);
                for (row, chosen) in choices.chunks(used).enumerate() {
                    let what = format!("{used} of {count}, row {row} of {rows}, {way:?}");
                    if rows > 4 && row == 3 {
                        assert_broken(chosen, count, &what);
                        continue;
                    }
                    let of_row = &logits[row * (count + 1)..][..count];
                    assert_chosen(chosen, &route(of_row, used, &router), &what);
                }
                assert_sorted(&room, &routing, (rows, used), (way, places));
            }
        }
    }
}

const COUNT: usize = 6;
const USED: usize = 2;

/// One product: a matrix of every expert, rows, and their choices.
struct Product<'a> {
    device: &'a Device,
    ty: TensorType,
    /// Outputs of one expert.
    outputs: usize,
    cols: usize,
    rows: usize,
    weights: Arena,
    x: Vec<u16>,
    scale: Vec<f32>,
    logits: Vec<f32>,
    /// Bias of each expert's outputs, if any.
    bias: Option<Vec<f32>>,
    /// Activation of pairs.
    activation: Activation,
}

impl<'a> Product<'a> {
    fn new(device: &'a Device, ty: TensorType, [outputs, cols, rows]: [usize; 3]) -> Self {
        let (matrix_rows, mut noise) = (COUNT * outputs, Noise::new(9));
        let data = random_rows(ty, matrix_rows, cols, 0.3, 4);
        let view = TensorView {
            name: "random",
            ty,
            rows: matrix_rows,
            cols,
            data: &data,
            runs: None,
        };
        let matrix = Matrix {
            ty,
            rows: matrix_rows,
            cols,
            offset: 0,
        };
        let weights =
            Arena::new(&device.context, Purpose::Scratch, matrix.bytes()).expect("memory");
        pack(device, &weights, &[(view, matrix)], None, &mut |_| ()).expect("weights");
        let halves = rows * units(cols) * UNIT;
        // Signs, exponents of 2^-3 to 1, and fractions of some bits; zero after the last column.
        let mut half = |at: usize| match at % (units(cols) * UNIT) < cols {
            true => {
                let bits = noise.bits() as u16;
                (bits & 0x8000) | ((12 + (bits & 3)) << 10) | ((bits >> 3) & 0x3FF)
            }
            false => 0,
        };
        let x = (0..halves).map(&mut half).collect();
        Self {
            device,
            ty,
            outputs,
            cols,
            rows,
            weights,
            x,
            scale: (0..rows)
                .map(|row| 2.0_f32.powi(row as i32 % 5 - 2))
                .collect(),
            // Some experts are chosen by most rows, some by few or none.
            logits: (0..rows * (COUNT + 1))
                .map(|at| 2.0 * noise.value() + 2.0 * (at % (COUNT + 1)) as f32)
                .collect(),
            bias: None,
            activation: Activation::Silu,
        }
    }

    /// Adds biases like those of gpt-oss: some outputs exceed the limit of the unit.
    fn with_biases(self) -> Self {
        let mut noise = Noise::new(7);
        let bias = (0..COUNT * self.outputs).map(|_| 9.0 * noise.value());
        Self {
            bias: Some(bias.collect()),
            activation: Activation::ClampedSwiglu,
            ..self
        }
    }

    /// Bias of all experts, on the device.
    fn hold_bias(&self, room: &mut Room<'_>) -> DevicePtr<f32> {
        let bias = self.bias.as_ref();
        bias.map_or(DevicePtr::NULL, |bias| room.hold(bias))
    }

    fn matrix(&self) -> Matrix {
        Matrix {
            ty: self.ty,
            rows: COUNT * self.outputs,
            cols: self.cols,
            offset: 0,
        }
    }

    fn part(&self, expert: usize, bias: DevicePtr<f32>) -> Part {
        let matrix = self.matrix();
        let of_expert = matrix.bytes() as usize / COUNT;
        let offset = (expert * of_expert) as u64;
        Part {
            weight: self.weights.at(offset, of_expert),
            rows: self.outputs as i32,
            tiles: (self.outputs / TILE_ROWS) as i32,
            bias,
            ..Part::NONE
        }
    }

    /// Results by pair.
    fn by(&self, kernels: &Experts, way: Way, paired: bool) -> Vec<Vec<u32>> {
        let context = &self.device.context;
        let (mut room, pairs) = (Room::new(context), self.rows * USED);
        let (x, scale) = (room.hold(&self.x), room.hold(&self.scale));
        let places = way.places(pairs, COUNT);
        let (logits, routing) = (room.hold(&self.logits), room.routing(pairs, places));
        let width = match paired && self.is_bounded(way) {
            true => units(self.outputs) * UNIT / 2,
            false => self.outputs,
        };
        // Memory after the results is unchanged.
        let out = room.hold(&vec![7.0_f32; places * width + self.outputs]);
        let bias = self.hold_bias(&mut room);
        let arguments = arguments(&kernels.config, logits, routing, self.rows, way);
        let linear = Linear {
            weight: self.matrix(),
            bias: None,
        };
        let packed = matches!(way, Way::Wide(_)).then(|| ExpertsPackArgs {
            x,
            scale,
            rows: routing.rows,
            out: room.place(places * units(self.cols) * UNIT),
            out_scale: room.place(places),
            units: units(self.cols) as i32,
            groups: (places / PLACE_GROUP) as i32,
        });
        let product = ExpertsArgs {
            // In a pair, one matrix is both gate and up.
            parts: [self.part(0, bias); 2],
            routing,
            x: packed.map_or(x, |packed| packed.out),
            scale: packed.map_or(scale, |packed| packed.out_scale),
            out,
            by_place: i32::from(packed.is_some()),
            paired: i32::from(paired),
            units: units(self.cols) as i32,
            out_stride: self.outputs as i32,
            activation: self.activation as i32,
            unused: 0,
        };
        // SAFETY: all memory has the stated size.
        unsafe {
            kernels.route(context, &arguments).expect("a launch");
            if let Some(packed) = &packed {
                let pack = kernels.pack.as_ref().expect("on Hopper");
                pack.run(context, packed).expect("a launch");
            }
            kernels
                .multiply(context, (way, self.rows), &linear, &product)
                .expect("a launch");
        }
        let bits: Vec<u32> = room.get(out.cast(), places * width + self.outputs);
        let (results, beyond) = bits.split_at(places * width);
        assert!(beyond.iter().all(|it| *it == 7.0_f32.to_bits()));
        let of_pairs: Vec<i32> = room.get(routing.places, pairs);
        let of_pair = |place: &i32| match paired && self.is_bounded(way) {
            true => self.unpacked(results, places, *place as usize),
            false => results[*place as usize * self.outputs..][..self.outputs].to_vec(),
        };
        of_pairs.iter().map(of_pair).collect()
    }

    /// The way writes units as inputs of the next product.
    fn is_bounded(&self, way: Way) -> bool {
        self.activation == Activation::ClampedSwiglu && way.is_bounded(self.ty)
    }

    /// A row of inputs as `store_eight` packs them, as numbers of F32.
    fn unpacked(&self, words: &[u32], places: usize, place: usize) -> Vec<u32> {
        let of_column = |column: usize| {
            let group = column / UNIT * (places / PLACE_GROUP) + place / PLACE_GROUP;
            let piece = group * 16 + column % UNIT / 32 * 4 + column % 8 / 2;
            let word = words[(piece * 64 + place % 8 * 8 + column % 32 / 8 * 2) / 2];
            let bits = (word >> (16 * (column % 2))) as u16;
            (f16::from_bits(bits).to_f32() / SWIGLU_UP).to_bits()
        };
        (0..self.outputs).map(of_column).collect()
    }

    /// The result of an expert's matrix alone, by the kernel for few rows.
    fn alone(&self, kernels: &Experts) -> Vec<Vec<u32>> {
        let context = &self.device.context;
        let (mut room, pairs) = (Room::new(context), self.rows * USED);
        let (logits, routing) = (room.hold(&self.logits), room.routing(pairs, pairs));
        let arguments = arguments(&kernels.config, logits, routing, self.rows, Way::Row);
        // SAFETY: logits and room for every row.
        unsafe { kernels.route(context, &arguments) }.expect("a launch");
        let name = format!("matmul_few_{}_1", multiplied_as(self.ty).name());
        // SAFETY: the kernels of matmul_few.cu take MatmulArgs.
        let few: Kernel<MatmulArgs> =
            unsafe { self.device.module.kernel(&name) }.expect("a kernel");
        let (x, scale) = (room.hold(&self.x), room.hold(&self.scale));
        let (out, bias) = (room.place::<f32>(self.outputs), self.hold_bias(&mut room));
        let bias_of = |expert: usize| match self.bias {
            Some(_) => bias.add(expert * self.outputs),
            None => bias,
        };
        let choices = room.choices(&routing, pairs);
        let of_pair = |(pair, (expert, _)): (usize, &(usize, f32))| {
            let (row, units) = (pair / USED, units(self.cols));
            let arguments = MatmulArgs {
                parts: [self.part(*expert, bias_of(*expert)), Part::NONE, Part::NONE],
                n_parts: 1,
                rows: 1,
                units: units as i32,
                out_stride: self.outputs as i32,
                add: 0,
                scale_of_all: 1.0,
                x: x.add(row * units * UNIT),
                scale: scale.add(row),
                out,
            };
            let geometry = few_geometry(self.outputs / TILE_ROWS, segments(units), 1);
            // SAFETY: a row, and room for its results.
            unsafe { few.launch(context, geometry, &arguments) }.expect("a launch");
            room.get(out.cast::<u32>(), self.outputs)
        };
        choices.iter().enumerate().map(of_pair).collect()
    }
}

/// `SWIGLU_UP` of `glu.cuh`.
const SWIGLU_UP: f32 = 512.0;

/// Units as inputs of a product.
fn inputs(of_pairs: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let input = |bits: &u32| {
        let half = f16::from_f32(f32::from_bits(*bits) * SWIGLU_UP);
        (half.to_f32() / SWIGLU_UP).to_bits()
    };
    let of_pair = |bits: &Vec<u32>| bits.iter().map(input).collect();
    of_pairs.iter().map(of_pair).collect()
}

/// Gate and up are the same matrix, with the outputs `of_one`.
fn assert_gated(activation: Activation, of_one: &[Vec<u32>], seen: &[Vec<u32>], what: &str) {
    let pairs = of_one.iter().flatten().zip(seen.iter().flatten());
    for (one, seen) in pairs.map(|(one, seen)| (f32::from_bits(*one), f32::from_bits(*seen))) {
        let expected = activation.exact(f64::from(one), f64::from(one));
        let apart = (f64::from(seen) - expected).abs();
        assert!(
            apart <= 1e-30 + 2e-5 * expected.abs(),
            "{what}: {seen} of {one}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_way_gives_the_bits_of_an_expert_alone() {
    let device = Device::open(0).expect("a device");
    let config = config(COUNT, USED, Weighing::Renormalized);
    for ty in TensorType::ALL {
        let kernels = Experts::load(&device.context, &device.module, config, [ty].into_iter())
            .expect("kernels");
        // Tiles: one, an odd number, and more than a block has; segments with one unit, and with several.
        for shape in [
            [8, 256, 1],
            [24, 256, 3],
            [40, 512, 9],
            [136, 2304, 70],
            [200, 1024, 300],
        ] {
            let product = || Product::new(&device, ty, shape);
            for product in [product(), product().with_biases()] {
                let what = format!("{ty:?} {shape:?} {:?}", product.activation);
                let expected = product.alone(&kernels);
                for way in ways_of(&kernels, ty).skip(1) {
                    let seen = product.by(&kernels, way, false);
                    assert!(seen == expected, "{what} {way:?}");
                }
                let of_rows = product.by(&kernels, Way::Row, true);
                for way in ways_of(&kernels, ty) {
                    let seen = product.by(&kernels, way, true);
                    let expected = match product.is_bounded(way) {
                        true => &inputs(&of_rows),
                        false => &of_rows,
                    };
                    assert!(seen == *expected, "{what}: a pair by {way:?}");
                }
                assert_gated(product.activation, &expected, &of_rows, &what);
            }
        }
    }
}
