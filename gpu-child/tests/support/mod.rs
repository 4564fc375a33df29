//! A small random model in memory, and a runner by steps.

mod configs;
pub mod forward;
pub mod laws;
mod layer_inputs;
mod recurrent;

pub use configs::*;

use std::sync::Mutex;
use worker_orcd_gpu::device::cpu::{CpuExecutor, Device};
use worker_orcd_gpu::device::{
    Batch, Beside, Checkpoint, Executor, LoadOptions, PageCopy, PageId, PagePart, SampleWork,
    SequenceWork, Source, Tap,
};
use worker_orcd_gpu::model::{
    Attention, Block, DenseBeside, Experts, FeedForward, FileLinear, FileWeights, GatedUnit,
    KvOrigin, Layer, Linear, Mixer, ModelConfig, SharedExpert, TensorView,
};
use worker_orcd_ipc::{Drawn, Fault, KvReaders, RequestId, Sampling, TokenId};
use worker_orcd_kernels::cpu::Isa;
use worker_orcd_kernels::synthetic::random_rows;
use worker_orcd_kernels::{Activation, TensorType};

/// Types of a layer's seven matrices, then of embedding and output.
pub type Types = [TensorType; 9];

/// Types as different as possible in one model.
pub const MIXED: Types = [
    TensorType::Q4_K,
    TensorType::Q6_K,
    TensorType::Q5_0,
    TensorType::Q8_0,
    TensorType::Q4_1,
    TensorType::Q5_K,
    TensorType::Q4_0,
    TensorType::F16,
    TensorType::BF16,
];

/// Types of few bits, mixed as in Unsloth's dynamic files.
pub const MIXED_SMALL: Types = [
    TensorType::IQ4_XS,
    TensorType::Q3_K,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::IQ3_S,
    TensorType::IQ2_XS,
    TensorType::IQ4_NL,
    TensorType::Q3_K,
    TensorType::Q6_K,
];

struct Tensor {
    ty: TensorType,
    rows: usize,
    cols: usize,
    magnitude: f32,
    data: Vec<u8>,
}

impl Tensor {
    fn view(&self) -> TensorView<'_> {
        let &Self {
            ty,
            rows,
            cols,
            ref data,
            ..
        } = self;
        TensorView {
            name: "random",
            ty,
            rows,
            cols,
            data,
            runs: None,
        }
    }

    fn linear(&self) -> FileLinear<'_> {
        Linear {
            weight: self.view(),
            bias: None,
        }
    }
}

/// Owner of the data that [`FileWeights`] borrow.
pub struct Model {
    pub config: ModelConfig,
    tensors: Vec<Tensor>,
    /// Per-layer inputs: table, projection and norm, then three tensors of each layer.
    layer_inputs: Vec<Tensor>,
    /// The output shares the embedding table.
    tied: bool,
    /// The heads of Q and K have norms.
    pub has_head_norms: bool,
    /// Each block's output has a norm.
    pub has_post_norms: bool,
}

const PER_LAYER: usize = 7 + 4 + 3;
/// Tensors of a layer's experts, stored after all others.
const EXPERTS_PER_LAYER: usize = 4 + 4;
/// Additional tensors per layer of gpt-oss, after the experts: sinks, the bias of attention's output, those of router,
/// gate, up and down.
const MORE_PER_LAYER: usize = 6;
/// Additional tensors per layer of Gemma 4, after all others: norms of the dense unit's output, of the experts' input and
/// output, factors of the router's input, of each expert's output, and of the layer's.
const GEMMA4: usize = 6;

impl Model {
    /// A model with matrices of the given types, biases on Q, K and V, and norms on the heads of Q and K.
    pub fn random(config: ModelConfig, types: Types) -> Self {
        Self::of(config, types, false)
    }

    /// A model like [`random`](Self::random), with one table for embedding and output.
    pub fn random_tied(config: ModelConfig, types: Types) -> Self {
        Self::of(config, types, true)
    }

    /// A model of [`config_like_gemma`].
    pub fn like_gemma(types: Types) -> Self {
        Self {
            has_post_norms: true,
            ..Self::random_tied(config_like_gemma(), types)
        }
    }

    /// A model of [`config_like_gemma4`] or one that is made of it.
    pub fn like_gemma4(config: ModelConfig, types: Types) -> Self {
        Self {
            has_post_norms: true,
            ..Self::random_tied(config, types)
        }
    }

    fn of(config: ModelConfig, types: Types, tied: bool) -> Self {
        let ModelConfig {
            n_embd, vocab_size, ..
        } = config;
        let mut model = Self {
            config,
            tensors: Vec::new(),
            layer_inputs: Vec::new(),
            tied,
            has_head_norms: true,
            has_post_norms: false,
        };
        for layer in 0..model.config.n_layers {
            let heads = model.config.heads_of(layer);
            let n_ff = model.config.n_ff_of(layer);
            let (q, kv, head_dim) = (heads.width(), heads.kv_width(), heads.dim);
            let queries = model.config.queries_width_of(q);
            // Most experts replace it.
            let experts = model.config.experts_of(layer);
            let replaced = experts.is_some_and(|it| !it.beside_dense);
            let dense = if replaced { 0 } else { 1 };
            let shapes = [
                (queries, n_embd),
                (kv, n_embd),
                (kv, n_embd),
                (n_embd, q),
                (dense * n_ff, n_embd),
            ];
            let shapes = shapes
                .into_iter()
                .chain([(dense * n_ff, n_embd), (dense * n_embd, n_ff)]);
            for (ty, (rows, cols)) in types.into_iter().zip(shapes) {
                model.push(ty, rows, cols, 0.3);
            }
            let (q_norm, k_norm) = match model.config.has_joint_norms {
                true => (q, kv),
                false => (head_dim, head_dim),
            };
            for width in [n_embd, n_embd, q_norm, k_norm, queries, kv, kv] {
                model.push(TensorType::F32, 1, width, 1.0);
            }
        }
        model.push(types[7], vocab_size, n_embd, 1.0);
        model.push(types[8], if tied { 0 } else { vocab_size }, n_embd, 0.3);
        model.push(TensorType::F32, 1, n_embd, 1.0);
        model.push_experts(types);
        for _ in 0..2 * model.config.n_layers {
            model.push(TensorType::F32, 1, n_embd, 1.0);
        }
        model.push_more();
        model.push_delta_nets(types);
        model.push_short_convs(types);
        model.push_mamba(types);
        model.push_gemma4();
        model.push_choice_biases();
        model.push_layer_inputs(types);
        model.fill();
        match model.config.delta_net().copied() {
            Some(net) => model.with_decays().with_joint_strengths(net),
            None if model.config.mamba().is_some() => model.with_decays(),
            None => model,
        }
    }

    /// Sets the magnitude of gate and up.
    pub fn with_units_of(mut self, magnitude: f32) -> Self {
        for layer in 0..self.config.n_layers {
            for part in [4, 5] {
                self.tensors[layer * PER_LAYER + part].magnitude = magnitude;
            }
        }
        self.fill();
        self
    }

    /// The experts have the types of the feed-forward part, the shared expert those of Q, K and V.
    fn push_experts(&mut self, types: Types) {
        let Some(experts) = self.config.experts else {
            return;
        };
        let (n_embd, shared) = (self.config.n_embd, experts.shared_n_ff.unwrap_or(0));
        for _ in 0..self.config.n_layers {
            for (ty, rows, cols) in [
                (TensorType::F32, experts.count, n_embd),
                (types[4], experts.count * experts.n_ff, n_embd),
                (types[5], experts.count * experts.n_ff, n_embd),
                (types[6], experts.count * n_embd, experts.n_ff),
                (TensorType::F32, 1, n_embd),
                (types[0], shared, n_embd),
                (types[1], shared, n_embd),
                (types[2], n_embd, shared),
            ] {
                self.push(ty, rows, cols, 0.3);
            }
        }
    }

    fn push_more(&mut self) {
        let Some(experts) = self.config.experts.filter(|it| it.has_biases) else {
            return;
        };
        let (n_embd, n_heads) = (self.config.n_embd, self.config.n_heads);
        for _ in 0..self.config.n_layers {
            for (rows, cols, magnitude) in [
                (1, n_heads, 2.0),
                (1, n_embd, 1.0),
                (1, experts.count, 1.0),
                // Some values exceed the limit of the clamped unit.
                (experts.count, experts.n_ff, 9.0),
                (experts.count, experts.n_ff, 9.0),
                (experts.count, n_embd, 1.0),
            ] {
                self.push(TensorType::F32, rows, cols, magnitude);
            }
        }
    }

    fn push_gemma4(&mut self) {
        if !self.config.normalizes_values {
            return;
        }
        let (n_embd, experts) = (self.config.n_embd, self.config.experts);
        for _ in 0..self.config.n_layers {
            let of_experts = experts.map_or(1, |it| it.count);
            for width in [n_embd, n_embd, n_embd, n_embd, of_experts, 1] {
                self.push(TensorType::F32, 1, width, 1.0);
            }
        }
    }

    fn push_choice_biases(&mut self) {
        let Some(experts) = self.config.experts.filter(|it| it.has_choice_bias) else {
            return;
        };
        for _ in 0..self.config.n_layers {
            // Sigmoids are between 0 and 1.
            self.push(TensorType::F32, 1, experts.count, 0.4);
        }
    }

    /// Bias of each expert of a layer, which only chooses.
    fn choice_bias(&self, layer: usize) -> Option<TensorView<'_>> {
        self.config.experts.filter(|it| it.has_choice_bias)?;
        let first = self.tensors.len() - self.config.n_layers;
        Some(self.tensors[first + layer].view())
    }

    /// One of the additional tensors of a layer of Gemma 4.
    fn gemma4(&self, layer: usize, index: usize) -> Option<TensorView<'_>> {
        let all = self.config.n_layers * GEMMA4;
        let first = || self.tensors.len() - all + layer * GEMMA4;
        let has_them = self.config.normalizes_values;
        has_them.then(|| self.tensors[first() + index].view())
    }

    /// One of the additional tensors of a layer of gpt-oss.
    fn more(&self, layer: usize, index: usize) -> Option<TensorView<'_>> {
        self.config.experts.filter(|it| it.has_biases)?;
        let all = self.config.n_layers * MORE_PER_LAYER;
        let first = self.tensors.len() - all + layer * MORE_PER_LAYER;
        Some(self.tensors[first + index].view())
    }

    fn push(&mut self, ty: TensorType, rows: usize, cols: usize, magnitude: f32) {
        self.tensors.push(Tensor {
            ty,
            rows,
            cols,
            magnitude,
            data: Vec::new(),
        });
    }

    /// Fills the tensors on all cores: the large models of benchmarks would take one core several seconds.
    fn fill(&mut self) {
        let tensors = self.tensors.iter_mut().chain(&mut self.layer_inputs);
        let todo = Mutex::new((1..).zip(tensors));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let Some((seed, tensor)) = todo.lock().expect("no panic").next() else {
                            return;
                        };
                        let &mut Tensor {
                            ty,
                            rows,
                            cols,
                            magnitude,
                            ..
                        } = tensor;
                        tensor.data = random_rows(ty, rows, cols, magnitude, seed);
                    }
                });
            }
        });
    }

    pub fn weights(&self) -> FileWeights<'_> {
        let view = |index: usize| self.tensors[index].view();
        let linear = |index, bias: Option<usize>| Linear {
            weight: view(index),
            bias: bias.map(view),
        };
        let more = self.more(0, 0).map_or(0, |_| MORE_PER_LAYER)
            + self.of_recurrence()
            + self.gemma4(0, 0).map_or(0, |_| GEMMA4)
            + self.choice_bias(0).map_or(0, |_| 1);
        let post_norms = self.tensors.len() - (2 + more) * self.config.n_layers;
        let post_norm = |n: usize| self.has_post_norms.then(|| view(post_norms + n));
        let layer = |n: usize| {
            let at = |index: usize| n * PER_LAYER + index;
            let has_window = self.config.positions.window_of(n).is_some();
            let (kv, parts) = match self.config.normalizes_values && !has_window {
                _ if n >= self.config.kv_layers() => (KvOrigin::Earlier, [0, 0, 0]),
                true => (KvOrigin::KeysAreValues, [0, 1, 1]),
                false => (KvOrigin::Projected, [0, 1, 2]),
            };
            let has_k_norm = self.has_head_norms && kv != KvOrigin::Earlier;
            let attention = || Attention {
                qkv: parts.map(|part| linear(at(part), Some(at(11 + part)))),
                kv,
                q_norm: self.has_head_norms.then(|| view(at(9))),
                k_norm: has_k_norm.then(|| view(at(10))),
                sinks: self.more(n, 0),
                output: Linear {
                    weight: view(at(3)),
                    bias: self.more(n, 1),
                },
            };
            let mixer = || Block {
                norm: view(at(7)),
                part: self
                    .recurrent(n)
                    .unwrap_or_else(|| Mixer::Attention(attention())),
                post_norm: post_norm(2 * n),
            };
            let feed_forward = || Block {
                norm: view(at(8)),
                part: self.feed_forward(n),
                post_norm: post_norm(2 * n + 1),
            };
            Layer {
                mixer: self.config.has_mixer(n).then(mixer),
                feed_forward: self.config.has_feed_forward(n).then(feed_forward),
                input: self.layer_input(n),
                output_scale: self.gemma4(n, 5),
            }
        };
        let n_layers = self.config.n_layers;
        let last = n_layers * PER_LAYER;
        FileWeights {
            token_embd: (!self.tied).then(|| view(last)),
            layer_inputs: self.layer_inputs(),
            layers: (0..n_layers).map(layer).collect(),
            output_norm: view(last + 2),
            output: linear(if self.tied { last } else { last + 1 }, None),
        }
    }

    fn feed_forward(&self, layer: usize) -> FeedForward<TensorView<'_>, TensorView<'_>> {
        let linear = |index: usize| FileLinear {
            weight: self.tensors[index].view(),
            bias: None,
        };
        let has_gate = self.config.activation != Activation::Relu;
        let gate = |up: usize| if has_gate { up - 1 } else { up };
        let unit = |first: usize| GatedUnit {
            gate_up: [gate(first + 1), first + 1].map(linear),
            has_gate,
            down: linear(first + 2),
        };
        let Some(config) = self.config.experts_of(layer).copied() else {
            return FeedForward::Dense(unit(layer * PER_LAYER + 4));
        };
        let first = self.config.n_layers * PER_LAYER + 3 + layer * EXPERTS_PER_LAYER;
        let biased = |index: usize, bias: usize| FileLinear {
            bias: self.more(layer, bias),
            ..linear(index)
        };
        FeedForward::Experts(Experts {
            config,
            router: biased(first, 2),
            choice_bias: self.choice_bias(layer),
            unit: GatedUnit {
                gate_up: [biased(gate(first + 2), 3), biased(first + 2, 4)],
                has_gate,
                down: biased(first + 3, 5),
            },
            output_scales: self.gemma4(layer, 4),
            beside: config.beside_dense.then(|| {
                let norm = |index| self.gemma4(layer, index).expect("a tensor of Gemma 4");
                DenseBeside {
                    unit: unit(layer * PER_LAYER + 4),
                    post_norm: norm(0),
                    experts_norm: norm(1),
                    experts_post_norm: norm(2),
                    router_scale: norm(3),
                }
            }),
            shared: config.shared_n_ff.map(|_| SharedExpert {
                weigher: config.gates_shared.then(|| linear(first + 4)),
                unit: unit(first + 5),
            }),
        })
    }

    /// Replaces the first value of the embedding of `token` by a NaN.
    pub fn poison(&mut self, token: usize) {
        let table = self.config.n_layers * PER_LAYER;
        let table = &mut self.tensors[table];
        let at = token * table.data.len() / table.rows;
        table.data[at..at + 2].fill(0xFF);
    }

    pub fn load(&self, threads: u32) -> CpuExecutor {
        let device = Device::open(Some(threads), Isa::detect());
        self.load_with(device.expect("threads"), &options())
            .expect("a model that fits")
    }

    pub fn load_portable(&self) -> CpuExecutor {
        let device = Device::open(Some(2), Isa::portable());
        self.load_with(device.expect("threads"), &options())
            .expect("a model that fits")
    }

    pub fn load_with(&self, device: Device, options: &LoadOptions) -> Result<CpuExecutor, Fault> {
        CpuExecutor::load(
            device,
            Source {
                config: &self.config,
                weights: &self.weights(),
                file: None,
                retained: None,
            },
            options,
            &mut |_, _| (),
        )
    }
}

pub fn options() -> LoadOptions {
    LoadOptions {
        kv_cache_bytes: Some(64 << 20),
        max_batch_tokens: 400,
        max_sequence_tokens: 512,
        role: worker_orcd_ipc::Role::Active,
        kv_readers: KvReaders::None,
        lent: 0,
        beside: Beside::default(),
        model: "random".to_owned(),
    }
}

/// Bits of one shown row.
pub type Bits = Vec<u32>;

/// Results of one sequence: the last layer's output at every position, the
/// logits of each draw, and the logits at every position, which log probabilities of prompts use.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Seen {
    pub hidden: Vec<(u32, Bits)>,
    pub logits: Vec<(u32, Bits)>,
    pub prompt: Vec<(u32, Bits)>,
}

/// Tap that collects rows by request; a request's id is its index.
#[derive(Debug, Default)]
pub struct Watch {
    pub seen: Vec<Seen>,
    /// `None` requests logits alone, so the device may skip all other outputs.
    pub last_layer: Option<u32>,
}

impl Watch {
    pub fn new(requests: usize, config: &ModelConfig) -> Self {
        Self {
            seen: vec![Seen::default(); requests],
            last_layer: Some(config.n_layers as u32 - 1),
        }
    }

    pub fn logits(requests: usize) -> Self {
        Self {
            seen: vec![Seen::default(); requests],
            last_layer: None,
        }
    }
}

impl Tap for Watch {
    fn wants(&self, _: RequestId, checkpoint: &Checkpoint) -> bool {
        match checkpoint {
            Checkpoint::Logits => true,
            Checkpoint::PromptLogits => self.last_layer.is_some(),
            other => self.last_layer.map(Checkpoint::Layer) == Some(*other),
        }
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, row: &[f32]) {
        let bits = row.iter().map(|v| v.to_bits()).collect();
        let seen = &mut self.seen[request.0 as usize];
        match checkpoint {
            Checkpoint::Logits => seen.logits.push((position, bits)),
            Checkpoint::PromptLogits => seen.prompt.push((position, bits)),
            _ => seen.hidden.push((position, bits)),
        }
    }
}

/// `count` tokens without an early repetition.
pub fn tokens(count: usize, seed: usize) -> Vec<TokenId> {
    (0..count)
        .map(|i| TokenId(((i * i + i * 37 + seed * 11) % 101) as u32))
        .collect()
}

/// Tokens of one request, to run from a position on.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    pub request: usize,
    pub tokens: &'a [TokenId],
    pub first: usize,
    /// Pages of its blocks: each block has a number, followed by the pages of all groups of layers.
    pub pages: &'a [PageId],
}

/// Runs tokens of a single sequence, and returns the results.
pub fn run(
    executor: &mut impl Executor,
    model: &Model,
    first: usize,
    tokens: &[TokenId],
    pages: &[PageId],
) -> Seen {
    let mut watch = Watch::new(1, &model.config);
    let share = Share {
        request: 0,
        tokens,
        first,
        pages,
    };
    step(executor, &[share], &mut watch).expect("a step");
    watch.seen.remove(0)
}

/// Runs one step; every share draws a token.
pub fn step(
    executor: &mut impl Executor,
    shares: &[Share<'_>],
    watch: &mut Watch,
) -> Result<Vec<Drawn>, Fault> {
    let groups = executor.kv_geometry().groups.count() as u32;
    let tables = shares.iter().map(|share| page_table(share.pages, groups));
    let tables: Vec<_> = tables.collect();
    step_with_tables(executor, shares, &tables, watch)
}

/// Pages of blocks.
pub fn page_table(blocks: &[PageId], groups: u32) -> Vec<PageId> {
    let pages = blocks
        .iter()
        .map(|block| block.0 * groups..(block.0 + 1) * groups);
    pages.flatten().map(PageId).collect()
}

/// Parts of blocks, with a page of each group.
pub fn parts_of(blocks: &[PageId], tokens: &[u32], groups: usize) -> Vec<PagePart> {
    let pages = page_table(blocks, groups as u32);
    let pages = pages.chunks_exact(groups).zip(tokens);
    let parts = pages.flat_map(|(pages, &tokens)| {
        (0..).zip(pages).map(move |(group, &page)| PagePart {
            page,
            group,
            tokens,
        })
    });
    parts.collect()
}

/// Copies of these parts, with their checksums, to pages of the same numbers.
pub fn copies_of(parts: &[PagePart], sums: Vec<u128>) -> Vec<PageCopy> {
    let copies = parts.iter().zip(sums).map(|(part, checksum)| PageCopy {
        from: part.page.0,
        to: part.page,
        group: part.group,
        tokens: part.tokens,
        checksum,
    });
    copies.collect()
}

/// Groups of pages, and bytes of the KV cache.
pub fn kv_shape(executor: &impl Executor) -> (usize, u64) {
    let geometry = executor.kv_geometry();
    let bytes = u64::from(geometry.pages) * geometry.page_bytes;
    (geometry.groups.count(), bytes)
}

/// Runs one step with these page tables for the shares.
pub fn step_with_tables(
    executor: &mut impl Executor,
    shares: &[Share<'_>],
    tables: &[Vec<PageId>],
    watch: &mut Watch,
) -> Result<Vec<Drawn>, Fault> {
    let pages = executor.kv_geometry().pages;
    let last = tables.iter().flatten().map(|page| page.0).max();
    assert!(last < Some(pages), "page {last:?} of a cache of {pages}");
    let sampling = SampleWork::new(Sampling::default(), &[], &[]);
    let sequences: Vec<SequenceWork<'_>> = shares
        .iter()
        .zip(tables)
        .map(|(share, pages)| SequenceWork {
            request: RequestId(share.request as u64),
            tokens: share.tokens,
            first_position: share.first as u32,
            pages,
            sample: Some(sampling),
            drafts: 0,
        })
        .collect();
    executor.step(
        &Batch {
            step: 7,
            sequences: &sequences,
        },
        watch,
    )
}

/// `count` pages from `first` on, in another order.
pub fn pages(first: u32, count: u32) -> Vec<PageId> {
    (first..first + count).rev().map(PageId).collect()
}

/// Runs one sequence alone, `chunk` tokens a step.
pub fn alone(
    executor: &mut impl Executor,
    config: &ModelConfig,
    tokens: &[TokenId],
    chunk: usize,
) -> Seen {
    let pages = pages(0, tokens.len().div_ceil(32) as u32);
    let mut watch = Watch::new(1, config);
    for (index, some) in tokens.chunks(chunk).enumerate() {
        let share = Share {
            request: 0,
            tokens: some,
            first: index * chunk,
            pages: &pages,
        };
        step(executor, &[share], &mut watch).expect("a step");
    }
    watch.seen.remove(0)
}
