//! Tensors by role, as views into the mapped file.
//!
//! Every shape is checked against the configuration, and every tensor of the file must have a role: one without (an
//! expert, a sink, a scale) would change the arithmetic if it were ignored.

use super::architecture::{Conventions, Experts as OfArchitecture, QkNorms, RopeFactors};
use super::config::ModelConfig;
use super::delta_net::DeltaNetConfig;
use super::error::ModelError;
use super::experts::ExpertsConfig;
use super::gguf::{Header, TensorView};
use super::heads::Heads;
use super::layer::{
    Attention, Block, DeltaNet, DenseBeside, Experts, FeedForward, GatedUnit, KvOrigin, Layer,
    LayerInput, LayerInputs, Linear, Mamba, Mixer, ModelWeights, SharedExpert, ShortConv,
};
use super::mamba::MambaConfig;
use super::recurrent::Recurrence;
use super::short_conv::ShortConvConfig;
use super::{experts, rerank, rope};
use std::collections::HashSet;
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::delta_net::HeadOrder;

/// Inputs of a delta net in one tensor.
const JOINT_INPUTS: &str = "ssm_in.weight";

/// The model's tensors as views into the mapped file.
pub type FileWeights<'a> = ModelWeights<TensorView<'a>, TensorView<'a>>;
pub type FileLinear<'a> = Linear<TensorView<'a>, TensorView<'a>>;
type FileAttention<'a> = Attention<TensorView<'a>, TensorView<'a>>;
type FileDeltaNet<'a> = DeltaNet<TensorView<'a>, TensorView<'a>>;
type FileShortConv<'a> = ShortConv<TensorView<'a>, TensorView<'a>>;
type FileMamba<'a> = Mamba<TensorView<'a>, TensorView<'a>>;
type FileMixer<'a> = Mixer<TensorView<'a>, TensorView<'a>>;
type FileFeedForward<'a> = FeedForward<TensorView<'a>, TensorView<'a>>;
type FileExperts<'a> = Experts<TensorView<'a>, TensorView<'a>>;
type FileDenseBeside<'a> = DenseBeside<TensorView<'a>, TensorView<'a>>;
type FileLayerInputs<'a> = LayerInputs<TensorView<'a>, TensorView<'a>>;
type FileLayerInput<'a> = LayerInput<TensorView<'a>, TensorView<'a>>;
type FileUnit<'a> = GatedUnit<TensorView<'a>, TensorView<'a>>;
type FileLayer<'a> = Layer<TensorView<'a>, TensorView<'a>>;

impl<'a> FileWeights<'a> {
    /// Assigns each tensor its role.
    ///
    /// # Errors
    /// If a tensor is missing, has another shape than the configuration defines, a type that its role does not allow,
    /// or no role at all.
    pub fn from_gguf(header: &Header<'a>, config: &ModelConfig) -> Result<Self, ModelError> {
        let mut tensors = Tensors {
            header,
            used: HashSet::new(),
        };
        let (vocab, n_embd) = (config.vocab_size, config.n_embd);
        let token_embd = tensors.matrix("token_embd.weight", vocab, n_embd)?;
        let output_norm = config.architecture.conventions().output_norm;
        let output_norm = tensors.vector(output_norm, n_embd)?;
        let output = tensors.optional_matrix("output.weight", vocab, n_embd)?;
        let bias = tensors.optional_vector("output.bias", vocab)?;
        let layer_inputs = tensors.layer_inputs(config)?;
        let mut layers = Vec::new();
        for index in 0..config.n_layers {
            layers.push(
                LayerReader {
                    tensors: &mut tensors,
                    config,
                    conventions: config.architecture.conventions(),
                    index,
                }
                .read()?,
            );
        }
        if config.architecture.conventions().has_rank_head {
            // Not part of a step: the rank head reads it.
            tensors.optional_matrix(rerank::HEAD, rerank::HEAD_ROWS, n_embd)?;
        }
        tensors.refuse_unused(config)?;
        Ok(Self {
            token_embd: output.map(|_| token_embd),
            layer_inputs,
            layers,
            output_norm,
            output: Linear {
                weight: output.unwrap_or(token_embd),
                bias,
            },
        })
    }
}

/// Reader of a layer's tensors, by name.
struct LayerReader<'t, 'h, 'a> {
    tensors: &'t mut Tensors<'h, 'a>,
    config: &'t ModelConfig,
    conventions: Conventions,
    index: usize,
}

impl<'a> LayerReader<'_, '_, 'a> {
    fn read(mut self) -> Result<FileLayer<'a>, ModelError> {
        let config = self.config;
        Ok(Layer {
            mixer: match config.has_mixer(self.index) {
                true => Some(Block {
                    norm: self.vector("attn_norm.weight", config.n_embd)?,
                    part: self.mixer()?,
                    post_norm: self.post_norm("post_attention_norm.weight")?,
                }),
                false => None,
            },
            feed_forward: match config.has_feed_forward(self.index) {
                true => Some(Block {
                    norm: self.vector(self.conventions.ffn_norm, config.n_embd)?,
                    part: self.feed_forward()?,
                    post_norm: self.post_norm("post_ffw_norm.weight")?,
                }),
                false => None,
            },
            input: match config.layer_input {
                Some(width) => Some(self.input(width)?),
                None => None,
            },
            output_scale: match self.conventions.scales_output {
                true => self.optional_vector("layer_output_scale.weight", 1)?,
                false => None,
            },
        })
    }

    fn feed_forward(&mut self) -> Result<FileFeedForward<'a>, ModelError> {
        Ok(match self.config.experts_of(self.index) {
            None => FeedForward::Dense(self.dense()?),
            Some(experts) => FeedForward::Experts(self.experts(experts)?),
        })
    }

    fn mixer(&mut self) -> Result<FileMixer<'a>, ModelError> {
        let recurrent = self.config.recurrent.as_ref();
        Ok(match recurrent.filter(|it| it.is_in(self.index)) {
            None => Mixer::Attention(self.attention()?),
            Some(recurrent) => match &recurrent.recurrence {
                Recurrence::DeltaNet(net) => Mixer::DeltaNet(self.delta_net(net)?),
                Recurrence::ShortConv(conv) => Mixer::ShortConv(self.short_conv(conv)?),
                Recurrence::Mamba(mamba) => Mixer::Mamba(self.mamba(mamba)?),
            },
        })
    }

    fn attention(&mut self) -> Result<FileAttention<'a>, ModelError> {
        let config = self.config;
        let heads = config.heads_of(self.index);
        let (qkv, kv) = self.qkv(heads)?;
        let [q_norm, k_norm] = self.qk_norms(heads, kv)?;
        let sinks = self.conventions.has_sinks;
        let sinks = sinks.then(|| self.vector("attn_sinks.weight", config.n_heads));
        let output = self.linear("attn_output", config.n_embd, heads.width())?;
        if self.conventions.has_output_bias {
            self.require(output.bias, "attn_output.bias")?;
        }
        Ok(Attention {
            qkv,
            kv,
            q_norm,
            k_norm,
            sinks: sinks.transpose()?,
            output,
        })
    }

    fn delta_net(&mut self, net: &DeltaNetConfig) -> Result<FileDeltaNet<'a>, ModelError> {
        // The first files of Qwen3-Next.
        if self.has(JOINT_INPUTS) {
            let feature =
                "queries, keys, values and gates in one tensor; newer converters write two";
            return Err(ModelError::unsupported(self.name(JOINT_INPUTS), feature));
        }
        let (n_embd, v_heads) = (self.config.n_embd, net.v_heads);
        let (beta, alpha) = match net.order {
            HeadOrder::Tiled => {
                let alpha = self.linear("ssm_alpha", v_heads, n_embd)?;
                (self.linear("ssm_beta", v_heads, n_embd)?, Some(alpha))
            }
            HeadOrder::Grouped => (self.linear("ssm_ba", 2 * v_heads, n_embd)?, None),
        };
        Ok(DeltaNet {
            qkv: self.linear("attn_qkv", net.channels(), n_embd)?,
            gate: self.linear("attn_gate", net.v_width(), n_embd)?,
            beta,
            alpha,
            conv: self.table("ssm_conv1d.weight", net.kernel, net.channels())?,
            dt: self.vector("ssm_dt.bias", v_heads)?,
            decay: self.vector("ssm_a", v_heads)?,
            norm: self.vector("ssm_norm.weight", net.head_dim)?,
            output: self.linear("ssm_out", n_embd, net.v_width())?,
        })
    }

    fn short_conv(&mut self, conv: &ShortConvConfig) -> Result<FileShortConv<'a>, ModelError> {
        let (n_embd, width) = (self.config.n_embd, conv.width);
        Ok(ShortConv {
            input: self.linear("shortconv.in_proj", conv.projected_width(), n_embd)?,
            conv: self.table("shortconv.conv.weight", conv.kernel, width)?,
            output: self.linear("shortconv.out_proj", n_embd, width)?,
        })
    }

    fn mamba(&mut self, mamba: &MambaConfig) -> Result<FileMamba<'a>, ModelError> {
        let (n_embd, width) = (self.config.n_embd, mamba.width());
        let (channels, heads, groups) = (mamba.channels(), mamba.heads, mamba.groups);
        Ok(Mamba {
            input: self.linear("ssm_in", mamba.projected_width(), n_embd)?,
            conv: self.table("ssm_conv1d.weight", mamba.kernel, channels)?,
            conv_bias: self.optional_vector("ssm_conv1d.bias", channels)?,
            dt: self.vector("ssm_dt.bias", heads)?,
            decay: self.table("ssm_a", 1, heads)?,
            direct: self.table("ssm_d", 1, heads)?,
            norm: self.table("ssm_norm.weight", width / groups, groups)?,
            output: self.linear("ssm_out", n_embd, width)?,
        })
    }

    /// Rows of F32 values.
    fn table(
        &mut self,
        tensor: &str,
        cols: usize,
        rows: usize,
    ) -> Result<TensorView<'a>, ModelError> {
        let name = self.name(tensor);
        let found = self.tensors.optional_f32(&name, [cols, rows, 1, 1])?;
        found.ok_or(ModelError::MissingTensor(name))
    }

    /// Queries, keys and values.
    fn qkv(&mut self, heads: Heads) -> Result<([FileLinear<'a>; 3], KvOrigin), ModelError> {
        let config = self.config;
        let q_dim = config.queries_width_of(heads.width());
        let kv_dim = heads.kv_width();
        if self.conventions.is_fused && self.has("attn_qkv.weight") {
            let fused = self.linear("attn_qkv", q_dim + 2 * kv_dim, config.n_embd)?;
            let qkv = [
                slice(fused, 0, q_dim),
                slice(fused, q_dim, kv_dim),
                slice(fused, q_dim + kv_dim, kv_dim),
            ];
            return Ok((qkv, KvOrigin::Projected));
        }
        let q = self.linear("attn_q", q_dim, config.n_embd)?;
        if self.index >= config.kv_layers() {
            self.leave_kv(heads)?;
            return Ok(([q; 3], KvOrigin::Earlier));
        }
        let k = self.linear("attn_k", kv_dim, config.n_embd)?;
        if self.conventions.normalizes_values && !self.has("attn_v.weight") {
            return Ok(([q, k, k], KvOrigin::KeysAreValues));
        }
        let qkv = [q, k, self.linear("attn_v", kv_dim, config.n_embd)?];
        // A model trained with these biases produces garbage without them.
        if self.conventions.has_qkv_bias {
            for (linear, name) in qkv
                .iter()
                .zip(["attn_q.bias", "attn_k.bias", "attn_v.bias"])
            {
                self.require(linear.bias, name)?;
            }
        }
        Ok((qkv, KvOrigin::Projected))
    }

    /// A layer with keys and values of an earlier one may have tensors for its own in spite of that: the original weights have
    /// them. They are not loaded.
    fn leave_kv(&mut self, heads: Heads) -> Result<(), ModelError> {
        let [k, v, norm] =
            ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"].map(|name| self.name(name));
        for name in [k, v] {
            self.tensors
                .optional_matrix(&name, heads.kv_width(), self.config.n_embd)?;
        }
        self.tensors.optional_vector(&norm, heads.dim)?;
        Ok(())
    }

    fn input(&mut self, width: usize) -> Result<FileLayerInput<'a>, ModelError> {
        let n_embd = self.config.n_embd;
        Ok(LayerInput {
            gate: self.linear("inp_gate", width, n_embd)?,
            output: self.linear("proj", n_embd, width)?,
            post_norm: self.vector("post_norm.weight", n_embd)?,
        })
    }

    fn require(&self, tensor: Option<TensorView<'a>>, name: &str) -> Result<(), ModelError> {
        let missing = || ModelError::MissingTensor(self.name(name));
        tensor.map(drop).ok_or_else(missing)
    }

    fn qk_norms(
        &mut self,
        heads: Heads,
        kv: KvOrigin,
    ) -> Result<[Option<TensorView<'a>>; 2], ModelError> {
        let [q, k] = ["attn_q_norm.weight", "attn_k_norm.weight"];
        let (of_q, of_k) = match self.conventions.qk_norms {
            QkNorms::None => return Ok([None; 2]),
            QkNorms::OptionalOfHeads => {
                let q_norm = self.optional_vector(q, heads.dim)?;
                return Ok([q_norm, self.optional_vector(k, heads.dim)?]);
            }
            QkNorms::OfHeads => (heads.dim, heads.dim),
            QkNorms::Joint => (heads.width(), heads.kv_width()),
        };
        let q_norm = self.vector(q, of_q)?;
        let k_norm = match kv {
            KvOrigin::Earlier => None,
            KvOrigin::Projected | KvOrigin::KeysAreValues => Some(self.vector(k, of_k)?),
        };
        Ok([Some(q_norm), k_norm])
    }

    fn post_norm(&mut self, tensor: &str) -> Result<Option<TensorView<'a>>, ModelError> {
        if !self.conventions.has_post_norms {
            return Ok(None);
        }
        self.vector(tensor, self.config.n_embd).map(Some)
    }

    fn dense(&mut self) -> Result<FileUnit<'a>, ModelError> {
        let (n_ff, n_embd) = (self.config.n_ff_of(self.index), self.config.n_embd);
        let has_gate = self.conventions.has_gate;
        let gate_up = if self.conventions.is_fused {
            let fused = self.linear("ffn_up", 2 * n_ff, n_embd)?;
            [slice(fused, 0, n_ff), slice(fused, n_ff, n_ff)]
        } else if !has_gate {
            [self.linear("ffn_up", n_ff, n_embd)?; 2]
        } else {
            [
                self.linear("ffn_gate", n_ff, n_embd)?,
                self.linear("ffn_up", n_ff, n_embd)?,
            ]
        };
        Ok(GatedUnit {
            gate_up,
            has_gate,
            down: self.linear("ffn_down", n_embd, n_ff)?,
        })
    }

    fn experts(&mut self, config: &ExpertsConfig) -> Result<FileExperts<'a>, ModelError> {
        let n_embd = self.config.n_embd;
        // Format of the first Mixtral files.
        if self.has("ffn_gate.0.weight") {
            let (key, feature) = (self.name("ffn_gate.0.weight"), "a tensor for each expert");
            return Err(ModelError::unsupported(key, feature));
        }
        Ok(Experts {
            config: *config,
            router: self.of_experts("ffn_gate_inp", [n_embd, config.count, 1, 1], config)?,
            choice_bias: match config.has_choice_bias {
                true => Some(self.vector(experts::CHOICE_BIAS, config.count)?),
                false => None,
            },
            unit: match self.conventions.experts {
                OfArchitecture::BesideDense => self.unit_of_fused_experts(config)?,
                _ => self.unit_of_experts("exps", config.n_ff, config.count, config)?,
            },
            output_scales: match config.beside_dense {
                true => self.optional_vector("ffn_down_exps.scale", config.count)?,
                false => None,
            },
            beside: match config.beside_dense {
                true => Some(self.dense_beside()?),
                false => None,
            },
            shared: match config.shared_n_ff {
                Some(n_ff) => Some(SharedExpert {
                    weigher: match config.gates_shared {
                        true => Some(self.of_experts(
                            "ffn_gate_inp_shexp",
                            [n_embd, 1, 1, 1],
                            config,
                        )?),
                        false => None,
                    },
                    unit: self.unit_of_experts("shexp", n_ff, 1, config)?,
                }),
                None => None,
            },
        })
    }

    fn dense_beside(&mut self) -> Result<FileDenseBeside<'a>, ModelError> {
        let n_embd = self.config.n_embd;
        Ok(DenseBeside {
            unit: self.dense()?,
            post_norm: self.vector("post_ffw_norm_1.weight", n_embd)?,
            experts_norm: self.vector("pre_ffw_norm_2.weight", n_embd)?,
            experts_post_norm: self.vector("post_ffw_norm_2.weight", n_embd)?,
            router_scale: self.vector("ffn_gate_inp.scale", n_embd)?,
        })
    }

    /// Experts whose gate and up are one tensor, each expert's gate in front of its up; or in two, as others have them.
    fn unit_of_fused_experts(
        &mut self,
        config: &ExpertsConfig,
    ) -> Result<FileUnit<'a>, ModelError> {
        if !self.has("ffn_gate_up_exps.weight") {
            return self.unit_of_experts("exps", config.n_ff, config.count, config);
        }
        let (n_embd, n_ff, experts) = (self.config.n_embd, config.n_ff, config.count);
        let fused = [n_embd, 2 * n_ff, experts, 1];
        let fused = self.of_experts("ffn_gate_up_exps", fused, config)?;
        let part = |start| {
            let weight = fused.weight.rows_of_each(experts, start, n_ff);
            Linear {
                weight: weight.expect("the fused shape was checked"),
                bias: None,
            }
        };
        let outer = [n_ff, n_embd, experts, 1];
        Ok(GatedUnit {
            gate_up: [part(0), part(n_ff)],
            has_gate: true,
            down: self.of_experts("ffn_down_exps", outer, config)?,
        })
    }

    fn unit_of_experts(
        &mut self,
        kind: &str,
        n_ff: usize,
        experts: usize,
        config: &ExpertsConfig,
    ) -> Result<FileUnit<'a>, ModelError> {
        let n_embd = self.config.n_embd;
        let [inner, outer] = [[n_embd, n_ff, experts, 1], [n_ff, n_embd, experts, 1]];
        let has_gate = self.conventions.has_gate;
        let gate = match has_gate {
            true => Some(self.of_experts(&format!("ffn_gate_{kind}"), inner, config)?),
            false => None,
        };
        let up = self.of_experts(&format!("ffn_up_{kind}"), inner, config)?;
        Ok(GatedUnit {
            gate_up: [gate.unwrap_or(up), up],
            has_gate,
            down: self.of_experts(&format!("ffn_down_{kind}"), outer, config)?,
        })
    }

    /// A linear layer of experts. If the architecture has biases, its bias is required. If not, llama.cpp reads none,
    /// so an existing bias has no role.
    fn of_experts(
        &mut self,
        stem: &str,
        dims: [usize; 4],
        config: &ExpertsConfig,
    ) -> Result<FileLinear<'a>, ModelError> {
        let name = format!("{}.weight", self.name(stem));
        let weight = self.tensors.take(&name, dims)?;
        let weight = weight.ok_or(ModelError::MissingTensor(name))?;
        let mut bias = None;
        if config.has_biases {
            let name = format!("{}.bias", self.name(stem));
            let [_, rows, experts, _] = dims;
            bias = self.tensors.optional_f32(&name, [rows, experts, 1, 1])?;
            bias.ok_or(ModelError::MissingTensor(name))?;
        }
        Ok(Linear { weight, bias })
    }

    fn name(&self, tensor: &str) -> String {
        format!("blk.{}.{tensor}", self.index)
    }

    fn has(&self, tensor: &str) -> bool {
        self.tensors
            .header
            .tensor_info(&self.name(tensor))
            .is_some()
    }

    fn vector(&mut self, tensor: &str, len: usize) -> Result<TensorView<'a>, ModelError> {
        let name = self.name(tensor);
        self.tensors.vector(&name, len)
    }

    fn optional_vector(
        &mut self,
        tensor: &str,
        len: usize,
    ) -> Result<Option<TensorView<'a>>, ModelError> {
        let name = self.name(tensor);
        self.tensors.optional_vector(&name, len)
    }

    fn linear(
        &mut self,
        stem: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<FileLinear<'a>, ModelError> {
        let name = self.name(stem);
        Ok(Linear {
            weight: self
                .tensors
                .matrix(&format!("{name}.weight"), n_out, n_in)?,
            bias: self
                .tensors
                .optional_vector(&format!("{name}.bias"), n_out)?,
        })
    }
}

/// A range of the outputs of a fused linear layer with a checked shape.
fn slice(fused: FileLinear<'_>, start: usize, len: usize) -> FileLinear<'_> {
    Linear {
        weight: fused
            .weight
            .row_range(start, len)
            .expect("the fused shape was checked"),
        bias: fused.bias.map(|bias| {
            bias.element_range(start, len)
                .expect("the fused shape was checked")
        }),
    }
}

/// The tensor table, with a mark for each tensor with a role.
struct Tensors<'h, 'a> {
    header: &'h Header<'a>,
    used: HashSet<&'a str>,
}

impl<'a> Tensors<'_, 'a> {
    fn layer_inputs(
        &mut self,
        config: &ModelConfig,
    ) -> Result<Option<FileLayerInputs<'a>>, ModelError> {
        let Some(width) = config.layer_input else {
            return Ok(None);
        };
        let (vocab, all) = (config.vocab_size, config.n_layers * width);
        Ok(Some(LayerInputs {
            table: self.matrix("per_layer_token_embd.weight", vocab, all)?,
            projection: Linear {
                weight: self.matrix("per_layer_model_proj.weight", all, config.n_embd)?,
                bias: None,
            },
            norm: self.vector("per_layer_proj_norm.weight", width)?,
        }))
    }

    fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<TensorView<'a>, ModelError> {
        self.optional_matrix(name, rows, cols)?
            .ok_or_else(|| ModelError::MissingTensor(name.to_owned()))
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<TensorView<'a>, ModelError> {
        self.optional_vector(name, len)?
            .ok_or_else(|| ModelError::MissingTensor(name.to_owned()))
    }

    fn optional_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<TensorView<'a>>, ModelError> {
        self.take(name, [cols, rows, 1, 1])
    }

    fn optional_vector(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<TensorView<'a>>, ModelError> {
        self.optional_f32(name, [len, 1, 1, 1])
    }

    /// An optional F32 vector: llama.cpp writes norms and biases as F32 in every file.
    fn optional_f32(
        &mut self,
        name: &str,
        dims: [usize; 4],
    ) -> Result<Option<TensorView<'a>>, ModelError> {
        let Some(view) = self.take(name, dims)? else {
            return Ok(None);
        };
        if view.ty != TensorType::F32 {
            let (expected, found) = ("F32", view.ty.name());
            return Err(ModelError::TensorType {
                tensor: name.to_owned(),
                expected,
                found,
            });
        }
        Ok(Some(view))
    }

    fn take(&mut self, name: &str, dims: [usize; 4]) -> Result<Option<TensorView<'a>>, ModelError> {
        let Some(info) = self.header.tensor_info(name) else {
            return Ok(None);
        };
        if info.dims != dims {
            let (expected, found) = (dims.to_vec(), info.dims.to_vec());
            return Err(ModelError::Shape {
                tensor: name.to_owned(),
                expected,
                found,
            });
        }
        self.used.insert(info.name);
        Ok(self.header.tensor(name))
    }

    fn refuse_unused(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let factors: &[&str] = match config.architecture.conventions().rope_factors {
            None => &[],
            Some(RopeFactors::OfWholeLayers) => &[rope::FREQS],
            Some(_) => &[rope::FREQS, rope::FACTORS_SHORT, rope::FACTORS_LONG],
        };
        let is_rope = |name: &str| factors.contains(&name);
        let mtp = config.n_layers..config.n_layers + config.n_mtp_layers;
        let is_mtp = |name: &str| {
            let block = name.strip_prefix("blk.").and_then(|it| it.split_once('.'));
            let index = block.and_then(|(index, _)| index.parse().ok());
            index.is_some_and(|index| mtp.contains(&index))
        };
        let has_role = |name: &str| self.used.contains(name) || is_rope(name) || is_mtp(name);
        let mut names = self.header.tensors().iter().map(|tensor| tensor.name);
        match names.find(|name| !has_role(name)) {
            None => Ok(()),
            Some(name) => Err(ModelError::UnexpectedTensor(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
