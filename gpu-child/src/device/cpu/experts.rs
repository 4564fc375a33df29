//! Feed-forward part of a mixture of experts.
//!
//! ```text
//! norm ─ router ─ choices ─ places ─┬─ rows by expert ─ gate, up ─ ff ─ down ─ rows ─┐
//!   │                               └───────────── weights, in order of choice ──────┴─ added to x
//!   └─ shared expert ───────────── weighted by its own product, if it has one ──────────┘
//! ```
//!
//! A row is copied once for each expert that it uses, so that the rows of an expert are consecutive and its weights are
//! read once a step. Gemma 4 has a dense unit beside the experts, and norms around each of them ([`run_beside`]).
//!
//! The choices of a row, its experts' outputs and the order of their addition depend on the row
//! alone; only its place among the copies depends on other rows.

use super::forward::Forward;
use super::linear::{Epilogue, FEW_ROWS, Projection, Share};
use super::pool::Disjoint;
use super::scratch::{ExpertRoom, Quantized, Scratch};
use super::weights::{DenseBeside, Experts, GatedUnit, Vector};
use worker_orcd_kernels::Router;
use worker_orcd_kernels::cpu::{Choice, add_weighted, rmsnorm, route, sigmoid};

/// Adds the experts' outputs for `scratch.norm` to the residual stream.
pub fn run(forward: &Forward<'_>, experts: &Experts, tokens: usize, scratch: &mut Scratch) {
    let values = tokens * forward.config.n_embd;
    let (norm, ff) = (&scratch.norm[..values], &mut scratch.ff);
    let (quantized, room) = (&mut scratch.quantized, &mut scratch.experts);
    choose(forward, experts, norm, quantized, room);
    through_chosen(forward, experts, norm, ff, quantized, room);
    if let Some(shared) = &experts.shared {
        let rows = &mut room.shared[..norm.len()];
        rows.copy_from_slice(norm);
        let all = Share::all(tokens);
        through(forward, (&shared.unit, 1), &all, rows, ff, quantized);
    }
    add_all(forward, experts, room, &mut scratch.x[..values]);
}

/// Adds the outputs of the experts and of the dense unit beside them, each through its norm, to the residual stream,
/// through `post_norm` if there is one. `scratch.norm` has the dense unit's input.
pub fn run_beside(
    forward: &Forward<'_>,
    (experts, dense): (&Experts, &DenseBeside),
    post_norm: Option<&Vector>,
    tokens: usize,
    scratch: &mut Scratch,
) {
    let n_embd = forward.config.n_embd;
    let values = tokens * n_embd;
    let (x, norm) = (&mut scratch.x[..values], &mut scratch.norm[..values]);
    let (ff, quantized, room) = (
        &mut scratch.ff,
        &mut scratch.quantized,
        &mut scratch.experts,
    );
    let (down, input) = forward.inner(&dense.unit, norm, ff, quantized);
    let (all, of_dense) = (Share::all(tokens), &mut room.shared[..norm.len()]);
    let device = forward.device;
    device.project(&input, &all, &down, of_dense, Epilogue::Store);

    forward.normalize(x, forward.weights.vector(&dense.router_scale), norm);
    let factor = 1.0 / (n_embd as f32).sqrt();
    norm.iter_mut().for_each(|value| *value *= factor);
    choose(forward, experts, norm, quantized, room);
    forward.normalize(x, forward.weights.vector(&dense.experts_norm), norm);
    through_chosen(forward, experts, norm, ff, quantized, room);

    let [of_dense, of_experts] =
        [&dense.post_norm, &dense.experts_post_norm].map(|it| forward.weights.vector(it));
    let post_norm = post_norm.map(|norm| forward.weights.vector(norm));
    let (room, x) = (&*room, Disjoint::new(x));
    let (isa, eps) = (device.isa, forward.config.norm_eps);
    device.for_tokens(tokens, FEW_ROWS, &|t| {
        // SAFETY: token t's own row.
        let x = unsafe { x.part(t * n_embd, n_embd) };
        let [mut sum, mut normalized] = [vec![0.0; n_embd], vec![0.0; n_embd]];
        add_chosen(experts, room, t, &mut sum);
        rmsnorm(isa, &sum, of_experts, eps, &mut normalized);
        let dense = &room.shared[t * n_embd..][..n_embd];
        rmsnorm(isa, dense, of_dense, eps, &mut sum);
        sum.iter_mut().zip(&normalized).for_each(|(a, b)| *a += b);
        if let Some(weight) = post_norm {
            rmsnorm(isa, &sum, weight, eps, &mut normalized);
            sum.copy_from_slice(&normalized);
        }
        x.iter_mut().zip(sum).for_each(|(x, y)| *x += y);
    });
}

/// Experts of each row, with their weights, which include the factors of their outputs.
fn choose(
    forward: &Forward<'_>,
    experts: &Experts,
    norm: &[f32],
    quantized: &mut Quantized,
    room: &mut ExpertRoom,
) {
    let (n_embd, config) = (forward.config.n_embd, &experts.config);
    let tokens = norm.len() / n_embd;
    let router = forward.projection(&experts.router, 0);
    let weigher = experts.shared.as_ref();
    let weigher = weigher.and_then(|shared| shared.weigher.as_ref());
    let weigher = weigher.map(|weigher| forward.projection(weigher, config.count));
    let projections: Vec<Projection<'_>> = [router].into_iter().chain(weigher).collect();
    let weights: Vec<_> = projections.iter().map(|it| it.weight).collect();
    forward.device.quantize(norm, n_embd, &weights, quantized);
    let input = quantized.view(norm, n_embd);
    let width = config.logits();
    let logits = &mut room.logits[..tokens * width];
    let all = Share::all(tokens);
    let device = forward.device;
    device.project(&input, &all, &projections, logits, Epilogue::Store);

    let [bias, scales] = [&experts.choice_bias, &experts.output_scales]
        .map(|vector| vector.as_ref().map(|it| forward.weights.vector(it)));
    let router = Router {
        weighing: config.weighing,
        choice_bias: bias,
        scale: config.scale,
    };
    let (logits, choices) = (Disjoint::new(logits), Disjoint::new(&mut room.choices));
    device.for_tokens(tokens, FEW_ROWS, &|t| {
        let (first, used) = (t * config.used, config.used);
        // SAFETY: token t's own parts.
        let (logits, chosen) = unsafe {
            (
                logits.part(t * width, config.count),
                choices.part(first, used),
            )
        };
        route(logits, &router, chosen);
        if let Some(scales) = scales {
            let scaled = chosen.iter_mut();
            scaled.for_each(|choice| choice.weight *= scales[choice.expert]);
        }
    });
}

/// Applies the chosen experts to rows of `norm`; the results are in `room.rows`.
fn through_chosen(
    forward: &Forward<'_>,
    experts: &Experts,
    norm: &[f32],
    ff: &mut [f32],
    quantized: &mut Quantized,
    room: &mut ExpertRoom,
) {
    let n_embd = forward.config.n_embd;
    let places = &mut room.places[..norm.len() / n_embd * experts.config.used];
    let choices = &room.choices[..places.len()];
    sort(choices, experts.config.count, places, &mut room.shares);
    let rows = &mut room.rows[..places.len() * n_embd];
    gather(forward, norm, places, rows);
    let (unit, count) = (&experts.unit, experts.config.count);
    through(forward, (unit, count), &room.shares, rows, ff, quantized);
}

/// Assigns each choice its place among the rows by expert, and each expert its share of them.
fn sort(choices: &[Choice], experts: usize, places: &mut [usize], shares: &mut Vec<Share>) {
    shares.clear();
    shares.extend((0..experts).map(|expert| Share { expert, rows: 0..0 }));
    for choice in choices {
        shares[choice.expert].rows.end += 1;
    }
    let mut start = 0;
    for share in shares.iter_mut() {
        let rows = share.rows.len();
        share.rows = start..start;
        start += rows;
    }
    for (place, choice) in places.iter_mut().zip(choices) {
        let rows = &mut shares[choice.expert].rows;
        *place = rows.end;
        rows.end += 1;
    }
    shares.retain(|share| !share.rows.is_empty());
}

/// Copies each row of `norm` to its places.
fn gather(forward: &Forward<'_>, norm: &[f32], places: &[usize], rows: &mut [f32]) {
    let n_embd = forward.config.n_embd;
    let tokens = norm.len() / n_embd;
    let used = places.len() / tokens;
    let rows = Disjoint::new(rows);
    forward.device.for_tokens(tokens, FEW_ROWS, &|t| {
        for place in &places[t * used..][..used] {
            // SAFETY: no two choices have one place.
            let row = unsafe { rows.part(place * n_embd, n_embd) };
            row.copy_from_slice(&norm[t * n_embd..][..n_embd]);
        }
    });
}

/// Applies each row's expert to it; the matrices hold `experts` of them.
fn through(
    forward: &Forward<'_>,
    (unit, experts): (&GatedUnit, usize),
    shares: &[Share],
    rows: &mut [f32],
    ff: &mut [f32],
    quantized: &mut Quantized,
) {
    let (n_embd, device) = (forward.config.n_embd, forward.device);
    let part = |linear| {
        let whole = forward.projection(linear, 0);
        let rows = whole.rows / experts;
        Projection { rows, ..whole }
    };
    let gate_up: Vec<_> = unit.projections().iter().map(part).collect();
    let weights: Vec<_> = gate_up.iter().map(|it| it.weight).collect();
    device.quantize(rows, n_embd, &weights, quantized);
    let input = quantized.view(rows, n_embd);
    let n_ff = unit.down.weight.shape.cols;
    let ff = &mut ff[..rows.len() / n_embd * n_ff];
    device.gate_up(forward.config.activation, &input, shares, &gate_up, ff);

    let down = [part(&unit.down)];
    device.quantize(ff, n_ff, &[down[0].weight], quantized);
    let input = quantized.view(ff, n_ff);
    device.project(&input, shares, &down, rows, Epilogue::Store);
}

/// Adds the outputs of its experts to each row of the stream, in the order of its choices, and then that of the shared
/// expert.
fn add_all(forward: &Forward<'_>, experts: &Experts, room: &ExpertRoom, x: &mut [f32]) {
    let (n_embd, config) = (forward.config.n_embd, &experts.config);
    let tokens = x.len() / n_embd;
    let x = Disjoint::new(x);
    forward.device.for_tokens(tokens, FEW_ROWS, &|t| {
        // SAFETY: token t's own row.
        let x = unsafe { x.part(t * n_embd, n_embd) };
        add_chosen(experts, room, t, x);
        if let Some(shared) = &experts.shared {
            let logit = || room.logits[t * config.logits() + config.count];
            let weight = shared.weigher.as_ref().map_or(1.0, |_| sigmoid(logit()));
            add_weighted(weight, &room.shared[t * n_embd..][..n_embd], x);
        }
    });
}

/// Adds the outputs of its experts to a row, in the order of its choices.
fn add_chosen(experts: &Experts, room: &ExpertRoom, row: usize, x: &mut [f32]) {
    let (n_embd, used) = (x.len(), experts.config.used);
    let choices = &room.choices[row * used..][..used];
    for (choice, place) in choices.iter().zip(&room.places[row * used..]) {
        add_weighted(choice.weight, &room.rows[place * n_embd..][..n_embd], x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_sorted_by_expert_and_stay_in_order_within_one() {
        let choices = [5, 2, 2, 0, 5, 2].map(|expert| Choice {
            expert,
            weight: 1.0,
        });
        let mut places = [0; 6];
        let mut shares = vec![Share {
            expert: 9,
            rows: 1..2,
        }];
        sort(&choices, 7, &mut places, &mut shares);
        assert_eq!(places, [4, 1, 2, 0, 5, 3]);
        let share = |expert, rows| Share { expert, rows };
        assert_eq!(shares, [share(0, 0..1), share(2, 1..4), share(5, 4..6)]);
    }
}
