"""A byte-level BPE vocabulary as long as Qwen's, with as many merges: what a supervisor has to
build before it can answer is then no smaller than for the real model.

    0 …            the 128 ASCII bytes
    … 26           " A" to " Z": "Q W E" is three tokens here, as it is for SmolLM2
    …              every two, three and four letters, in this order, each a merge of the one before
                   and a letter
    … the last     the 128 other bytes and three control tokens (`SILENT`)
"""

import itertools
import string

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
"""ChatML, in the tokens above: a chat over HTTP needs a template, and so does what puts another in its place."""
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Ids at the end that are no text by themselves."""
SILENT = 128 + len(CONTROL)

NORMAL_KIND, CONTROL_KIND = 1, 3


def byte_names():
    """GPT-2's character for each byte: itself where it is visible, else one from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names, extra = [], itertools.count(256)
    for byte in range(256):
        names.append(chr(byte if byte in visible else next(extra)))
    return names


def words():
    """Pairs to merge, in the order of the vocabulary."""
    space = byte_names()[0x20]
    yield from ((space, letter) for letter in string.ascii_uppercase)
    for length in (1, 2, 3):
        for front in itertools.product(string.ascii_lowercase, repeat=length):
            yield from (("".join(front), letter) for letter in string.ascii_lowercase)


def metadata(size):
    names = byte_names()
    merges = list(itertools.islice(words(), size - 128 - SILENT))
    tokens = names[:128] + [a + b for a, b in merges] + names[128:] + CONTROL
    if len(tokens) != size:
        raise SystemExit(f"a vocabulary of {size} tokens is too large or too small to make")
    kinds = [NORMAL_KIND] * (size - len(CONTROL)) + [CONTROL_KIND] * len(CONTROL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
        "tokenizer.ggml.bos_token_id": size - 3,
        "tokenizer.ggml.eos_token_id": size - 1,
        "tokenizer.chat_template": TEMPLATE,
    }
