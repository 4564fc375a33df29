//! The tensors of a model in one list, generic over matrix (`M`) and vector (`V`): views into the file, places on a
//! device, values.

use super::experts::ExpertsConfig;

/// `y = W x + b`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<M, V> {
    /// `[n_out, n_in]`, row-major with `n_in` contiguous.
    pub weight: M,
    /// `[n_out]`.
    pub bias: Option<V>,
}

/// A mixer and a feed-forward part, or one of them.
#[derive(Debug, Clone, Copy)]
pub struct Layer<M, V> {
    pub mixer: Option<Block<V, Mixer<M, V>>>,
    /// Behind the mixer.
    pub feed_forward: Option<Block<V, FeedForward<M, V>>>,
    /// Part for the per-layer input, behind the feed-forward part.
    pub input: Option<LayerInput<M, V>>,
    /// Factor of the residual stream behind the layer, `[1]`.
    pub output_scale: Option<V>,
}

/// A part of a layer between the norm of its input and the addition of its output to the residual stream.
#[derive(Debug, Clone, Copy)]
pub struct Block<V, P> {
    pub norm: V,
    pub part: P,
    /// Norm of the output, before its addition.
    pub post_norm: Option<V>,
}

/// The part of a layer in which a token sees earlier ones.
#[derive(Debug, Clone, Copy)]
pub enum Mixer<M, V> {
    Attention(Attention<M, V>),
    DeltaNet(DeltaNet<M, V>),
    ShortConv(ShortConv<M, V>),
    Mamba(Mamba<M, V>),
}

#[derive(Debug, Clone, Copy)]
pub struct Attention<M, V> {
    /// Queries, keys and values. A file may keep them in one tensor: then each is a row range of it. With
    /// [gates](super::ModelConfig::gates_attention), the first one has the queries of each head, then its gates. In place of
    /// one that is missing is the one in front of it.
    pub qkv: [Linear<M, V>; 3],
    pub kv: KvOrigin,
    /// RMS norms before RoPE: over each head, `[head_dim]`, or with [joint ones](super::ModelConfig::has_joint_norms) over all
    /// heads of a row.
    pub q_norm: Option<V>,
    pub k_norm: Option<V>,
    /// Attention sink of each head: a score in its softmax without a value, `[n_heads]`.
    pub sinks: Option<V>,
    pub output: Linear<M, V>,
}

/// Origin of the keys and values of a layer with attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvOrigin {
    /// A matrix of keys, and one of values.
    Projected,
    /// A matrix of keys: its products are the values too, before their norm and rotation.
    KeysAreValues,
    /// No matrix: keys and values are those of an [earlier layer](super::ModelConfig::kv_layer).
    Earlier,
}

/// A gated delta net (arXiv:2412.06464), as Qwen3-Next has it: [`DeltaNetConfig`](super::DeltaNetConfig).
#[derive(Debug, Clone, Copy)]
pub struct DeltaNet<M, V> {
    /// Queries, keys and values before the convolution, `[channels, n_embd]`.
    pub qkv: Linear<M, V>,
    /// Gates of the output, `[v_heads * head_dim, n_embd]`.
    pub gate: Linear<M, V>,
    /// Logits of the update's strength, `[v_heads, n_embd]`.
    pub beta: Linear<M, V>,
    /// Logarithm of the decay before its softplus, `[v_heads, n_embd]`. `None`: `beta` has those of each head of keys
    /// behind its strengths.
    pub alpha: Option<Linear<M, V>>,
    /// Weights of each channel for the last positions, the present one last: `[channels, kernel]`.
    pub conv: V,
    /// Bias of `alpha`, `[v_heads]`.
    pub dt: V,
    /// Negative factor of the softplus, `[v_heads]`.
    pub decay: V,
    /// RMS norm over each head of the output, `[head_dim]`.
    pub norm: V,
    pub output: Linear<M, V>,
}

/// A short convolution, as LFM2 has it: [`ShortConvConfig`](super::ShortConvConfig). `b`, `c` and `x` are what is projected of a
/// row:
///
/// ```text
/// output (c * conv(b * x))
/// ```
#[derive(Debug, Clone, Copy)]
pub struct ShortConv<M, V> {
    /// `b`, `c` and `x`, `[3 * n_embd, n_embd]`.
    pub input: Linear<M, V>,
    /// Weights of each channel for the last positions, the present one last: `[n_embd, kernel]`.
    pub conv: V,
    pub output: Linear<M, V>,
}

/// A state-space layer of Mamba-2 (arXiv:2405.21060): [`MambaConfig`](super::MambaConfig).
#[derive(Debug, Clone, Copy)]
pub struct Mamba<M, V> {
    /// Gates of the output, inputs of the convolution, and lengths of steps, `[projected_width, n_embd]`.
    pub input: Linear<M, V>,
    /// Weights of each channel for the last positions, the present one last: `[channels, kernel]`.
    pub conv: V,
    /// `[channels]`.
    pub conv_bias: Option<V>,
    /// Bias of the length of a step, in the softplus, `[heads]`.
    pub dt: V,
    /// Logarithm of the decay of a step of length 1, not positive, `[heads]`.
    pub decay: V,
    /// Factor of the input in the output, `[heads]`.
    pub direct: V,
    /// RMS norm over each group of the output, behind its gates, `[width]`.
    pub norm: V,
    pub output: Linear<M, V>,
}

#[derive(Debug, Clone, Copy)]
pub enum FeedForward<M, V> {
    Dense(GatedUnit<M, V>),
    Experts(Experts<M, V>),
}

/// `down (activation(gate x) * (up x))`.
#[derive(Debug, Clone, Copy)]
pub struct GatedUnit<M, V> {
    /// Gate and up. A file may keep them in one tensor, as `qkv`. Without a gate both are up.
    pub gate_up: [Linear<M, V>; 2],
    /// Without a gate, up is its own: with [`Activation::Relu`](worker_orcd_kernels::Activation::Relu) that is the square of a
    /// ReLU.
    pub has_gate: bool,
    pub down: Linear<M, V>,
}

/// Gated units of which each row uses a few. A matrix holds the rows of all experts consecutively, and so does a bias.
#[derive(Debug, Clone, Copy)]
pub struct Experts<M, V> {
    pub config: ExpertsConfig,
    /// `[experts, n_embd]`.
    pub router: Linear<M, V>,
    /// Added to the probability of each expert for the choice only, `[experts]`.
    pub choice_bias: Option<V>,
    pub unit: GatedUnit<M, V>,
    /// Factor of each expert's output, `[experts]`.
    pub output_scales: Option<V>,
    pub shared: Option<SharedExpert<M, V>>,
    pub beside: Option<DenseBeside<M, V>>,
}

/// An expert that every row uses.
#[derive(Debug, Clone, Copy)]
pub struct SharedExpert<M, V> {
    /// Its output is weighted by the sigmoid of this product, `[1, n_embd]`, or not at all.
    pub weigher: Option<Linear<M, V>>,
    pub unit: GatedUnit<M, V>,
}

/// A dense unit beside experts (Gemma 4). Both read the residual stream `a` through norms of their own, and so does the
/// router, whose norm has no weights:
///
/// ```text
/// post_norm(unit(ffn_norm(a))) + experts_post_norm(experts(experts_norm(a), router(norm(a) / sqrt(n_embd) * router_scale)))
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DenseBeside<M, V> {
    pub unit: GatedUnit<M, V>,
    /// Norm of the unit's output.
    pub post_norm: V,
    /// Norm of the experts' input.
    pub experts_norm: V,
    /// Norm of the experts' output.
    pub experts_post_norm: V,
    /// `[n_embd]`.
    pub router_scale: V,
}

/// Per-layer inputs of all layers (Gemma 4 E2B and E4B), each `width` values, `layers * width` together. `x` is the token's
/// embedding, with the model's scale, and the norm is over each layer's part:
///
/// ```text
/// (norm(projection(x) / sqrt(n_embd)) + table[token] * sqrt(width)) / sqrt(2)
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LayerInputs<M, V> {
    /// `[vocab, layers * width]`.
    pub table: M,
    /// `[layers * width, n_embd]`.
    pub projection: Linear<M, V>,
    /// `[width]`.
    pub norm: V,
}

/// Part of a layer behind its feed-forward part, which adds to the residual stream `x`:
///
/// ```text
/// post_norm(output(activation(gate(x)) * input))
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LayerInput<M, V> {
    /// `[width, n_embd]`.
    pub gate: Linear<M, V>,
    /// `[n_embd, width]`.
    pub output: Linear<M, V>,
    /// `[n_embd]`.
    pub post_norm: V,
}

#[derive(Debug, Clone)]
pub struct ModelWeights<M, V> {
    /// `[vocab, n_embd]`; `None` if the output matrix is the embedding table too.
    pub token_embd: Option<M>,
    pub layer_inputs: Option<LayerInputs<M, V>>,
    pub layers: Vec<Layer<M, V>>,
    pub output_norm: V,
    /// `[vocab, n_embd]`.
    pub output: Linear<M, V>,
}

/// Conversion of each tensor when the list is mapped.
pub trait Mapping<M, V> {
    type Matrix: Copy;
    type Vector: Copy;
    type Error;

    /// Converts a matrix.
    ///
    /// # Errors
    /// If this matrix cannot be mapped.
    fn matrix(&mut self, matrix: &M) -> Result<Self::Matrix, Self::Error>;

    /// Converts a vector.
    ///
    /// # Errors
    /// If this vector cannot be mapped.
    fn vector(&mut self, vector: &V) -> Result<Self::Vector, Self::Error>;

    /// Converts an optional vector.
    ///
    /// # Errors
    /// Those of [`vector`](Self::vector).
    fn optional(&mut self, vector: Option<&V>) -> Result<Option<Self::Vector>, Self::Error> {
        vector.map(|vector| self.vector(vector)).transpose()
    }
}

impl<M, V> ModelWeights<M, V> {
    /// The embedding table, tied or not.
    pub fn token_embd(&self) -> &M {
        self.token_embd.as_ref().unwrap_or(&self.output.weight)
    }

    pub fn matrices(&self) -> impl Iterator<Item = &M> {
        let in_layers = self.layers.iter().flat_map(Layer::linears);
        let outside = [&self.output.weight].into_iter().chain(&self.token_embd);
        let of_inputs = self.layer_inputs.iter();
        let of_inputs = of_inputs.flat_map(|it| [&it.table, &it.projection.weight]);
        outside
            .chain(of_inputs)
            .chain(in_layers.map(|linear| &linear.weight))
    }

    /// Maps all tensors, in one order for all devices, which is their order in an arena: output, embedding, inputs of layers,
    /// layer by layer, last norm; a bias comes before its matrix.
    ///
    /// # Errors
    /// The first error of the mapping.
    pub fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<ModelWeights<T::Matrix, T::Vector>, T::Error> {
        let output = self.output.try_map(to)?;
        let token_embd = self.token_embd.as_ref().map(|table| to.matrix(table));
        let token_embd = token_embd.transpose()?;
        let layer_inputs = self.layer_inputs.as_ref().map(|inputs| inputs.try_map(to));
        Ok(ModelWeights {
            token_embd,
            layer_inputs: layer_inputs.transpose()?,
            layers: self
                .layers
                .iter()
                .map(|layer| layer.try_map(to))
                .collect::<Result<_, _>>()?,
            output_norm: to.vector(&self.output_norm)?,
            output,
        })
    }
}

impl<M, V> Layer<M, V> {
    /// Attention, if that is the layer's mixer.
    pub fn attention(&self) -> Option<&Attention<M, V>> {
        match &self.mixer.as_ref()?.part {
            Mixer::Attention(attention) => Some(attention),
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba(_) => None,
        }
    }

    /// Every matrix of the layer, with its bias.
    pub fn linears(&self) -> impl Iterator<Item = &Linear<M, V>> {
        let mixer = self.mixer.iter().flat_map(|it| it.part.linears());
        let feed_forward = self.feed_forward.iter();
        let feed_forward = feed_forward.flat_map(|it| it.part.linears());
        let input = self.input.iter().flat_map(|it| [&it.gate, &it.output]);
        mixer.chain(feed_forward).chain(input)
    }

    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<Layer<T::Matrix, T::Vector>, T::Error> {
        Ok(Layer {
            mixer: match &self.mixer {
                Some(block) => Some(block.try_map(to, Mixer::try_map)?),
                None => None,
            },
            feed_forward: match &self.feed_forward {
                Some(block) => Some(block.try_map(to, FeedForward::try_map)?),
                None => None,
            },
            input: match &self.input {
                Some(input) => Some(input.try_map(to)?),
                None => None,
            },
            output_scale: to.optional(self.output_scale.as_ref())?,
        })
    }
}

impl<V, P> Block<V, P> {
    fn try_map<M, Q, T: Mapping<M, V>>(
        &self,
        to: &mut T,
        part: impl FnOnce(&P, &mut T) -> Result<Q, T::Error>,
    ) -> Result<Block<T::Vector, Q>, T::Error> {
        Ok(Block {
            norm: to.vector(&self.norm)?,
            part: part(&self.part, to)?,
            post_norm: to.optional(self.post_norm.as_ref())?,
        })
    }
}

impl<M, V> FeedForward<M, V> {
    fn linears(&self) -> Vec<&Linear<M, V>> {
        match self {
            Self::Dense(unit) => unit.linears().collect(),
            Self::Experts(experts) => {
                let shared = experts.shared.iter().flat_map(|shared| {
                    let weigher = shared.weigher.iter();
                    weigher.chain(shared.unit.linears())
                });
                let beside = experts.beside.iter();
                let beside = beside.flat_map(|beside| beside.unit.linears());
                let experts = [&experts.router].into_iter().chain(experts.unit.linears());
                experts.chain(shared).chain(beside).collect()
            }
        }
    }

    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<FeedForward<T::Matrix, T::Vector>, T::Error> {
        Ok(match self {
            Self::Dense(unit) => FeedForward::Dense(unit.try_map(to)?),
            Self::Experts(experts) => FeedForward::Experts(experts.try_map(to)?),
        })
    }
}

impl<M, V> Mixer<M, V> {
    fn linears(&self) -> Vec<&Linear<M, V>> {
        match self {
            Self::Attention(attention) => {
                let projected = attention.projections().iter();
                projected.chain([&attention.output]).collect()
            }
            Self::DeltaNet(net) => {
                let alpha = net.alpha.iter();
                [&net.qkv, &net.gate, &net.beta, &net.output]
                    .into_iter()
                    .chain(alpha)
                    .collect()
            }
            Self::ShortConv(conv) => vec![&conv.input, &conv.output],
            Self::Mamba(mamba) => vec![&mamba.input, &mamba.output],
        }
    }

    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<Mixer<T::Matrix, T::Vector>, T::Error> {
        Ok(match self {
            Self::Attention(attention) => Mixer::Attention(attention.try_map(to)?),
            Self::DeltaNet(net) => Mixer::DeltaNet(net.try_map(to)?),
            Self::ShortConv(conv) => Mixer::ShortConv(conv.try_map(to)?),
            Self::Mamba(mamba) => Mixer::Mamba(mamba.try_map(to)?),
        })
    }
}

impl<M, V> Attention<M, V> {
    /// Queries, then keys and values as far as they have matrices of their own.
    #[must_use]
    pub fn projections(&self) -> &[Linear<M, V>] {
        let count = match self.kv {
            KvOrigin::Projected => 3,
            KvOrigin::KeysAreValues => 2,
            KvOrigin::Earlier => 1,
        };
        &self.qkv[..count]
    }

    /// The layer has keys and values of its own.
    #[must_use]
    pub fn has_kv(&self) -> bool {
        self.kv != KvOrigin::Earlier
    }

    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<Attention<T::Matrix, T::Vector>, T::Error> {
        let projections = self.projections().iter();
        let projections: Vec<_> = projections
            .map(|linear| linear.try_map(to))
            .collect::<Result<_, _>>()?;
        let last = projections.len() - 1;
        Ok(Attention {
            qkv: std::array::from_fn(|part| projections[part.min(last)]),
            kv: self.kv,
            q_norm: to.optional(self.q_norm.as_ref())?,
            k_norm: to.optional(self.k_norm.as_ref())?,
            sinks: to.optional(self.sinks.as_ref())?,
            output: self.output.try_map(to)?,
        })
    }
}

impl<M, V> DeltaNet<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<DeltaNet<T::Matrix, T::Vector>, T::Error> {
        Ok(DeltaNet {
            qkv: self.qkv.try_map(to)?,
            gate: self.gate.try_map(to)?,
            beta: self.beta.try_map(to)?,
            alpha: self.alpha.as_ref().map(|it| it.try_map(to)).transpose()?,
            conv: to.vector(&self.conv)?,
            dt: to.vector(&self.dt)?,
            decay: to.vector(&self.decay)?,
            norm: to.vector(&self.norm)?,
            output: self.output.try_map(to)?,
        })
    }
}

impl<M, V> ShortConv<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<ShortConv<T::Matrix, T::Vector>, T::Error> {
        Ok(ShortConv {
            input: self.input.try_map(to)?,
            conv: to.vector(&self.conv)?,
            output: self.output.try_map(to)?,
        })
    }
}

impl<M, V> Mamba<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<Mamba<T::Matrix, T::Vector>, T::Error> {
        Ok(Mamba {
            input: self.input.try_map(to)?,
            conv: to.vector(&self.conv)?,
            conv_bias: to.optional(self.conv_bias.as_ref())?,
            dt: to.vector(&self.dt)?,
            decay: to.vector(&self.decay)?,
            direct: to.vector(&self.direct)?,
            norm: to.vector(&self.norm)?,
            output: self.output.try_map(to)?,
        })
    }
}

impl<M, V> LayerInputs<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<LayerInputs<T::Matrix, T::Vector>, T::Error> {
        Ok(LayerInputs {
            table: to.matrix(&self.table)?,
            projection: self.projection.try_map(to)?,
            norm: to.vector(&self.norm)?,
        })
    }
}

impl<M, V> LayerInput<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<LayerInput<T::Matrix, T::Vector>, T::Error> {
        Ok(LayerInput {
            gate: self.gate.try_map(to)?,
            output: self.output.try_map(to)?,
            post_norm: to.vector(&self.post_norm)?,
        })
    }
}

impl<M, V> GatedUnit<M, V> {
    /// Gate and up, or up alone without a gate.
    #[must_use]
    pub fn projections(&self) -> &[Linear<M, V>] {
        &self.gate_up[usize::from(!self.has_gate)..]
    }

    pub fn linears(&self) -> impl Iterator<Item = &Linear<M, V>> {
        self.projections().iter().chain([&self.down])
    }

    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<GatedUnit<T::Matrix, T::Vector>, T::Error> {
        let [gate, up] = &self.gate_up;
        let gate_up = match self.has_gate {
            true => [gate.try_map(to)?, up.try_map(to)?],
            false => [up.try_map(to)?; 2],
        };
        Ok(GatedUnit {
            gate_up,
            has_gate: self.has_gate,
            down: self.down.try_map(to)?,
        })
    }
}

impl<M, V> Experts<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<Experts<T::Matrix, T::Vector>, T::Error> {
        let router = self.router.try_map(to)?;
        let unit = self.unit.try_map(to)?;
        let shared = match &self.shared {
            Some(SharedExpert { weigher, unit }) => Some(SharedExpert {
                weigher: weigher.as_ref().map(|it| it.try_map(to)).transpose()?,
                unit: unit.try_map(to)?,
            }),
            None => None,
        };
        let choice_bias = to.optional(self.choice_bias.as_ref())?;
        let output_scales = to.optional(self.output_scales.as_ref())?;
        let beside = self.beside.as_ref().map(|beside| beside.try_map(to));
        Ok(Experts {
            config: self.config,
            router,
            choice_bias,
            unit,
            output_scales,
            shared,
            beside: beside.transpose()?,
        })
    }
}

impl<M, V> DenseBeside<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<DenseBeside<T::Matrix, T::Vector>, T::Error> {
        Ok(DenseBeside {
            unit: self.unit.try_map(to)?,
            post_norm: to.vector(&self.post_norm)?,
            experts_norm: to.vector(&self.experts_norm)?,
            experts_post_norm: to.vector(&self.experts_post_norm)?,
            router_scale: to.vector(&self.router_scale)?,
        })
    }
}

impl<M, V> Linear<M, V> {
    fn try_map<T: Mapping<M, V>>(
        &self,
        to: &mut T,
    ) -> Result<Linear<T::Matrix, T::Vector>, T::Error> {
        Ok(Linear {
            bias: to.optional(self.bias.as_ref())?,
            weight: to.matrix(&self.weight)?,
        })
    }
}

#[cfg(test)]
mod tests;
