"""Tiny random GGUF files: every architecture with every tensor type, small enough to write,
load and compare in a moment.

Two layers or a few, grouped-query attention (four heads on two), widths that are multiples of 256 so
that K-quants fit, and a byte-level vocabulary that both engines accept. Blocks are made by
ggml's own quantizers: both engines read the same bytes, so quantization error is no part of
the comparison.
"""

from dataclasses import dataclass, replace

import gguf
import numpy as np

import gguf_writer
import llama_cpp

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
TYPES += ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
TYPES += ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]

# One type for each matrix, by a part of its name, as Unsloth's dynamic files have them; the first that fits counts.
MIXES = {
    "UD": {
        "token_embd": "Q3_K",
        "output.weight": "Q6_K",
        "attn_k": "Q8_0",
        "attn_v": "F32",
        "attn_": "IQ4_XS",
        "blk.0.ffn_down": "Q3_K",
        "blk.1.ffn_down": "IQ4_NL",
        "blk.0.ffn_gate": "Q2_K",
        "blk.1.ffn_gate": "IQ3_XXS",
        "ffn_up": "MXFP4",
    },
}

N_LAYERS = 2
N_EMBD = 256
N_FF = 512
# Widths that are multiples of 256 too, and differ.
N_EXPERT_FF = 256
N_SHARED_FF = 768
N_EXPERTS = 8
# Of Gemma 4's logits: small enough to bend those of random weights.
LOGIT_CAP = 4.0
# Of state spaces: heads in groups, their width, that of their state, and positions that the convolution sees.
N_MAMBA_HEADS, N_MAMBA_GROUPS, MAMBA_DIM, MAMBA_STATE, MAMBA_KERNEL = 16, 2, 32, 64, 4
MAMBA_WIDTH = N_MAMBA_HEADS * MAMBA_DIM
MAMBA_CHANNELS = MAMBA_WIDTH + 2 * N_MAMBA_GROUPS * MAMBA_STATE
# Positions that a short convolution sees.
CONV_KERNEL = 3
# Squares are large beside what the rest of a row has, and routers see them.
NEMOTRON_DOWN = 0.3
# Products of three numbers have large ones among them, beside which rounding takes much of the others.
CONV_OUT = 0.5
# How far the experts of a token are ahead of the others.
LEAD = 6.0
# gpt-oss's units give large numbers, beside which a row's own experts and its attention would not show.
GPT_OSS_DOWN = 0.15
N_HEADS = 4
N_KV_HEADS = 2
# Of a delta net: heads of keys and of values, their width, and positions that the convolution sees.
N_DELTA_KEYS, N_DELTA_VALUES, DELTA_DIM, DELTA_KERNEL = 2, 4, 64, 4
DELTA_VALUES = N_DELTA_VALUES * DELTA_DIM
DELTA_CHANNELS = 2 * N_DELTA_KEYS * DELTA_DIM + DELTA_VALUES
CONTEXT = 128
# 256 bytes, a few merges, three control tokens, and filler up to a multiple of nothing special.
N_VOCAB = 300
# Tokens that are compared.
N_TOKENS = 24
# Of cos and sin, where a file has short and long factors.
LONG_ROPE_STRETCH = 1.19
# Llama 3.1's own numbers, but for the context, so that waves are short, long and between within a small head.
LLAMA3_ROPE = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32
}


@dataclass(frozen=True)
class Variant:
    """One architecture and the switches of it that a file may use."""

    name: str
    architecture: str
    head_dim: int
    layers: int = N_LAYERS
    qkv_bias: bool = False
    qk_norm: bool = False
    fused: bool = False
    tied: bool = False
    rope_dims: int | None = None
    # Per-pair divisors in a tensor of their own, evenly rising.
    rope_freqs: bool = False
    # The same tensor, by the formula of Llama 3.1.
    llama3_rope: bool = False
    linear_rope_scale: float | None = None
    # YaRN: the context is so many times the original one.
    yarn_scale: int | None = None
    # What the logarithm of that scale is multiplied by where cos and sin are not stretched.
    yarn_log_multiplier: float | None = None
    # How much longer queries are behind each original context.
    temperature_scale: float | None = None
    # Positions that queries of most layers see, and the period of those that see all where it is not llama.cpp's.
    window: int | None = None
    window_period: int | None = None
    window_rope_base: float | None = None
    # Norms behind attention and the feed-forward part.
    post_norms: bool = False
    # Phi-3 long context: factors for sequences within and beyond this length.
    rope_original_context: int | None = None
    rope_base: float = 10000.0
    # Experts of eight that a token uses, their width, and whether there is one that all tokens use.
    experts_used: int = 0
    expert_width: int = N_EXPERT_FF
    shared_expert: bool = False
    # Of GLM: so many of the experts' width are shared as one, without a gate; and it has a factor of weights, which may add up to 1.
    shared_count: int = 0
    weights_scale: float | None = None
    weights_norm: bool | None = None
    # Weights are sigmoids, and each expert has a bias that only chooses.
    sigmoid: bool = False
    choice_bias: bool = False
    # The first layers have no experts.
    dense_layers: int = 0
    # Norms of queries and keys over all heads of a row.
    joint_norms: bool = False
    # Qwen3.5 and Qwen3-Next: gates of attention, which the last of so many layers has, and delta nets in the others.
    attention_every: int | None = None
    # LFM2: layers with a short convolution in place of attention.
    conv_layers: tuple[int, ...] = ()
    # Granite 4.0: layers with state spaces in place of attention, factors of embeddings, blocks, scores and logits, and whether layers
    # with attention rotate.
    mamba_layers: tuple[int, ...] = ()
    rotates: bool = True
    # Nemotron-H: layers of one block: those with a feed-forward part, which has no gate. The others have a mixer alone.
    feed_forward_layers: tuple[int, ...] = ()
    # Gemma 4: norms of values, a factor of each layer's output, windows in a list, capped logits, and in layers that see
    # all: heads of this size, one for keys and values, a quarter of the pairs turning.
    whole_head_dim: int | None = None
    # Its layers that see all have no matrix of values.
    values_are_keys: bool = False
    # Of E2B and E4B: the last layers that have the keys and values of earlier ones, and wider feed-forward parts; the width of
    # what each layer has of a token.
    shared_kv_layers: int = 0
    layer_input: int | None = None
    # Of norms. With a large one a factor in front of a norm changes what is behind it.
    epsilon: float = 1e-5
    # gpt-oss: sinks, biases everywhere, a window on every second layer, another name of a norm.
    gpt_oss: bool = False
    # Parts of a rotation by the place in an image, which are equal in a text.
    rope_sections: tuple[int, ...] | None = None
    tokens: int = N_TOKENS
    # Rows choose their experts freely. With this seed no two experts are about as likely at the end of the chosen ones:
    # what is rounded in another way (keys and values, by us) sends no row to another expert.
    free_seed: int | None = None

    def has_delta_net(self, layer):
        return self.attention_every is not None and (layer + 1) % self.attention_every != 0

    def has_conv(self, layer):
        return layer in self.conv_layers

    def has_mamba(self, layer):
        return layer in self.mamba_layers

    def has_attention(self, layer):
        is_recurrent = self.has_delta_net(layer) or self.has_conv(layer) or self.has_mamba(layer)
        return not is_recurrent and layer not in self.feed_forward_layers

    @property
    def is_nemotron(self):
        return bool(self.feed_forward_layers)

    def has_feed_forward(self, layer):
        return not self.is_nemotron or layer in self.feed_forward_layers

    @property
    def is_gemma4(self):
        return self.whole_head_dim is not None

    @property
    def ffn_norm(self):
        is_post = self.gpt_oss or self.attention_every or self.architecture in ("seed_oss", "glm4moe")
        return "post_attention_norm" if is_post else "ffn_norm"

    def has_experts(self, layer):
        return self.experts_used > 0 and layer >= self.dense_layers and self.has_feed_forward(layer)

    @property
    def shared_width(self):
        """Of the expert that all tokens use; 0 without one."""
        return self.shared_count * self.expert_width or (N_SHARED_FF if self.shared_expert else 0)

    @property
    def gates_shared(self):
        return self.shared_expert and self.architecture not in ("ernie4_5-moe", "granitehybrid", "nemotron_h_moe")

    def sees_all(self, layer):
        return (layer + 1) % self.window_period == 0

    def kv_heads(self):
        """As a file has them: a number, or one for each layer."""
        if not (self.is_gemma4 or self.conv_layers or self.mamba_layers):
            return N_KV_HEADS
        return [self.heads(layer)[0] if self.has_attention(layer) else 0 for layer in range(self.layers)]

    def heads(self, layer):
        """(heads of keys and values, their size)"""
        if not self.is_gemma4:
            return N_KV_HEADS, self.head_dim
        return (1, self.whole_head_dim) if self.sees_all(layer) else (N_HEADS, self.head_dim)

    def has_values(self, layer):
        return not (self.values_are_keys and self.sees_all(layer))

    def shares_kv(self, layer):
        return layer >= self.layers - self.shared_kv_layers

    def n_ff(self, layer):
        if not self.has_feed_forward(layer):
            return 0
        if self.is_nemotron and self.experts_used:
            return self.expert_width
        return 2 * N_FF if self.shares_kv(layer) else N_FF

    def q_width(self, layer):
        return N_HEADS * self.heads(layer)[1]

    def kv_width(self, layer):
        heads, size = self.heads(layer)
        return heads * size


# One for each architecture, swept over all tensor types ...
MAIN = [
    Variant("llama", "llama", head_dim=64),
    Variant("qwen2", "qwen2", head_dim=64, qkv_bias=True, tied=True, rope_base=1e6),
    # Qwen3's heads are wider than n_embd / n_heads.
    Variant("qwen3", "qwen3", head_dim=128, qk_norm=True, tied=True, rope_base=1e6),
    Variant("phi3", "phi3", head_dim=64, fused=True),
    Variant("qwen3moe", "qwen3moe", head_dim=128, qk_norm=True, rope_base=1e6, experts_used=3),
    Variant(
        "qwen2moe", "qwen2moe", head_dim=64, qkv_bias=True, rope_base=1e6, experts_used=3, shared_expert=True
    ),
    # The window ends and the original context does within the tokens that are compared.
    Variant(
        "gpt-oss", "gpt-oss",
        head_dim=64,
        qkv_bias=True,
        rope_base=150000.0,
        yarn_scale=4,
        experts_used=3,
        gpt_oss=True,
        window=16,
        tokens=60,
    ),
    Variant("mixtral", "llama", head_dim=64, rope_base=1e6, experts_used=2, expert_width=N_FF),
    # The fourth layer does not rotate.
    Variant("smollm3", "smollm3", head_dim=64, layers=5, tied=True, rope_base=5e6),
    # The third layer sees all.
    Variant(
        "gemma3", "gemma3", head_dim=64, layers=4, qk_norm=True, tied=True, window=6, window_period=3, post_norms=True,
        rope_base=1e6, linear_rope_scale=8.0,
    ),
    Variant(
        "mistral3", "mistral3", head_dim=128, yarn_scale=16, yarn_log_multiplier=1.0, temperature_scale=0.1, rope_base=1e6
    ),
]

MAIN += [
    # More tokens than a block of a recurrent state has.
    Variant(
        "qwen35", "qwen35", head_dim=64, layers=3, qk_norm=True, rope_dims=32, rope_base=1e7, rope_sections=(6, 5, 5, 0),
        attention_every=3, tokens=75,
    ),
    Variant(
        "qwen35moe", "qwen35moe", head_dim=64, layers=3, qk_norm=True, rope_dims=32, rope_base=1e7,
        rope_sections=(6, 5, 5, 0), attention_every=3, experts_used=3, shared_expert=True, tokens=75,
    ),
    Variant(
        "qwen3next", "qwen3next", head_dim=64, layers=3, qk_norm=True, rope_dims=32, rope_base=1e7,
        attention_every=3, experts_used=3, shared_expert=True, tokens=75,
    ),
]  # fmt: skip

# More tokens than a window and a page of one.
GEMMA_4 = {
    "head_dim": 64, "layers": 3, "qk_norm": True, "tied": True, "window": 6, "window_period": 3, "post_norms": True,
    "rope_base": 1e6, "whole_head_dim": 128, "values_are_keys": True, "tokens": 75,
}  # fmt: skip
MAIN += [
    Variant("gemma4", "gemma4", **GEMMA_4),
    Variant("gemma4-experts", "gemma4", **GEMMA_4, experts_used=3),
]

# ... and the switches that only change arithmetic in F32, where nothing hides a mistake.
EXTRA = [
    Variant("llama-rope-freqs", "llama", head_dim=64, rope_freqs=True, rope_base=5e5),
    Variant("llama3-rope", "llama", head_dim=64, llama3_rope=True, rope_base=5e5),
    Variant("llama-linear-rope", "llama", head_dim=64, linear_rope_scale=4.0, tied=True),
    Variant("llama-yarn", "llama", head_dim=64, yarn_scale=8, rope_base=5e5),
    Variant("smollm3-yarn", "smollm3", head_dim=64, layers=8, yarn_scale=4, rope_base=5e6),
    # The sixth layer sees all, as no key says.
    Variant("gemma3-pattern", "gemma3", head_dim=64, layers=7, qk_norm=True, tied=True, window=6, post_norms=True),
    Variant(
        "gemma3-large-heads", "gemma3", head_dim=256, layers=3, qk_norm=True, window=9, window_period=3, post_norms=True,
        rope_base=1e6,
    ),
    Variant(
        "gemma3-near", "gemma3", head_dim=64, layers=4, qk_norm=True, tied=True, window=5, window_period=2, post_norms=True,
        rope_base=300.0, window_rope_base=77.0,
    ),
    Variant(
        "gemma4-values", "gemma4",
        **GEMMA_4 | {"values_are_keys": False, "tied": False, "layers": 6, "window_rope_base": 77.0},
    ),
    # The fourth and the fifth layer attend to what the second has, the sixth to what the third has.
    Variant(
        "gemma4-e2b", "gemma4",
        **GEMMA_4 | {"values_are_keys": False, "layers": 6, "tokens": 45},
        shared_kv_layers=3, layer_input=256, epsilon=0.05,
    ),
    Variant("gemma4-large-heads", "gemma4", **GEMMA_4 | {"head_dim": 256, "whole_head_dim": 512, "tokens": 40}),
    Variant("mistral3-plain", "mistral3", head_dim=64, tied=True, rope_freqs=True),
    Variant("mistral3-yarn", "mistral3", head_dim=64, yarn_scale=8, temperature_scale=0.7),
    Variant("mistral3-log", "mistral3", head_dim=64, yarn_scale=8, yarn_log_multiplier=0.5, temperature_scale=-0.2),
    Variant("qwen3vl", "qwen3vl", head_dim=128, qk_norm=True, tied=True, rope_base=5e6, rope_sections=(24, 20, 20, 0)),
    Variant(
        "qwen3vlmoe", "qwen3vlmoe", head_dim=128, qk_norm=True, rope_base=5e6, rope_sections=(24, 20, 20, 0), experts_used=3
    ),
    Variant("qwen3-yarn", "qwen3", head_dim=128, qk_norm=True, tied=True, yarn_scale=4),
    Variant("phi3-short-factors", "phi3", head_dim=64, fused=True, rope_original_context=4096),
    Variant("phi3-long-factors", "phi3", head_dim=64, fused=True, rope_original_context=CONTEXT // 2),
    Variant("seed_oss", "seed_oss", head_dim=64, qkv_bias=True, rope_base=1e7),
    Variant("ernie4_5", "ernie4_5", head_dim=64, tied=True, rope_base=5e5),
    Variant(
        "ernie4_5-moe", "ernie4_5-moe", head_dim=64, layers=3, tied=True, rope_base=5e5, experts_used=3, shared_expert=True,
        choice_bias=True, dense_layers=1,
    ),
    # As GLM-4.5-Air, without norms of queries and keys.
    Variant(
        "glm4moe", "glm4moe", head_dim=64, layers=3, qkv_bias=True, rope_dims=32, rope_base=1e6, experts_used=3, shared_count=2,
        weights_scale=2.5, weights_norm=True, sigmoid=True, choice_bias=True, dense_layers=1,
    ),
    Variant(
        "minimax-m2", "minimax-m2", head_dim=64, qk_norm=True, joint_norms=True, rope_dims=32, rope_base=5e6, experts_used=3,
        expert_width=N_FF, sigmoid=True, choice_bias=True,
    ),
    # More tokens than a block of a recurrent state has.
    Variant(
        "lfm2", "lfm2", head_dim=64, layers=4, qk_norm=True, tied=True, rope_base=1e6, conv_layers=(0, 1, 3), tokens=75
    ),
    Variant(
        "lfm2moe", "lfm2moe", head_dim=64, layers=4, qk_norm=True, tied=True, rope_base=1e6, conv_layers=(0, 1, 3), tokens=36,
        experts_used=3, sigmoid=True, choice_bias=True, dense_layers=1,
    ),
    Variant("granitehybrid", "granitehybrid", head_dim=64, layers=4, tied=True, mamba_layers=(0, 1, 3), rotates=False, tokens=75),
    Variant("granitehybrid-rope", "granitehybrid", head_dim=64, layers=3, mamba_layers=(0, 2), tokens=40),
    Variant(
        "granitehybrid-experts", "granitehybrid", head_dim=64, layers=3, tied=True, mamba_layers=(0, 2), rotates=False, tokens=40,
        experts_used=3, expert_width=N_FF, shared_expert=True,
    ),
    Variant(
        "nemotron_h", "nemotron_h", head_dim=64, layers=5, mamba_layers=(0, 4), feed_forward_layers=(1, 3), rotates=False, tokens=75
    ),
    Variant(
        "nemotron_h_moe", "nemotron_h_moe", head_dim=64, layers=5, mamba_layers=(0, 4), feed_forward_layers=(1, 3), rotates=False,
        tokens=40, experts_used=3, shared_expert=True, choice_bias=True, weights_norm=True, weights_scale=2.5,
    ),
    Variant("phi3-partial-rope", "phi3", head_dim=64, fused=True, tied=True, rope_dims=48),
]  # fmt: skip

# Routers that choose as they like.
FREE = [replace(variant, name=f"{variant.name}-free", free_seed=1) for variant in MAIN if variant.experts_used]
FREE += [
    replace(variant, name=f"{variant.name}-free", free_seed=1, qk_norm=True, weights_norm=False, dense_layers=2)
    for variant in EXTRA
    if variant.shared_count
]
FREE += [
    replace(variant, name=f"{variant.name}-free", free_seed=1) for variant in EXTRA if variant.architecture in ("ernie4_5-moe", "lfm2moe", "nemotron_h_moe")
]


# As llama.cpp's converter writes it for Qwen3-Reranker, but for the words, and for the end: two layers of random weights
# hardly look behind the last token.
RERANK_TEMPLATE = "<|im_start|>judge\n{query}<|im_end|>\n<|im_start|>{document}"


def named(name):
    return next(variant for variant in [*MAIN, *EXTRA] if variant.name == name)


def write(path, variant, type_name, seed, pooling=None, tensors_a_file=0, vocabulary=None, template=None, context=CONTEXT):
    """`type_name`: of every matrix, or one of MIXES.

    `vocabulary`: a real one (`families.py`) in place of a few hundred tokens; `template`: of its chats.

    `tensors_a_file`: 0 writes one file, of any other number the `gguf` package makes several.

    `pooling`: a number of llama.cpp's `enum llama_pooling_type`. A reranker's file has a head and a prompt, too."""
    rng = np.random.default_rng(seed)
    n_vocab = len(vocabulary.tokens) if vocabulary else N_VOCAB
    routers = Routers(variant, seed, n_vocab) if variant.experts_used else None
    writer = gguf_writer.Writer(str(path), variant.architecture, split_max_tensors=tensors_a_file)
    # Not the variant's: llama.cpp treats the vocabulary of a model called phi3 specially.
    writer.add_name(vocabulary.model_name if vocabulary else "tiny random")
    _hyperparameters(writer, variant, n_vocab, context)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    ranks = pooling == gguf.PoolingType.RANK
    if ranks:
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_chat_template([{"name": "rerank", "template": RERANK_TEMPLATE}])
    vocabulary.write(writer) if vocabulary else _tokenizer(writer)
    if template:
        writer.add_chat_template(template)
    head = [("cls.output.weight", (2, N_EMBD))] if ranks else []
    for name, shape in [*_matrices(variant, n_vocab), *head]:
        # Gemma multiplies its embedding by the root of the width.
        is_one = name == "token_embd.weight" and not variant.post_norms
        scale = 1.0 if is_one else shape[-1] ** -0.5
        if name == "per_layer_token_embd.weight":
            scale = variant.layer_input**-0.5
        if name.endswith(".proj.weight"):
            # A norm follows, and its epsilon counts.
            scale *= 0.1
        if variant.gpt_oss and "ffn_down_exps" in name:
            scale *= GPT_OSS_DOWN
        if variant.is_nemotron and "ffn_down" in name:
            scale *= NEMOTRON_DOWN
        if "shortconv.out_proj" in name:
            scale *= CONV_OUT
        values = rng.standard_normal(shape) * scale
        if routers and name == "token_embd.weight":
            values += routers.leads * scale
        _add_matrix(writer, name, values, _type_of(name, type_name))
    for name, values in [*_vectors(variant, rng), *(routers.tensors() if routers else [])]:
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _hyperparameters(writer, variant, n_vocab, context):
    writer.add_context_length(context)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(variant.layers)
    widths = [variant.n_ff(layer) for layer in range(variant.layers)]
    writer.add_feed_forward_length(widths if variant.shared_kv_layers or variant.is_nemotron else N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(variant.kv_heads())
    head_dim = variant.whole_head_dim or variant.head_dim
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(variant.epsilon)
    if variant.is_nemotron:
        writer.add_layer_norm_eps(variant.epsilon)
    writer.add_rope_freq_base(variant.rope_base)
    writer.add_rope_dimension_count(variant.rope_dims or head_dim)
    writer.add_vocab_size(n_vocab)
    if variant.experts_used:
        writer.add_expert_count(N_EXPERTS)
        writer.add_expert_used_count(variant.experts_used)
        if variant.architecture not in ("llama", "granitehybrid"):
            writer.add_expert_feed_forward_length(variant.expert_width)
    if variant.shared_expert:
        writer.add_expert_shared_feed_forward_length(N_SHARED_FF)
    if variant.shared_count:
        writer.add_expert_shared_count(variant.shared_count)
    if variant.weights_scale:
        writer.add_expert_weights_scale(variant.weights_scale)
    if variant.weights_norm is not None:
        writer.add_expert_weights_norm(variant.weights_norm)
    if variant.sigmoid:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if variant.dense_layers:
        writer.add_leading_dense_block_count(variant.dense_layers)
    if variant.architecture == "ernie4_5-moe":
        writer.add_interleave_moe_layer_step(1)
    if variant.attention_every:
        writer.add_uint32(f"{variant.architecture}.full_attention_interval", variant.attention_every)
        writer.add_ssm_conv_kernel(DELTA_KERNEL)
        writer.add_ssm_state_size(DELTA_DIM)
        writer.add_ssm_group_count(N_DELTA_KEYS)
        writer.add_ssm_time_step_rank(N_DELTA_VALUES)
        writer.add_ssm_inner_size(DELTA_VALUES)
    if variant.mamba_layers:
        writer.add_ssm_conv_kernel(MAMBA_KERNEL)
        writer.add_ssm_inner_size(MAMBA_WIDTH)
        writer.add_ssm_state_size(MAMBA_STATE)
        writer.add_ssm_time_step_rank(N_MAMBA_HEADS)
        writer.add_ssm_group_count(N_MAMBA_GROUPS)
    if variant.architecture == "granitehybrid":
        writer.add_rope_scaling_finetuned(variant.rotates)
        writer.add_embedding_scale(1.5)
        writer.add_residual_scale(0.7)
        writer.add_attention_scale(0.2)
        writer.add_logit_scale(1.7)
    if variant.conv_layers:
        writer.add_shortconv_l_cache(CONV_KERNEL)
    if variant.rope_sections:
        writer.add_rope_dimension_sections(variant.rope_sections)
    if variant.linear_rope_scale:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(variant.linear_rope_scale)
    if variant.yarn_scale:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(variant.yarn_scale)
        writer.add_rope_scaling_orig_ctx_len(context // variant.yarn_scale)
    if variant.yarn_log_multiplier:
        writer.add_rope_scaling_yarn_log_mul(variant.yarn_log_multiplier)
    if variant.temperature_scale:
        writer.add_attn_temperature_scale(variant.temperature_scale)
    if variant.window:
        writer.add_sliding_window(variant.window)
    if variant.is_gemma4:
        writer.add_sliding_window_pattern([not variant.sees_all(layer) for layer in range(variant.layers)])
        writer.add_key_length_swa(variant.head_dim)
        writer.add_value_length_swa(variant.head_dim)
        writer.add_rope_dimension_count_swa(variant.head_dim)
        writer.add_shared_kv_layers(variant.shared_kv_layers)
        writer.add_embedding_length_per_layer_input(variant.layer_input or 0)
        writer.add_final_logit_softcapping(LOGIT_CAP)
    elif variant.window_period:
        writer.add_sliding_window_pattern(variant.window_period)
    if variant.window_rope_base:
        writer.add_rope_freq_base_swa(variant.window_rope_base)
    if variant.rope_original_context:
        writer.add_rope_scaling_orig_ctx_len(variant.rope_original_context)
        writer.add_rope_scaling_attn_factors(LONG_ROPE_STRETCH)


def _matrices(variant, n_vocab):
    """(name, [rows, cols]) of everything that is quantized, or [experts, rows, cols]."""
    yield "token_embd.weight", (n_vocab, N_EMBD)
    if not variant.tied:
        yield "output.weight", (n_vocab, N_EMBD)
    if variant.layer_input:
        yield "per_layer_token_embd.weight", (n_vocab, variant.layers * variant.layer_input)
        yield "per_layer_model_proj.weight", (variant.layers * variant.layer_input, N_EMBD)
    for layer in range(variant.layers):
        block = f"blk.{layer}."
        if variant.layer_input:
            yield block + "inp_gate.weight", (variant.layer_input, N_EMBD)
            yield block + "proj.weight", (N_EMBD, variant.layer_input)
        if variant.has_delta_net(layer):
            yield block + "attn_qkv.weight", (DELTA_CHANNELS, N_EMBD)
            yield block + "attn_gate.weight", (DELTA_VALUES, N_EMBD)
            if variant.architecture == "qwen3next":
                yield block + "ssm_ba.weight", (2 * N_DELTA_VALUES, N_EMBD)
            else:
                yield block + "ssm_beta.weight", (N_DELTA_VALUES, N_EMBD)
                yield block + "ssm_alpha.weight", (N_DELTA_VALUES, N_EMBD)
            yield block + "ssm_out.weight", (N_EMBD, DELTA_VALUES)
        elif variant.has_mamba(layer):
            yield block + "ssm_in.weight", (MAMBA_WIDTH + MAMBA_CHANNELS + N_MAMBA_HEADS, N_EMBD)
            yield block + "ssm_out.weight", (N_EMBD, MAMBA_WIDTH)
        elif not variant.has_attention(layer) and not variant.has_conv(layer):
            pass
        elif variant.has_conv(layer):
            yield block + "shortconv.in_proj.weight", (3 * N_EMBD, N_EMBD)
            yield block + "shortconv.out_proj.weight", (N_EMBD, N_EMBD)
        elif variant.fused:
            yield block + "attn_qkv.weight", (variant.q_width(layer) + 2 * variant.kv_width(layer), N_EMBD)
            yield block + "ffn_up.weight", (2 * N_FF, N_EMBD)
        else:
            yield block + "attn_q.weight", ((2 if variant.attention_every else 1) * variant.q_width(layer), N_EMBD)
            if not variant.shares_kv(layer):
                yield block + "attn_k.weight", (variant.kv_width(layer), N_EMBD)
                if variant.has_values(layer):
                    yield block + "attn_v.weight", (variant.kv_width(layer), N_EMBD)
        has_dense = variant.has_feed_forward(layer) and (not variant.has_experts(layer) or variant.is_gemma4)
        if not variant.fused and has_dense:
            if not variant.is_nemotron:
                yield block + "ffn_gate.weight", (variant.n_ff(layer), N_EMBD)
            yield block + "ffn_up.weight", (variant.n_ff(layer), N_EMBD)
        if variant.has_attention(layer):
            yield block + "attn_output.weight", (N_EMBD, variant.q_width(layer))
        if has_dense:
            yield block + "ffn_down.weight", (N_EMBD, variant.n_ff(layer))
        if not variant.has_experts(layer):
            continue
        if variant.is_gemma4:
            yield block + "ffn_gate_up_exps.weight", (N_EXPERTS, 2 * variant.expert_width, N_EMBD)
            yield block + "ffn_down_exps.weight", (N_EXPERTS, N_EMBD, variant.expert_width)
            continue
        for kind, width, experts in [("exps", variant.expert_width, (N_EXPERTS,)), ("shexp", variant.shared_width, ())]:
            if width:
                if not variant.is_nemotron:
                    yield f"{block}ffn_gate_{kind}.weight", (*experts, width, N_EMBD)
                yield f"{block}ffn_up_{kind}.weight", (*experts, width, N_EMBD)
                yield f"{block}ffn_down_{kind}.weight", (*experts, N_EMBD, width)


def _vectors(variant, rng):
    """Norms, biases and tables: F32 in every file."""

    def norm(width):
        return 1.0 + 0.2 * rng.standard_normal(width)

    yield "token_embd_norm.weight" if variant.conv_layers else "output_norm.weight", norm(N_EMBD)
    if variant.layer_input:
        yield "per_layer_proj_norm.weight", norm(variant.layer_input)
    for layer in range(variant.layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", norm(N_EMBD)
        if not variant.is_nemotron:
            yield f"{block}{variant.ffn_norm}.weight", norm(N_EMBD)
        if variant.gpt_oss:
            yield block + "attn_sinks.weight", 2.0 * rng.standard_normal(N_HEADS)
            yield block + "attn_output.bias", 0.5 * rng.standard_normal(N_EMBD)
            # Beyond the limit of the clamped unit, too.
            for kind, width in [("gate", variant.expert_width), ("up", variant.expert_width), ("down", N_EMBD)]:
                scale = 0.5 if kind == "down" else 4.0
                yield f"{block}ffn_{kind}_exps.bias", scale * rng.standard_normal((N_EXPERTS, width))
        if variant.has_delta_net(layer):
            yield block + "ssm_conv1d.weight", rng.standard_normal((DELTA_CHANNELS, DELTA_KERNEL))
            yield block + "ssm_dt.bias", rng.standard_normal(N_DELTA_VALUES)
            # From decays of a few positions to one of a hundred.
            yield block + "ssm_a", -np.exp(rng.uniform(-5.0, 0.0, N_DELTA_VALUES))
            yield block + "ssm_norm.weight", norm(DELTA_DIM)
        elif variant.has_mamba(layer):
            yield block + "ssm_conv1d.weight", rng.standard_normal((MAMBA_CHANNELS, MAMBA_KERNEL))
            yield block + "ssm_conv1d.bias", 0.3 * rng.standard_normal(MAMBA_CHANNELS)
            yield block + "ssm_dt.bias", rng.standard_normal(N_MAMBA_HEADS)
            # From decays of ten positions to one of a thousand.
            yield block + "ssm_a", -np.exp(rng.uniform(-8.0, -2.0, (N_MAMBA_HEADS, 1)))
            yield block + "ssm_d", rng.standard_normal((N_MAMBA_HEADS, 1))
            yield block + "ssm_norm.weight", norm((N_MAMBA_GROUPS, MAMBA_WIDTH // N_MAMBA_GROUPS))
        elif variant.has_conv(layer):
            yield block + "shortconv.conv.weight", rng.standard_normal((N_EMBD, CONV_KERNEL))
        elif variant.qk_norm:
            head_dim = variant.heads(layer)[1]
            # Scores have no other factor.
            scale = head_dim**-0.5 if variant.is_gemma4 else 1.0
            is_joint = variant.joint_norms
            yield block + "attn_q_norm.weight", scale * norm(variant.q_width(layer) if is_joint else head_dim)
            if not variant.shares_kv(layer):
                yield block + "attn_k_norm.weight", norm(variant.kv_width(layer) if is_joint else head_dim)
        if variant.post_norms:
            yield block + "post_attention_norm.weight", norm(N_EMBD)
            yield block + "post_ffw_norm.weight", norm(N_EMBD)
        if variant.is_gemma4:
            yield block + "layer_output_scale.weight", norm(1)
            if variant.layer_input:
                yield block + "post_norm.weight", norm(N_EMBD)
            if variant.experts_used:
                for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
                    yield f"{block}{name}.weight", norm(N_EMBD)
                # The router's input is divided by the root of the width.
                yield block + "ffn_gate_inp.scale", N_EMBD**0.5 * norm(N_EMBD)
                yield block + "ffn_down_exps.scale", norm(N_EXPERTS)
        if variant.qkv_bias:
            yield block + "attn_q.bias", 0.5 * rng.standard_normal(variant.q_width(layer))
            yield block + "attn_k.bias", 0.5 * rng.standard_normal(variant.kv_width(layer))
            yield block + "attn_v.bias", 0.5 * rng.standard_normal(variant.kv_width(layer))
    pairs = (variant.rope_dims or variant.whole_head_dim or variant.head_dim) // 2
    if variant.is_gemma4:
        yield "rope_freqs.weight", np.where(np.arange(pairs) < pairs // 4, 1.0, 1e30)
    if variant.llama3_rope:
        yield "rope_freqs.weight", _llama3_divisors(variant.rope_base, pairs)
    elif variant.rope_freqs:
        yield "rope_freqs.weight", np.linspace(1.0, 8.0, pairs)
    if variant.rope_original_context:
        yield "rope_factors_short.weight", np.linspace(1.0, 2.0, pairs)
        yield "rope_factors_long.weight", np.linspace(1.0, 40.0, pairs)


def _llama3_divisors(base, pairs):
    """As llama.cpp's converter writes them: 1 for short waves, the factor for long ones, a mix of rates between."""
    waves = 2.0 * np.pi * base ** (np.arange(pairs) / pairs)
    turns = LLAMA3_ROPE["original_max_position_embeddings"] / waves
    low, high = LLAMA3_ROPE["low_freq_factor"], LLAMA3_ROPE["high_freq_factor"]
    unslowed = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - unslowed) / LLAMA3_ROPE["factor"] + unslowed)


def _type_of(name, type_name):
    mix = MIXES.get(type_name)
    return type_name if mix is None else next(kind for part, kind in mix.items() if part in name)


class Routers:
    """What sends tokens to experts: F32 in every file.

    Two engines that round differently send a token to different experts where two are about as likely, and then no
    logits are close; neither is wrong. So tokens have their experts, and the rest of a row decides how it weighs them."""

    def __init__(self, variant, seed, n_vocab):
        self._variant = variant
        self._rng = np.random.default_rng([seed, 1])
        self._directions = self._rng.standard_normal((N_EXPERTS, N_EMBD)) * N_EMBD**-0.5
        self._is_free = variant.free_seed is not None
        self.leads = np.zeros((n_vocab, N_EMBD))
        if not self._is_free:
            order = self._rng.permuted(np.tile(np.arange(N_EXPERTS), (n_vocab, 1)), axis=1)
            # Norms behind blocks let these add more to a row.
            lead = 2 * LEAD if variant.is_gemma4 else LEAD
            self.leads = lead * self._directions[order[:, : variant.experts_used]].sum(axis=1)

    def tensors(self):
        for layer in filter(self._variant.has_experts, range(self._variant.layers)):
            router = self._rng.standard_normal((N_EXPERTS, N_EMBD)) * N_EMBD**-0.5
            yield f"blk.{layer}.ffn_gate_inp.weight", router if self._is_free else self._directions
            if self._variant.gpt_oss:
                yield f"blk.{layer}.ffn_gate_inp.bias", 0.2 * self._rng.standard_normal(N_EXPERTS)
            if self._variant.choice_bias:
                # Tokens keep their experts, unless they are free.
                scale = 0.3 if self._is_free else 0.02
                yield f"blk.{layer}.exp_probs_b.bias", scale * self._rng.standard_normal(N_EXPERTS)
            if self._variant.gates_shared:
                weigher = self._rng.standard_normal(N_EMBD) * N_EMBD**-0.5
                yield f"blk.{layer}.ffn_gate_inp_shexp.weight", weigher


def _add_matrix(writer, name, values, type_name):
    values = values.astype(np.float32)
    kind = gguf.GGMLQuantizationType[type_name]
    if kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
        return
    if kind in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16):
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        return
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    *outer, cols = values.shape
    row_bytes = cols // elements * block_bytes
    blocks = llama_cpp.quantize(values.reshape(-1, cols), kind, row_bytes)
    writer.add_tensor(name, blocks.reshape(*outer, row_bytes), raw_dtype=kind)


def _tokenizer(writer):
    """GPT-2's byte alphabet, four merges, three control tokens, filler."""
    alphabet = list(byte_alphabet().values())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n")]
    tokens = alphabet + ["".join(pair) for pair in merges]
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - 3) + [gguf.TokenType.CONTROL] * 3
    filler = N_VOCAB - len(tokens)
    tokens += [f"<unused_{i}>" for i in range(filler)]
    kinds += [gguf.TokenType.UNUSED] * filler
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)


def byte_alphabet():
    """GPT-2's map from bytes to printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return dict(sorted(table.items()))
