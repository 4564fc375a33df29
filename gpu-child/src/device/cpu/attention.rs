//! Attention of a layer. A batch is items of (rows, key-value head), walked span by span.

use super::forward::{FEW_TOKENS, Forward};
use super::kv::KvCache;
use super::linear::{Epilogue, FEW_ROWS, Share};
use super::plan::{Item, Plan, Row, Walk};
use super::pool::{Disjoint, Pool};
use super::scratch::Scratch;
use super::weights::{self, MixerBlock};
use crate::device::common::layer_groups::Place;
use crate::model::{Heads, KvOrigin, ModelConfig};
use std::ops::Range;
use worker_orcd_kernels::cpu::attention::MAX_ROWS;
use worker_orcd_kernels::cpu::convert::to_f16;
use worker_orcd_kernels::cpu::{
    Isa, KvTile, Partial, QueryRow, RopeRow, SPAN_TOKENS, TILE_TOKENS, apply_rope, attention_span,
    finish, merge, rmsnorm, sigmoid,
};

/// Division of an item's spans among threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// A single thread computes all spans of an item and merges them.
    Whole,
    /// Spans are separate items, with results in slots of this many rows, and merged afterwards.
    BySpan { rows_in_slot: usize },
}

/// Results of spans that are merged later.
#[derive(Debug)]
pub struct Partials {
    accs: Vec<f32>,
    partials: Vec<Partial>,
}

const NOTHING: Partial = Partial {
    max: f32::NEG_INFINITY,
    sum: 0.0,
};

impl Partials {
    /// Maximum number of stored rows (a query head over one span): a few megabytes at the usual head sizes. Beyond
    /// that, items are walked whole.
    const MOST_ROWS: usize = 8192;

    #[must_use]
    pub fn new(config: &ModelConfig, threads: usize, max_sequence_tokens: usize) -> Self {
        let spans = max_sequence_tokens.div_ceil(SPAN_TOKENS);
        let in_group = config.heads().map(|heads| heads.group()).max();
        let heads = MAX_ROWS.max(in_group.unwrap_or(0));
        let rows = if threads > 1 {
            (spans * heads * 4 * threads).min(Self::MOST_ROWS)
        } else {
            0
        };
        let head_dim = config.heads().map(|heads| heads.dim).max().unwrap_or(0);
        Self {
            accs: vec![0.0; rows * head_dim],
            partials: vec![NOTHING; rows],
        }
    }

    #[must_use]
    pub fn capacity(&self) -> usize {
        self.partials.len()
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.accs) + size_of_val(&*self.partials)
    }
}

/// Adds attention's output to the residual stream of all rows.
pub fn run(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    index: usize,
    (block, of_layer): (&MixerBlock, &weights::Attention),
    kv: &mut KvCache,
    scratch: &mut Scratch,
) {
    let config = forward.config;
    let tokens = plan.rows.len();
    let heads = config.heads_of(index);
    let (heads_width, kv_width) = (heads.width(), heads.kv_width());
    let q_width = config.queries_width_of(heads_width);
    let qkv_width = match of_layer.has_kv() {
        true => q_width + 2 * kv_width,
        false => q_width,
    };
    let Scratch {
        x,
        qkv,
        attn,
        norm,
        quantized,
        rope,
        partials,
        ..
    } = scratch;
    let (x, qkv) = (
        &mut x[..tokens * config.n_embd],
        &mut qkv[..tokens * qkv_width],
    );
    let attn = &mut attn[..tokens * heads_width];

    let columns = [0, q_width, q_width + kv_width];
    let projections = of_layer.projections().iter().zip(columns);
    let projections: Vec<_> = projections
        .map(|(linear, column)| forward.projection(linear, column))
        .collect();
    let norm = &mut norm[..tokens * config.n_embd];
    forward.normalize(x, forward.weights.vector(&block.norm), norm);
    forward.device.quantize(
        norm,
        config.n_embd,
        &projections.iter().map(|p| p.weight).collect::<Vec<_>>(),
        quantized,
    );
    let input = quantized.view(norm, config.n_embd);
    forward.device.project(
        &input,
        &Share::all(tokens),
        &projections,
        qkv,
        Epilogue::Store,
    );

    rope_and_append_kv(forward, plan, index, of_layer, rope, qkv, kv);
    let attention = Attention {
        isa: forward.device.isa,
        shape: heads,
        plan,
        walk: plan.walk(config.positions.window_of(index)),
        sinks: of_layer.sinks.as_ref().map(|it| forward.weights.vector(it)),
        kv,
        place: kv.place_of(index),
        qkv,
    };
    attention.run(&forward.device.pool, partials, attn);
    if config.gates_attention {
        multiply_by_gates(forward, qkv, attn, heads_width);
    }

    let output = [forward.projection(&of_layer.output, 0)];
    forward
        .device
        .quantize(attn, heads_width, &[output[0].weight], quantized);
    let input = quantized.view(attn, heads_width);
    let post_norm = block.post_norm.as_ref();
    forward.add_to_stream(&input, &output, post_norm, norm, x);
}

/// Multiplies attention's output by the sigmoid of the gates, which are behind the queries of each row of `qkv`.
fn multiply_by_gates(forward: &Forward<'_>, qkv: &[f32], attn: &mut [f32], width: usize) {
    let tokens = attn.len() / width;
    let qkv_width = qkv.len() / tokens;
    let attn = Disjoint::new(attn);
    forward.device.for_tokens(tokens, FEW_ROWS, &|t| {
        // SAFETY: token t's own row.
        let attn = unsafe { attn.part(t * width, width) };
        let gates = &qkv[t * qkv_width + width..][..width];
        attn.iter_mut()
            .zip(gates)
            .for_each(|(x, &gate)| *x *= sigmoid(gate));
    });
}

/// Moves the gates, which follow the queries of each head, behind all queries.
fn separate_gates(row: &mut [f32], head_dim: usize) {
    let mixed = row.to_vec();
    let (queries, gates) = row.split_at_mut(mixed.len() / 2);
    let heads = queries
        .chunks_exact_mut(head_dim)
        .zip(gates.chunks_exact_mut(head_dim));
    for ((queries, gates), mixed) in heads.zip(mixed.chunks_exact(2 * head_dim)) {
        queries.copy_from_slice(&mixed[..head_dim]);
        gates.copy_from_slice(&mixed[head_dim..]);
    }
}

/// Norms of queries and of keys.
type Norms<'a> = [Option<&'a [f32]>; 2];

/// Norms over all heads of a row, and over each head.
fn norms_of<'a>(forward: &Forward<'a>, attention: &weights::Attention) -> (Norms<'a>, Norms<'a>) {
    let norms = [&attention.q_norm, &attention.k_norm]
        .map(|norm| norm.as_ref().map(|norm| forward.weights.vector(norm)));
    match forward.config.has_joint_norms {
        true => (norms, [None; 2]),
        false => ([None; 2], norms),
    }
}

/// Applies norms and RoPE to queries and keys, and writes keys and values to the cache, if the layer has its own. Queries are
/// also multiplied by the attention scale and their temperature.
fn rope_and_append_kv(
    forward: &Forward<'_>,
    plan: &Plan<'_>,
    index: usize,
    attention: &weights::Attention,
    angles: &[RopeRow],
    qkv: &mut [f32],
    kv: &mut KvCache,
) {
    let (config, isa) = (forward.config, forward.device.isa);
    let ropes = config.ropes().count();
    let rotation = config.rope_of(index);
    let rotation = rotation.and_then(|place| Some((place, config.ropes().nth(place)?)));
    let normalize = |values: &mut [f32], norm: Option<&[f32]>| {
        if let Some(norm) = norm {
            let plain = values.to_vec();
            rmsnorm(isa, &plain, norm, config.norm_eps, values);
        }
    };
    let turn = |head: &mut [f32], norm: Option<&[f32]>, token: usize| {
        normalize(head, norm);
        if let Some((place, rope)) = rotation {
            apply_rope(head, rope, &angles[token * ropes + place]);
        }
    };
    let ([joint_q, joint_k], [q_norm, k_norm]) = norms_of(forward, attention);
    let heads = config.heads_of(index);
    let head_dim = heads.dim;
    let queries_width = config.queries_width_of(heads.width());
    let ones = vec![1.0; head_dim];
    let tokens = plan.rows.len();
    let width = qkv.len() / tokens;
    let scale = config.attention_scale as f32;
    let place = kv.place_of(index);
    let (qkv, writer) = (Disjoint::new(qkv), kv.writer(place));
    forward.device.for_tokens(tokens, FEW_TOKENS, &|t| {
        let row: &Row = &plan.rows[t];
        let scale = scale * config.positions.temperature_at(row.position);
        // SAFETY: token t's own row.
        let qkv = unsafe { qkv.part(t * width, width) };
        let (queries, kv) = qkv.split_at_mut(queries_width);
        if config.gates_attention {
            separate_gates(queries, head_dim);
        }
        let queries = &mut queries[..heads.width()];
        // Both are empty if the layer has those of an earlier one.
        let (keys, values) = kv.split_at_mut(kv.len() / 2);
        if attention.kv == KvOrigin::KeysAreValues {
            values.copy_from_slice(keys);
        }
        normalize(queries, joint_q);
        normalize(keys, joint_k);
        for q in queries.chunks_exact_mut(head_dim) {
            turn(q, q_norm, t);
            q.iter_mut().for_each(|q| *q *= scale);
        }
        for k in keys.chunks_exact_mut(head_dim) {
            turn(k, k_norm, t);
        }
        if config.normalizes_values {
            for v in values.chunks_exact_mut(head_dim) {
                let plain = v.to_vec();
                rmsnorm(isa, &plain, &ones, config.norm_eps, v);
            }
        }
        let (page, slot) = plan.place(row, place.group);
        let mut halves = [vec![0; head_dim], vec![0; head_dim]];
        let pairs = keys
            .chunks_exact(head_dim)
            .zip(values.chunks_exact(head_dim));
        for (head, (key, value)) in pairs.enumerate() {
            to_f16(isa, key, &mut halves[0]);
            to_f16(isa, value, &mut halves[1]);
            // SAFETY: the scheduler gives a position that is written to one sequence alone,
            // and a sequence's rows are different positions.
            unsafe { writer.write(page, head, slot, &halves[0], &halves[1]) };
        }
    });
}

/// The attention of one layer over a batch, behind its projections.
#[derive(Debug)]
struct Attention<'a> {
    isa: Isa,
    /// Heads of the layer.
    shape: Heads,
    plan: &'a Plan<'a>,
    /// Walk of the layer.
    walk: &'a Walk,
    /// `[n_heads]`, if the layer has sinks.
    sinks: Option<&'a [f32]>,
    kv: &'a KvCache,
    /// Place of the layer in the cache.
    place: Place,
    /// `[tokens, qkv_width]`, queries first, rotated and scaled.
    qkv: &'a [f32],
}

impl Attention<'_> {
    /// Computes `out`, `[tokens, n_heads * head_dim]`.
    fn run(&self, pool: &Pool, partials: &mut Partials, out: &mut [f32]) {
        match self.walk.split {
            Split::Whole => self.run_whole(pool, out),
            Split::BySpan { rows_in_slot } => self.run_by_span(pool, rows_in_slot, partials, out),
        }
    }

    fn run_whole(&self, pool: &Pool, out: &mut [f32]) {
        let out = Disjoint::new(out);
        pool.run(self.walk.items.len(), &|index| {
            let item = &self.walk.items[index];
            let count = self.heads(item).count();
            let mut accs = vec![0.0; count * self.shape.dim];
            let mut partials = vec![NOTHING; count];
            for span in item.spans.clone() {
                self.walk(item, span, &mut partials, &mut accs);
            }
            self.finish(item, &partials, &mut accs, &out);
        });
    }

    fn run_by_span(&self, pool: &Pool, rows_in_slot: usize, room: &mut Partials, out: &mut [f32]) {
        let head_dim = self.shape.dim;
        let slots: Vec<(&Item, usize)> = self.slots().collect();
        let accs = Disjoint::new(&mut room.accs);
        let partials = Disjoint::new(&mut room.partials);
        pool.run(slots.len(), &|slot| {
            let (item, span) = slots[slot];
            let (first, count) = (slot * rows_in_slot, self.heads(item).count());
            // SAFETY: each slot has rows of its own.
            let (accs, partials) = unsafe {
                (
                    accs.part(first * head_dim, count * head_dim),
                    partials.part(first, count),
                )
            };
            partials.fill(NOTHING);
            self.walk(item, span, partials, accs);
        });
        let out = Disjoint::new(out);
        let mut slot = 0;
        for item in &self.walk.items {
            let count = self.heads(item).count();
            let base = slot * rows_in_slot;
            for _ in item.spans.clone().skip(1) {
                slot += 1;
                self.merge_slot(room, base, slot * rows_in_slot, count);
            }
            slot += 1;
            let partials = room.partials[base..][..count].to_vec();
            let accs = &mut room.accs[base * head_dim..][..count * head_dim];
            self.finish(item, &partials, accs, &out);
        }
    }

    fn merge_slot(&self, room: &mut Partials, base: usize, slot: usize, count: usize) {
        let head_dim = self.shape.dim;
        let (before, from) = room.accs.split_at_mut(slot * head_dim);
        for r in 0..count {
            let next = room.partials[slot + r];
            let acc = &mut before[(base + r) * head_dim..][..head_dim];
            fold(
                &mut room.partials[base + r],
                acc,
                next,
                &from[r * head_dim..][..head_dim],
            );
        }
    }

    fn slots(&self) -> impl Iterator<Item = (&Item, usize)> {
        self.walk
            .items
            .iter()
            .flat_map(|item| item.spans.clone().map(move |span| (item, span)))
    }

    /// `(row, head)` of all outputs of an item.
    fn heads(&self, item: &Item) -> impl Iterator<Item = (usize, usize)> + use<> {
        let in_group = self.shape.group();
        let heads = item.kv_head * in_group..(item.kv_head + 1) * in_group;
        item.rows
            .clone()
            .flat_map(move |row| heads.clone().map(move |head| (row, head)))
    }

    /// Adds one span to every head of an item that sees some of it.
    fn walk(&self, item: &Item, span: usize, partials: &mut [Partial], accs: &mut [f32]) {
        let head_dim = self.shape.dim;
        let seeing: Vec<(usize, QueryRow<'_>)> = self
            .heads(item)
            .enumerate()
            .filter_map(|(i, (row, head))| Some((i, self.query(row, head, span)?)))
            .collect();
        let Some(to) = seeing.iter().map(|(_, query)| query.to).max() else {
            return;
        };
        let mut tiles = Vec::with_capacity(SPAN_TOKENS / TILE_TOKENS);
        tiles.extend(self.tiles(item, span, 0..to.div_ceil(TILE_TOKENS)));
        let mut fresh = vec![0.0; MAX_ROWS.min(seeing.len()) * head_dim];
        for some in seeing.chunks(MAX_ROWS) {
            let mut queries = [some[0].1; MAX_ROWS];
            for (query, (_, own)) in queries.iter_mut().zip(some) {
                *query = *own;
            }
            let fresh = &mut fresh[..some.len() * head_dim];
            let spans = attention_span(self.isa, &queries[..some.len()], &tiles, fresh);
            for ((&(i, _), partial), fresh) in
                some.iter().zip(spans).zip(fresh.chunks_exact(head_dim))
            {
                fold(
                    &mut partials[i],
                    &mut accs[i * head_dim..][..head_dim],
                    partial,
                    fresh,
                );
            }
        }
    }

    /// The part of a span that a head of a row sees; `None` if it is empty.
    fn query(&self, row: usize, head: usize, span: usize) -> Option<QueryRow<'_>> {
        let (head_dim, width) = (self.shape.dim, self.qkv.len() / self.plan.rows.len());
        let position = self.plan.rows[row].position as usize;
        let start = span * SPAN_TOKENS;
        let from = self.walk.first_seen(position).max(start);
        let to = (position + 1).min(start + SPAN_TOKENS);
        (from < to).then(|| QueryRow {
            q: &self.qkv[row * width + head * head_dim..][..head_dim],
            from: from - start,
            to: to - start,
        })
    }

    fn tiles(
        &self,
        item: &Item,
        span: usize,
        tiles: Range<usize>,
    ) -> impl Iterator<Item = KvTile<'_>> {
        let sequence = self.plan.rows[item.rows.start].sequence;
        let first = span * (SPAN_TOKENS / TILE_TOKENS);
        tiles.map(move |tile| {
            let page = self.plan.page(sequence, first + tile, self.place.group);
            self.kv.tile(page, self.place, item.kv_head)
        })
    }

    fn finish(&self, item: &Item, partials: &[Partial], accs: &mut [f32], out: &Disjoint<'_, f32>) {
        let head_dim = self.shape.dim;
        let width = self.shape.width();
        let heads = self
            .heads(item)
            .zip(partials)
            .zip(accs.chunks_exact_mut(head_dim));
        for (((row, head), &partial), acc) in heads {
            finish(partial, self.sinks.map(|sinks| sinks[head]), acc);
            // SAFETY: this head of this row belongs to this item alone.
            unsafe { out.part(row * width + head * head_dim, head_dim) }.copy_from_slice(acc);
        }
    }
}

/// Merges a span into the accumulator; the first span that a head sees initializes it.
fn fold(so_far: &mut Partial, acc: &mut [f32], next: Partial, next_acc: &[f32]) {
    if *so_far == NOTHING {
        *so_far = next;
        acc.copy_from_slice(next_acc);
    } else if next != NOTHING {
        merge(so_far, acc, next, next_acc);
    }
}
