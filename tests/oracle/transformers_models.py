"""Tiny random GGUF files as models of Hugging Face's `transformers`: its own modelling code, on the CPU, in F32.

What lives here: the configuration of a variant of `tiny_models.py`, the file's tensors under the names and in the order
that `transformers` has for them, and logits. Types that are not F32 are dequantized by the `gguf` package, in numpy.

What a GGUF file has otherwise than a checkpoint:

- Models that rotate adjacent values have the rows of queries and keys in that order; a checkpoint has the first values of
  all pairs, then the second ones.
- Gemma's norms are stored with the 1 added that its code adds. Taking it away again rounds weights below 0.5, in their last bits.
- Experts lie in three tensors. A checkpoint has gate and up in one, and that of gpt-oss transposed and interleaved.
"""

import gguf
import numpy as np
import torch
import transformers

import tiny_models
from tiny_models import CONTEXT, N_EMBD, N_EXPERTS, N_FF, N_HEADS, N_KV_HEADS, N_SHARED_FF, N_VOCAB

FAMILIES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi3",
    "gemma3": "Gemma3",
    "gemma4": "Gemma4",
    "mistral3": "Ministral3",
    "smollm3": "SmolLM3",
    "gpt-oss": "GptOss",
    "qwen2moe": "Qwen2Moe",
    "qwen3moe": "Qwen3Moe",
}
# The 27B, known by its number of layers, divides scores by another root than that of a head's width. Of a checkpoint the
# configuration says so.
LAYERS_OF_LARGEST_GEMMA = 62
ADJACENT_PAIRS = ("llama", "mistral3", "smollm3")

# In front of `.weight` or `.bias`.
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# Where a family has another one.
NAMES_OF = {
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm"},
    "gemma4": {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "gpt-oss": {"ffn_gate_inp": "mlp.router"},
}


class HalfCache(transformers.DynamicCache):
    """Keys and values rounded to F16 as they come, as our cache has them."""

    def update(self, key_states, value_states, *arguments, **named):
        rounded = [states.half().to(states.dtype) for states in (key_states, value_states)]
        return super().update(*rounded, *arguments, **named)


def load(path, variant, of=None, **changes):
    """`of`: another family than the variant's; `changes`: of the configuration, in place of what the file says."""
    of = of or family(variant)
    tensors = _tensors(path)
    config = _configuration(variant, of, tensors, changes)
    model = getattr(transformers, f"{of}ForCausalLM")(config)
    state = {name: torch.tensor(np.ascontiguousarray(values)) for name, values in _renamed(tensors, variant)}
    # Strict: each weight of the model has one of the file, and the other way round.
    model.load_state_dict(state)
    return model.eval()


def logits(model, tokens, chunks, cache=transformers.DynamicCache):
    """`[positions, vocab]` of tokens that come in chunks of those lengths."""
    assert sum(chunks) == len(tokens)
    kept, rows, done = cache(config=model.config), [], 0
    with torch.no_grad():
        for length in chunks:
            ids = torch.tensor([tokens[done : done + length]])
            rows.append(model(ids, cache=kept, use_cache=True).logits[0])
            done += length
    return torch.cat(rows).numpy()


def family(variant):
    """The beginning of the names of its classes."""
    if variant.architecture == "llama" and variant.experts_used:
        return "Mixtral"
    if variant.architecture == "mistral3" and not variant.temperature_scale:
        return "Mistral"
    return FAMILIES[variant.architecture]


def _configuration(variant, of, tensors, changes):
    values = {
        "vocab_size": N_VOCAB,
        "hidden_size": N_EMBD,
        "intermediate_size": N_FF,
        "num_hidden_layers": variant.layers,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": variant.head_dim,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": variant.tied,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
        "experts_implementation": "eager",
        "rope_parameters": _rotation(variant, tensors),
    }
    if variant.experts_used:
        values |= {
            "num_experts_per_tok": variant.experts_used,
            "norm_topk_prob": variant.architecture == "qwen3moe",
            "moe_intermediate_size": variant.expert_width,
            "shared_expert_intermediate_size": N_SHARED_FF,
            ("num_local_experts" if of in ("Mixtral", "GptOss") else "num_experts"): N_EXPERTS,
        }
        if of in ("Mixtral", "GptOss"):
            values["intermediate_size"] = variant.expert_width
    if variant.is_gemma4:
        heads = {"head_dim": variant.whole_head_dim, "num_key_value_heads": 1}
        values |= {
            "num_key_value_heads": N_HEADS,
            "per_layer_config": {layer: heads for layer in range(variant.layers) if variant.sees_all(layer)},
            "attention_k_eq_v": variant.values_are_keys,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": tiny_models.LOGIT_CAP,
            "enable_moe_block": variant.experts_used > 0,
            "top_k_experts": variant.experts_used or None,
        }
    if variant.rope_original_context:
        values["original_max_position_embeddings"] = variant.rope_original_context
    if variant.architecture == "gemma3":
        is_largest = variant.layers == LAYERS_OF_LARGEST_GEMMA
        values["query_pre_attn_scalar"] = N_EMBD // N_HEADS if is_largest else variant.head_dim
    if variant.window:
        values["sliding_window"] = variant.window
        period = variant.window_period or {"gemma3": 6, "gpt-oss": 2}[variant.architecture]
        sees_all = [(layer + 1) % period == 0 for layer in range(variant.layers)]
        values["layer_types"] = ["full_attention" if it else "sliding_attention" for it in sees_all]
    rotation = {**values["rope_parameters"], **changes.pop("rope_parameters", {})}
    values |= changes | {"rope_parameters": rotation}
    config = f"{of}TextConfig" if of in ("Gemma3", "Gemma4") else f"{of}Config"
    return getattr(transformers, config)(**values)


def _rotation(variant, tensors):
    rotation = {"rope_type": "default", "rope_theta": variant.rope_base}
    if variant.linear_rope_scale:
        rotation |= {"rope_type": "linear", "factor": variant.linear_rope_scale}
    if variant.yarn_scale:
        rotation |= {
            "rope_type": "yarn",
            "factor": float(variant.yarn_scale),
            "original_max_position_embeddings": CONTEXT // variant.yarn_scale,
        }
    if variant.yarn_log_multiplier:
        rotation |= {"mscale": 1.0, "mscale_all_dim": variant.yarn_log_multiplier}
    if variant.temperature_scale:
        rotation["llama_4_scaling_beta"] = variant.temperature_scale
    if variant.llama3_rope:
        tensors.pop("rope_freqs.weight")
        rotation |= {"rope_type": "llama3", **tiny_models.LLAMA3_ROPE}
    elif variant.rope_freqs:
        # LongRoPE with one list and no stretch is any divisors.
        divisors = tensors.pop("rope_freqs.weight")
        rotation |= _long_rotation(divisors, divisors, 1.0, CONTEXT)
    if variant.rope_original_context:
        short, long = (tensors.pop(f"rope_factors_{kind}.weight") for kind in ("short", "long"))
        stretch = tiny_models.LONG_ROPE_STRETCH
        rotation |= _long_rotation(short, long, stretch, variant.rope_original_context)
    if variant.rope_dims:
        rotation["partial_rotary_factor"] = variant.rope_dims / variant.head_dim
    if variant.is_gemma4:
        turning = tensors.pop("rope_freqs.weight") == 1.0
        rotation |= {"rope_type": "proportional", "partial_rotary_factor": float(turning.mean())}
    if variant.architecture in ("gemma3", "gemma4"):
        near = {"rope_type": "default", "rope_theta": variant.window_rope_base or 10000.0}
        return {"full_attention": rotation, "sliding_attention": near}
    return rotation


def _long_rotation(short, long, stretch, original):
    return {
        "rope_type": "longrope",
        "short_factor": short.tolist(),
        "long_factor": long.tolist(),
        "attention_factor": stretch,
        "original_max_position_embeddings": original,
    }


def _tensors(path):
    tensors = {}
    for tensor in gguf.GGUFReader(str(path)).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(length) for length in reversed(tensor.shape)]
        tensors[tensor.name] = values.astype(np.float32).reshape(shape)
    return tensors


def _renamed(tensors, variant):
    """Pairs of a checkpoint's name and values."""
    embedding = tensors.pop("token_embd.weight")
    yield "model.embed_tokens.weight", embedding
    yield "lm_head.weight", embedding if variant.tied else tensors.pop("output.weight")
    yield "model.norm.weight", _norm(tensors.pop("output_norm.weight"), variant)
    for layer in range(variant.layers):
        prefix = f"blk.{layer}."
        block = {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        for name, values in _block(block, variant):
            yield f"model.layers.{layer}.{name}", values
    if tensors:
        raise RuntimeError(f"nothing is known of {sorted(tensors)}")


def _block(block, variant):
    if variant.experts_used:
        yield from _experts(block, variant)
    if variant.gpt_oss:
        yield "self_attn.sinks", block.pop("attn_sinks.weight")
    if variant.is_gemma4:
        yield "layer_scalar", block.pop("layer_output_scale.weight")
    names = NAMES | NAMES_OF.get(variant.architecture, {})
    for name, values in block.items():
        stem, kind = name.rsplit(".", 1)
        if stem.endswith("norm"):
            values = _norm(values, variant)
        if stem in ("attn_q", "attn_k") and variant.architecture in ADJACENT_PAIRS:
            values = halves(values, variant.head_dim)
        if stem == "ffn_gate_inp_shexp":
            values = values[None]
        yield f"{names[stem]}.{kind}", values


def _experts(block, variant):
    if variant.is_gemma4:
        yield "experts.gate_up_proj", block.pop("ffn_gate_up_exps.weight")
        yield "experts.down_proj", block.pop("ffn_down_exps.weight")
        yield "router.scale", block.pop("ffn_gate_inp.scale")
        yield "router.per_expert_scale", block.pop("ffn_down_exps.scale")
        return
    gate, up, down = (block.pop(f"ffn_{kind}_exps.weight") for kind in ("gate", "up", "down"))
    if not variant.gpt_oss:
        yield "mlp.experts.gate_up_proj", np.concatenate([gate, up], axis=1)
        yield "mlp.experts.down_proj", down
        return
    yield "mlp.experts.gate_up_proj", _interleaved(gate, up).swapaxes(1, 2)
    yield "mlp.experts.down_proj", down.swapaxes(1, 2)
    gate, up, down = (block.pop(f"ffn_{kind}_exps.bias") for kind in ("gate", "up", "down"))
    yield "mlp.experts.gate_up_proj_bias", _interleaved(gate, up)
    yield "mlp.experts.down_proj_bias", down


def _interleaved(gate, up):
    """Row by row of each expert."""
    experts, width, *rest = gate.shape
    return np.stack([gate, up], axis=2).reshape(experts, 2 * width, *rest)


def halves(values, head_dim):
    """Rows of adjacent pairs as the first values of all pairs of a head, then the second ones."""
    rows, *rest = values.shape
    heads = values.reshape(rows // head_dim, head_dim // 2, 2, *rest)
    return heads.swapaxes(1, 2).reshape(rows, *rest)


def _norm(values, variant):
    return values - np.float32(1.0) if variant.architecture == "gemma3" else values
