"""GGUF files that hold a tokenizer and nothing else, for tokenizers that no small model has: every pre-tokenizer with one
vocabulary, and the real vocabularies of families."""

import string
from collections import Counter

import gguf

import families
import gguf_writer
import prose

# Every name of supervisor/text/src/pre_tokenizer.rs.
PRE_TOKENIZERS = [
    "default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling",
    "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "llama-bpe",
    "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe",
    "qwen2", "qwen35", "seed-coder", "deepseek-r1-qwen", "stablelm2", "megrez", "gpt-4o", "llama4", "minimax-m2", "falcon", "tekken",
]  # fmt: skip

# Name in the file that all others are made of.
PLACEHOLDER = "name-of-a-pre-tokenizer"


# Of these families; the others have the same vocabulary as one of them, or less of it.
REAL = {
    "llama3": families.llama3,
    "qwen3": families.qwen3,
    "mistral": families.mistral,
    "phi3": families.phi3,
    "gemma4": families.gemma4,
}


def write_real(folder, model):
    """Yields (name, path, special tokens) of each file as it is written."""
    for name, make in REAL.items():
        vocabulary = make(model)
        path = folder / f"{name}.gguf"
        writer = gguf_writer.Writer(str(path), "llama")
        writer.add_name(vocabulary.model_name)
        vocabulary.write(writer)
        _finish(writer)
        yield name, path, vocabulary.specials()


def write_all(folder, model):
    """Yields (name, path) of each file as it is written."""
    template = folder / "template.gguf"
    write_byte_level(template, PLACEHOLDER, *byte_level_vocabulary(model))
    before, after = template.read_bytes().split(gguf_writer.packed(PLACEHOLDER))
    for pre in PRE_TOKENIZERS:
        path = folder / f"{pre}.gguf"
        path.write_bytes(before + gguf_writer.packed(pre) + after)
        yield pre, path
    for name in ("sentencepiece", "gemma"):
        path = folder / f"{name}.gguf"
        write_sentence_piece(path, like_gemma=name == "gemma")
        yield name, path
    path = folder / "gemma4.gguf"
    write_character_level(path)
    yield "gemma4", path


def byte_level_vocabulary(model):
    """The model's own, and numbers of two and three digits: without them no id would show
    where a pre-tokenizer cuts a number. Before all others a small letter is merged with a capital one, and a letter with
    an apostrophe, for some cut there and some do not."""
    fields = gguf.GGUFReader(model).fields
    tokens, kinds, merges = (
        list(fields[f"tokenizer.ggml.{key}"].contents()) for key in ("tokens", "token_type", "merges")
    )
    known = set(tokens)
    small, capital = string.ascii_lowercase, string.ascii_uppercase
    seams = [(left, right) for left in small for right in capital] + [(left, "'") for left in small + capital]
    merges[:0] = [f"{left} {right}" for left, right in seams]
    tokens += [left + right for left, right in seams if left + right not in known]
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))
    for left in [str(n) for n in range(10)] + [f"{n:02}" for n in range(100)]:
        for right in range(10):
            merges.append(f"{left} {right}")
            if f"{left}{right}" not in known:
                tokens.append(f"{left}{right}")
                kinds.append(gguf.TokenType.NORMAL)
    return tokens, kinds, merges


def write_byte_level(path, pre, tokens, kinds, merges):
    writer = gguf_writer.Writer(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    _finish(writer)


# As Gemma's files have them: found in a text before anything is merged.
USER_DEFINED = ["\n" * n for n in range(1, 8)] + [" " * n for n in range(2, 9)] + ["<table>", "</table>", "\t", "<b>"]


def write_sentence_piece(path, like_gemma):
    """Three control tokens, 256 bytes, single characters, then common parts of words. A part of
    two characters or more can only be reached through smaller parts, and some scores are equal,
    so that the order of merging shows.

    Gemma's has no space in front of a text, other control tokens, and tokens that are found before anything is merged."""
    words = Counter("▁" + word for word in prose.text(characters=200_000).split())
    parts, characters = Counter(), Counter()
    for word, count in words.items():
        for start in range(len(word)):
            characters[word[start]] += count
            for end in range(start + 2, min(start + 8, len(word)) + 1):
                parts[word[start:end]] += count
    singles = sorted(characters)
    common = [part for part, _ in sorted(parts.items(), key=lambda item: (-item[1], item[0]))[:4000]]
    controls = ["<pad>", "<eos>", "<bos>", "<start_of_turn>"] if like_gemma else ["<s>", "</s>"]
    own = USER_DEFINED if like_gemma else []
    tokens = ["<unk>"] + controls + [f"<0x{byte:02X}>" for byte in range(256)] + own + singles + common
    scores = [0.0] * (1 + len(controls) + 256) + [-1000.0] * len(own)
    scores += [-1e6] * len(singles) + [-float(rank // 3) for rank in range(len(common))]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * len(controls) + [gguf.TokenType.BYTE] * 256
    kinds += [gguf.TokenType.USER_DEFINED] * len(own) + [gguf.TokenType.NORMAL] * (len(singles) + len(common))

    writer = gguf_writer.Writer(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokens.index("<bos>" if like_gemma else "<s>"))
    writer.add_eos_token_id(tokens.index("<eos>" if like_gemma else "</s>"))
    writer.add_unk_token_id(0)
    if like_gemma:
        writer.add_add_space_prefix(False)
    _finish(writer)


def write_character_level(path):
    """Gemma 4's kind: control tokens, 256 bytes, tokens that are found before anything is merged, single characters, and
    parts of lines, also across a space and of several spaces. A merge is every way to split a part in two. A run of three line
    feeds is a token that no merge makes."""
    text = prose.text(characters=60_000)
    parts, characters = Counter(), Counter({"\n": 1, "▁": 1})
    for line in text.replace(" ", "▁").split("\n"):
        characters.update(line)
        for start in range(len(line)):
            for end in range(start + 2, min(start + 7, len(line)) + 1):
                parts[line[start:end]] += 1
    singles = sorted(characters)
    common = [part for part, _ in sorted(parts.items(), key=lambda item: (-item[1], item[0]))[:4000]]
    common += [part for part in ("▁▁", "▁▁▁▁", "\n\n") if part not in common]
    controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    own = [*families.GEMMA4_TEXTS, "<table>"]
    tokens = controls + [f"<0x{byte:02X}>" for byte in range(256)] + own + singles + common + ["\n\n\n"]
    kinds = [gguf.TokenType.CONTROL] * len(controls) + [gguf.TokenType.BYTE] * 256
    kinds += [gguf.TokenType.USER_DEFINED] * len(own)
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))

    writer = gguf_writer.Writer(str(path), "llama")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(families.merges_of(singles + common))
    writer.add_bos_token_id(tokens.index("<bos>"))
    writer.add_eos_token_id(tokens.index("<turn|>"))
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    _finish(writer)


def _finish(writer):
    """What the loaders insist on beside the tokenizer."""
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
