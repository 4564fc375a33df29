//! The forward pass with the scalar references: slow, with sums in double precision,
//! and independent of devices.

use worker_orcd_gpu::model::{
    Attention, DeltaNet, DeltaNetConfig, DenseBeside, Experts, FeedForward, FileLinear,
    FileWeights, GatedUnit, LayerInputs, Linear, Mamba, MambaConfig, Mixer, ModelConfig, ShortConv,
    TensorView,
};
use worker_orcd_ipc::TokenId;
use worker_orcd_kernels::dequantize_row;
use worker_orcd_kernels::reference::attention::{AttentionShape, attention};
use worker_orcd_kernels::reference::delta_net::{
    DeltaRow, causal_conv, delta_step, l2_norm, log_decay,
};
use worker_orcd_kernels::reference::glu::glu;
use worker_orcd_kernels::reference::mamba::{ScanRow, biased_conv, scan_step, softplus};
use worker_orcd_kernels::reference::matmul::matmul;
use worker_orcd_kernels::reference::rmsnorm::rmsnorm;
use worker_orcd_kernels::reference::rope::rope;
use worker_orcd_kernels::reference::routing::{Router, route};
use worker_orcd_kernels::reference::short_conv::short_conv;

fn values(tensor: &TensorView<'_>) -> Vec<f32> {
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    dequantize_row(tensor.ty, tensor.data, &mut values);
    values
}

fn apply(linear: &FileLinear<'_>, x: &[f32]) -> Vec<f32> {
    let bias = linear.bias.as_ref().map(values);
    matmul(&values(&linear.weight), x, bias.as_deref())
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

type Unit<'a> = GatedUnit<TensorView<'a>, TensorView<'a>>;

fn unit(config: &ModelConfig, unit: &Unit<'_>, x: &[f32]) -> Vec<f32> {
    let [gate, up] = &unit.gate_up;
    let inner = glu(config.activation, &apply(gate, x), &apply(up, x));
    apply(&unit.down, &inner)
}

fn expert_of<'a>(linear: &FileLinear<'a>, index: usize, count: usize) -> FileLinear<'a> {
    let rows = linear.weight.rows / count;
    let weight = linear.weight.row_range(index * rows, rows);
    let bias = linear.bias.map(|bias| bias.row_range(index, 1));
    Linear {
        weight: weight.expect("the rows of an expert"),
        bias: bias.map(|bias| bias.expect("a row for each expert")),
    }
}

fn mixture(
    config: &ModelConfig,
    experts: &Experts<TensorView<'_>, TensorView<'_>>,
    (routed_by, x): (&[f32], &[f32]),
    routed: &mut dyn FnMut(&[f32]),
) -> Vec<f32> {
    let mut sum = vec![0.0; config.n_embd];
    let mut add_weighted = |weight: f32, y: Vec<f32>| {
        sum.iter_mut()
            .zip(y)
            .for_each(|(sum, y)| *sum += weight * y);
    };
    let of = experts.config;
    let logits = apply(&experts.router, routed_by);
    let bias = experts.choice_bias.as_ref().map(values);
    let router = Router {
        weighing: of.weighing,
        choice_bias: bias.as_deref(),
        scale: of.scale,
    };
    // The order of logits is that of their probabilities.
    match &bias {
        None => routed(&logits),
        Some(_) => routed(&router.scores(&logits)),
    }
    let scales = experts.output_scales.as_ref().map(values);
    for (index, weight) in route(&logits, of.used, &router) {
        let part = |linear| expert_of(linear, index, of.count);
        let expert = GatedUnit {
            gate_up: experts.unit.gate_up.each_ref().map(part),
            has_gate: experts.unit.has_gate,
            down: part(&experts.unit.down),
        };
        let scale = scales.as_ref().map_or(1.0, |scales| scales[index]);
        add_weighted(weight * scale, unit(config, &expert, x));
    }
    if let Some(shared) = &experts.shared {
        let weigher = shared.weigher.as_ref().map(|it| apply(it, x)[0]);
        let weight = weigher.map_or(1.0, |logit| 1.0 / (1.0 + (-logit).exp()));
        add_weighted(weight, unit(config, &shared.unit, x));
    }
    sum
}

/// Experts and the dense unit beside them. `a`: the residual stream; `x`: its norm for the unit.
fn mixture_beside(
    config: &ModelConfig,
    experts: &Experts<TensorView<'_>, TensorView<'_>>,
    dense: &DenseBeside<TensorView<'_>, TensorView<'_>>,
    (a, x): (&[f32], &[f32]),
    routed: &mut dyn FnMut(&[f32]),
) -> Vec<f32> {
    let normed = |x: &[f32], norm: &TensorView<'_>| rmsnorm(x, &values(norm), config.norm_eps);
    let mut sum = normed(&unit(config, &dense.unit, x), &dense.post_norm);
    let mut routed_by = normed(a, &dense.router_scale);
    routed_by
        .iter_mut()
        .for_each(|x| *x /= (config.n_embd as f32).sqrt());
    let input = normed(a, &dense.experts_norm);
    let given = mixture(config, experts, (&routed_by, &input), routed);
    add(&mut sum, &normed(&given, &dense.experts_post_norm));
    sum
}

type FileMixer<'a> = Mixer<TensorView<'a>, TensorView<'a>>;

/// A layer's mixer over the positions of a sequence.
enum Mix<'a> {
    Attention(AttentionRows<'a>),
    DeltaNet(DeltaNetRows<'a>),
    ShortConv(ShortConvRows<'a>),
    Mamba(MambaRows<'a>),
}

struct AttentionRows<'a> {
    config: &'a ModelConfig,
    index: usize,
    of_layer: &'a Attention<TensorView<'a>, TensorView<'a>>,
    position: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Keys and values of all positions of the earlier layer that the layer attends to.
    shared: Option<&'a KeptRows>,
}

/// Keys and values of all positions of a layer.
type KeptRows = (Vec<f32>, Vec<f32>);

struct DeltaNetRows<'a> {
    config: &'a ModelConfig,
    net: &'a DeltaNetConfig,
    of_layer: &'a DeltaNet<TensorView<'a>, TensorView<'a>>,
    /// Inputs of the convolution, position by position.
    rows: Vec<Vec<f32>>,
    states: Vec<Vec<f64>>,
}

struct ShortConvRows<'a> {
    of_layer: &'a ShortConv<TensorView<'a>, TensorView<'a>>,
    /// Inputs of the convolution, position by position.
    rows: Vec<Vec<f32>>,
}

struct MambaRows<'a> {
    config: &'a MambaConfig,
    of_layer: &'a Mamba<TensorView<'a>, TensorView<'a>>,
    /// Inputs of the convolution, position by position.
    rows: Vec<Vec<f32>>,
    states: Vec<Vec<f64>>,
}

impl<'a> Mix<'a> {
    /// `kept`: keys and values of the layers in front of it.
    fn of(
        config: &'a ModelConfig,
        index: usize,
        mixer: &'a FileMixer<'a>,
        kept: &'a [KeptRows],
    ) -> Self {
        match mixer {
            Mixer::Attention(of_layer) => Self::Attention(AttentionRows {
                config,
                index,
                of_layer,
                position: 0,
                keys: Vec::new(),
                values: Vec::new(),
                shared: kept.get(config.kv_layer(index)),
            }),
            Mixer::DeltaNet(of_layer) => {
                let net = config.delta_net().expect("a delta net");
                Self::DeltaNet(DeltaNetRows {
                    config,
                    net,
                    of_layer,
                    rows: Vec::new(),
                    states: vec![vec![0.0; net.head_dim * net.head_dim]; net.v_heads],
                })
            }
            Mixer::Mamba(of_layer) => {
                let config = config.mamba().expect("state spaces");
                Self::Mamba(MambaRows {
                    config,
                    of_layer,
                    rows: Vec::new(),
                    states: vec![vec![0.0; config.state * config.head_dim]; config.heads],
                })
            }
            Mixer::ShortConv(of_layer) => Self::ShortConv(ShortConvRows {
                of_layer,
                rows: Vec::new(),
            }),
        }
    }

    /// Keys and values of all positions.
    fn kept(self) -> KeptRows {
        match self {
            Self::Attention(rows) => (rows.keys, rows.values),
            Self::DeltaNet(_) | Self::ShortConv(_) | Self::Mamba(_) => (Vec::new(), Vec::new()),
        }
    }

    /// Output at the next position.
    fn next(&mut self, input: &[f32]) -> Vec<f32> {
        match self {
            Self::Attention(rows) => rows.next(input),
            Self::DeltaNet(rows) => rows.next(input),
            Self::ShortConv(rows) => rows.next(input),
            Self::Mamba(rows) => rows.next(input),
        }
    }
}

impl AttentionRows<'_> {
    fn next(&mut self, input: &[f32]) -> Vec<f32> {
        let (config, position) = (self.config, self.position);
        self.position += 1;
        let heads = config.heads_of(self.index);
        let turn = |rows: &mut [f32], norm: &Option<TensorView<'_>>| {
            let of_norm = match config.has_joint_norms {
                true => rows.len(),
                false => heads.dim,
            };
            for values_of in rows.chunks_exact_mut(of_norm) {
                if let Some(norm) = norm {
                    values_of.copy_from_slice(&rmsnorm(values_of, &values(norm), config.norm_eps));
                }
            }
            for head in rows.chunks_exact_mut(heads.dim) {
                if let Some(place) = config.rope_of(self.index) {
                    let of_layer = config.ropes().nth(place).expect("a rotation");
                    rope(head, position as u32, of_layer);
                }
            }
        };
        let of_layer = self.of_layer;
        let [q, k, v] = &of_layer.qkv;
        let mut q = apply(q, input);
        let mut gates = Vec::new();
        if config.gates_attention {
            let halves = q.chunks_exact(2 * heads.dim);
            let (queries, of_heads): (Vec<_>, Vec<_>) =
                halves.map(|head| head.split_at(heads.dim)).unzip();
            (q, gates) = (queries.concat(), of_heads.concat());
        }
        turn(&mut q, &of_layer.q_norm);
        let temperature = config.positions.temperature_at(position as u32);
        // The reference divides by the root of `head_dim`.
        let scale = config.attention_scale * (heads.dim as f64).sqrt();
        q.iter_mut().for_each(|q| *q *= temperature * scale as f32);
        if let Some((keys, values)) = self.shared {
            let seen = (position + 1) * heads.kv_width();
            (self.keys, self.values) = (keys[..seen].to_vec(), values[..seen].to_vec());
        } else {
            let mut k = apply(k, input);
            turn(&mut k, &of_layer.k_norm);
            self.keys.extend(k);
            let mut v = apply(v, input);
            if config.normalizes_values {
                for head in v.chunks_exact_mut(heads.dim) {
                    let ones = vec![1.0; heads.dim];
                    head.copy_from_slice(&rmsnorm(head, &ones, config.norm_eps));
                }
            }
            self.values.extend(v);
        }
        let shape = AttentionShape {
            n_heads: heads.count,
            n_kv_heads: heads.kv_count,
            head_dim: heads.dim,
            window: config.positions.window_of(self.index),
        };
        let sinks = of_layer.sinks.as_ref().map(values);
        let mut seen = attention(&q, &self.keys, &self.values, sinks.as_deref(), &shape);
        for (x, gate) in seen.iter_mut().zip(gates) {
            *x *= 1.0 / (1.0 + (-gate).exp());
        }
        apply(&of_layer.output, &seen)
    }
}

impl DeltaNetRows<'_> {
    fn next(&mut self, input: &[f32]) -> Vec<f32> {
        let (net, of_layer, eps) = (self.net, self.of_layer, self.config.norm_eps);
        self.rows.push(apply(&of_layer.qkv, input));
        let conv = values(&of_layer.conv);
        let from = self.rows.len().saturating_sub(net.kernel);
        let channel = |(channel, weights): (usize, &[f32])| {
            let inputs: Vec<_> = self.rows[from..].iter().map(|row| row[channel]).collect();
            causal_conv(&inputs, weights)
        };
        let qkv: Vec<f32> = conv
            .chunks_exact(net.kernel)
            .enumerate()
            .map(channel)
            .collect();
        let gates = apply(&of_layer.gate, input);
        let mut strengths = apply(&of_layer.beta, input);
        strengths.extend(of_layer.alpha.iter().flat_map(|it| apply(it, input)));
        let (dt, decay) = (values(&of_layer.dt), values(&of_layer.decay));
        let (norm, dim) = (values(&of_layer.norm), net.head_dim);
        let mut out = vec![0.0; net.v_width()];
        let heads = net.v_heads / net.k_heads;
        for (k_head, index) in (0..net.k_heads).flat_map(|head| (0..heads).map(move |i| (head, i)))
        {
            let head = net.order.v_head(k_head, index, net.k_heads, net.v_heads);
            let (beta, alpha) = net.strength_and_decay(head);
            let part = |start: usize| &qkv[start..start + dim];
            let mut q = l2_norm(part(k_head * dim), eps);
            q.iter_mut().for_each(|q| *q /= (dim as f32).sqrt());
            let row = DeltaRow {
                q: &q,
                k: &l2_norm(part(net.k_width() + k_head * dim), eps),
                v: part(2 * net.k_width() + head * dim),
                beta: 1.0 / (1.0 + f64::from(-strengths[beta]).exp()),
                log_decay: log_decay(decay[head], strengths[alpha], dt[head]),
            };
            let given = delta_step(&mut self.states[head], &row);
            let given: Vec<f32> = given.into_iter().map(|value| value as f32).collect();
            let gates = &gates[head * dim..][..dim];
            let given = rmsnorm(&given, &norm, eps).into_iter().zip(gates);
            let given = given.map(|(value, gate)| value * gate / (1.0 + (-gate).exp()));
            out.splice(head * dim..(head + 1) * dim, given);
        }
        apply(&of_layer.output, &out)
    }
}

impl MambaRows<'_> {
    fn next(&mut self, input: &[f32]) -> Vec<f32> {
        let (config, of_layer) = (self.config, self.of_layer);
        let (width, dim, state) = (config.width(), config.head_dim, config.state);
        let projected = apply(&of_layer.input, input);
        let (gates, rest) = projected.split_at(width);
        let (channels, steps) = rest.split_at(config.channels());
        self.rows.push(channels.to_vec());
        let conv = values(&of_layer.conv);
        let bias = of_layer.conv_bias.as_ref().map(values);
        let from = self.rows.len().saturating_sub(config.kernel);
        let channel = |(channel, weights): (usize, &[f32])| {
            let inputs: Vec<_> = self.rows[from..].iter().map(|row| row[channel]).collect();
            let bias = bias.as_ref().map_or(0.0, |bias| bias[channel]);
            biased_conv(&inputs, weights, bias)
        };
        let mixed = conv.chunks_exact(config.kernel).enumerate();
        let mixed: Vec<f32> = mixed.map(channel).collect();
        let vectors = [of_layer.dt, of_layer.decay, of_layer.direct];
        let [dt, decay, direct] = vectors.each_ref().map(values);
        let head = |(head, of_head): (usize, &mut Vec<f64>)| {
            let group = head / (config.heads / config.groups);
            let part = |at: usize| &mixed[width + at * state..][..state];
            let row = ScanRow {
                b: part(group),
                c: part(config.groups + group),
                x: &mixed[head * dim..][..dim],
                dt: softplus(steps[head] + dt[head]),
                a: decay[head],
                d: direct[head],
            };
            scan_step(of_head, &row)
        };
        let given: Vec<f64> = self.states.iter_mut().enumerate().flat_map(head).collect();
        let gated = given.iter().zip(gates).map(|(value, &gate)| {
            let gate = f64::from(gate);
            (value * gate / (1.0 + (-gate).exp())) as f32
        });
        let gated: Vec<f32> = gated.collect();
        let norm = values(&of_layer.norm);
        let of_group = width / config.groups;
        let groups = gated
            .chunks_exact(of_group)
            .zip(norm.chunks_exact(of_group));
        let out: Vec<f32> = groups
            .flat_map(|(gated, norm)| rmsnorm(gated, norm, config.eps))
            .collect();
        apply(&of_layer.output, &out)
    }
}

impl ShortConvRows<'_> {
    fn next(&mut self, input: &[f32]) -> Vec<f32> {
        let projected = apply(&self.of_layer.input, input);
        let width = projected.len() / 3;
        let [b, c, x] = [0, 1, 2].map(|part| &projected[part * width..][..width]);
        self.rows
            .push(b.iter().zip(x).map(|(b, x)| b * x).collect());
        let conv = values(&self.of_layer.conv);
        let kernel = conv.len() / width;
        let from = self.rows.len().saturating_sub(kernel);
        let channel = |(channel, weights): (usize, &[f32])| {
            let inputs: Vec<_> = self.rows[from..].iter().map(|row| row[channel]).collect();
            short_conv(c[channel], &inputs, weights)
        };
        let out: Vec<f32> = conv.chunks_exact(kernel).enumerate().map(channel).collect();
        apply(&self.of_layer.output, &out)
    }
}

/// Inputs of all layers by a token with this embedding.
fn layer_inputs(
    config: &ModelConfig,
    weights: &LayerInputs<TensorView<'_>, TensorView<'_>>,
    token: TokenId,
    x: &[f32],
) -> Vec<f32> {
    let (all, width) = (weights.table.cols, weights.norm.cols);
    let table = values(&weights.table);
    let of_token = &table[token.index() * all..][..all];
    let mut inputs = apply(&weights.projection, x);
    let norm = values(&weights.norm);
    for (input, of_token) in inputs.chunks_exact_mut(width).zip(of_token.chunks(width)) {
        input
            .iter_mut()
            .for_each(|value| *value /= (config.n_embd as f32).sqrt());
        let normal = rmsnorm(input, &norm, config.norm_eps);
        for ((input, normal), of_token) in input.iter_mut().zip(normal).zip(of_token) {
            *input = (normal + of_token * (width as f32).sqrt()) / 2_f32.sqrt();
        }
    }
    inputs
}

/// Residual stream after the last layer, at every position.
pub fn forward(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
) -> Vec<Vec<f32>> {
    pass(config, weights, tokens, &mut |_| ())
}

/// Result of [`forward`], and the margin between the last chosen expert and the first that is not chosen: the smallest
/// difference of any row and layer, as a share of its largest logit, or of its largest score if experts have biases.
/// Another rounding makes the same choice only if its errors are below this margin.
pub fn forward_with_margin(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
) -> (Vec<Vec<f32>>, f32) {
    let used = config.experts.expect("a mixture of experts").used;
    let mut margin = f32::INFINITY;
    let stream = pass(config, weights, tokens, &mut |logits| {
        let mut sorted = logits.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let largest = sorted.iter().fold(0.0, |max: f32, it| max.max(it.abs()));
        // If all experts are chosen, there is no other choice.
        if let Some(next) = sorted.get(used) {
            margin = margin.min((sorted[used - 1] - next) / largest);
        }
    });
    (stream, margin)
}

/// `a`: the residual stream; `x`: its norm.
fn feed_forward(
    config: &ModelConfig,
    part: &FeedForward<TensorView<'_>, TensorView<'_>>,
    (a, x): (&[f32], &[f32]),
    routed: &mut dyn FnMut(&[f32]),
) -> Vec<f32> {
    match part {
        FeedForward::Dense(part) => unit(config, part, x),
        FeedForward::Experts(experts) => match &experts.beside {
            None => mixture(config, experts, (x, x), routed),
            Some(dense) => mixture_beside(config, experts, dense, (a, x), routed),
        },
    }
}

/// `routed` receives the logits or the scores of every router.
fn pass(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
    routed: &mut dyn FnMut(&[f32]),
) -> Vec<Vec<f32>> {
    let table = values(weights.token_embd());
    let row = |token: &TokenId| {
        let row = &table[token.index() * config.n_embd..][..config.n_embd];
        row.iter().map(|x| x * config.embedding_scale).collect()
    };
    let mut stream: Vec<Vec<f32>> = tokens.iter().map(row).collect();
    let of_token = |(token, x): (&TokenId, &Vec<f32>)| {
        let inputs = weights.layer_inputs.as_ref();
        inputs.map(|inputs| layer_inputs(config, inputs, *token, x))
    };
    let inputs: Vec<_> = tokens.iter().zip(&stream).map(of_token).collect();
    let mut kept: Vec<KeptRows> = Vec::new();
    for (index, layer) in weights.layers.iter().enumerate() {
        let mixer = layer.mixer.as_ref();
        let mut mixer = mixer.map(|it| (it, Mix::of(config, index, &it.part, &kept)));
        for (x, inputs) in stream.iter_mut().zip(&inputs) {
            let normed = |given: Vec<f32>, norm: &Option<TensorView<'_>>| match norm {
                Some(norm) => rmsnorm(&given, &values(norm), config.norm_eps),
                None => given,
            };
            if let Some((block, mixer)) = &mut mixer {
                let given = mixer.next(&rmsnorm(x, &values(&block.norm), config.norm_eps));
                add(x, &normed(given, &block.post_norm));
            }
            if let Some(block) = &layer.feed_forward {
                let input = rmsnorm(x, &values(&block.norm), config.norm_eps);
                let given = feed_forward(config, &block.part, (&*x, &input), routed);
                add(x, &normed(given, &block.post_norm));
            }
            if let (Some(part), Some(inputs)) = (&layer.input, inputs) {
                let width = part.gate.weight.rows;
                let input = &inputs[index * width..][..width];
                let inner = glu(config.activation, &apply(&part.gate, x), input);
                let given = apply(&part.output, &inner);
                add(
                    x,
                    &rmsnorm(&given, &values(&part.post_norm), config.norm_eps),
                );
            }
            if let Some(scale) = &layer.output_scale {
                let scale = values(scale)[0];
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
        let rows = mixer.map_or_else(Default::default, |(_, mixer)| mixer.kept());
        kept.push(rows);
    }
    stream
}
