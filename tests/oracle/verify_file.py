"""What a model file is: the head of `verify.py`'s report, and what its comparisons depend on."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import gguf

PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")
PLAIN_TYPES = ("F32", "F16", "BF16")
GIB = 1 << 30


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file, or the first of several, and what is read of its metadata."""

    path: Path
    parts: list
    bytes: int
    architecture: str
    name: str
    # Tensors by type; only matrices decide how much is rounded.
    types: Counter
    matrix_types: set
    parameters: int
    layers: int
    context: int
    window: int
    has_experts: bool
    has_delta_net: bool
    pools: bool
    template: str | None
    begin: str
    end: str
    # Control tokens and those that a user defined.
    specials: list

    @property
    def is_small(self):
        """Comparisons of larger files have fewer tokens."""
        return self.bytes < GIB

    @property
    def is_quantized(self):
        return any(kind not in PLAIN_TYPES for kind in self.matrix_types)

    @property
    def needs_exact_weights(self):
        """llama.cpp's own rounding of activations is large behind norms of heads and of values: see architectures.py."""
        norms = self.has_delta_net or self.architecture == "gemma4"
        rounds = self.is_quantized or self.architecture == "gemma4" and "BF16" in self.matrix_types
        return norms and rounds

    @property
    def can_be_f32(self):
        """Whether a copy in F32 takes at most 2 GiB. A copy of several files would be of the first alone."""
        return 4 * self.parameters <= 2 * GIB and len(self.parts) == 1

    def described(self):
        """Lines of Markdown."""
        yield f"- file: `{self.path.name}`, {self.bytes:,} bytes" + (f" in {len(self.parts)} files" if self.parts[1:] else "")
        for part in self.parts:
            yield f"- SHA-256 of `{part.name}`: `{digest(part)}`"
        yield f"- model: {self.name!r}, architecture `{self.architecture}`, {self.parameters:,} parameters, {self.layers} layers"
        yield "- tensors: " + ", ".join(f"{kind} {count}" for kind, count in self.types.most_common())


def read(path):
    parts = parts_of(Path(path))
    readers = [gguf.GGUFReader(part) for part in parts]
    fields = readers[0].fields
    tensors = [tensor for reader in readers for tensor in reader.tensors]
    architecture = fields["general.architecture"].contents()

    def value(key, default=None):
        field = fields.get(key)
        return default if field is None else field.contents()

    def own(key, default=0):
        return value(f"{architecture}.{key}", default)

    tokens, kinds = value("tokenizer.ggml.tokens", []), value("tokenizer.ggml.token_type", [])
    named = (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
    text_of = lambda key: tokens[id] if (id := value(f"tokenizer.ggml.{key}_token_id")) is not None else ""
    template = value("tokenizer.chat_template")
    return ModelFile(
        path=parts[0],
        parts=parts,
        bytes=sum(part.stat().st_size for part in parts),
        architecture=architecture,
        name=str(value("general.name", "")),
        types=Counter(tensor.tensor_type.name for tensor in tensors),
        matrix_types={tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1},
        parameters=sum(int(tensor.n_elements) for tensor in tensors),
        layers=own("block_count", 1),
        context=own("context_length", 512),
        window=own("attention.sliding_window"),
        has_experts=own("expert_count") > 0,
        has_delta_net=own("ssm.state_size") > 0,
        pools=own("pooling_type") > 0,
        # Of a reranker it is a list.
        template=template if isinstance(template, str) else None,
        begin=text_of("bos"),
        end=text_of("eos"),
        specials=[token for token, kind in zip(tokens, kinds, strict=False) if kind in named],
    )


def parts_of(path):
    several = PART.fullmatch(path.name)
    if not several:
        return [path]
    name, count = several.groups()
    return [path.with_name(f"{name}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
