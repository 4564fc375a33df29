"""GGUF version 3, as far as a benchmark needs it: written from tensors that are patterns, and
read back for the sizes of tensors.

A 7B file is 15 GB of random weights. Nobody reads them, so they are one pattern of a few
megabytes, written again and again by several threads; it is as long as a prime number of blocks,
more than any matrix has rows, so that no two rows of a matrix hold the same part of it.
"""

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

ALIGNMENT = 32
WRITERS = 8
PIECE = 8 << 20

U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass
class Tensor:
    name: str
    """Fastest first, as the format wants it."""
    dims: tuple
    """The format's number for the type."""
    kind: int
    nbytes: int
    """Repeated until the tensor is full."""
    pattern: bytes
    """Where in the pattern it begins."""
    start: int = 0
    """So many bytes at its end are zero: in every type, that is the number zero."""
    zeros: int = 0


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item):
    """A value with its type in front."""
    if isinstance(item, str):
        return struct.pack("<I", STRING) + string(item)
    if isinstance(item, int):
        return struct.pack("<II", U32, item)
    if isinstance(item, float):
        return struct.pack("<If", F32, item)
    # The only arrays of numbers here are kinds of tokens, and those are signed: llama.cpp loads no
    # file in which they are not.
    kind = STRING if isinstance(item[0], str) else I32
    head = struct.pack("<IIQ", ARRAY, kind, len(item))
    if kind == STRING:
        return head + b"".join(map(string, item))
    return head + struct.pack(f"<{len(item)}i", *item)


def write(path, metadata, tensors):
    """The size of the file."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end = aligned(end + tensor.nbytes)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [string(key) + value(item) for key, item in metadata.items()]
    for tensor, offset in zip(tensors, offsets):
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        head.append(string(tensor.name) + dims + struct.pack("<IQ", tensor.kind, offset))
    head = b"".join(head)
    start = aligned(len(head))
    with open(path, "wb") as file:
        file.truncate(start + end)
        os.pwrite(file.fileno(), head, 0)
        with ThreadPoolExecutor(WRITERS) as pool:
            jobs = [
                pool.submit(fill, file.fileno(), start + offset + first, tensor, first)
                for tensor, offset in zip(tensors, offsets)
                for first in range(0, tensor.nbytes, PIECE)
            ]
            for job in jobs:
                job.result()
    return start + end


def fill(file, at, tensor, first):
    """One piece of a tensor, `first` bytes behind its beginning. The tail of zeros stays a hole."""
    left = min(PIECE, tensor.nbytes - tensor.zeros - first)
    pattern = memoryview(tensor.pattern)
    source = (tensor.start + first) % len(pattern)
    while left > 0:
        done = os.pwrite(file, pattern[source : source + left], at)
        at, left = at + done, left - done
        source = (source + done) % len(pattern)


def aligned(offset):
    return -(-offset // ALIGNMENT) * ALIGNMENT


class Reader:
    """Just enough to step over the header."""

    def __init__(self, file):
        self.file = file

    def take(self, form):
        form = "<" + form
        fields = struct.unpack(form, self.file.read(struct.calcsize(form)))
        return fields[0] if len(fields) == 1 else fields

    def string(self):
        return self.file.read(self.take("Q")).decode(errors="replace")

    def value(self):
        """Numbers and texts; arrays are stepped over."""
        return self.typed(self.take("I"))

    def typed(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.take("I"), self.take("Q")
            if kind == STRING:
                for _ in range(count):
                    self.file.seek(self.take("Q"), 1)
            else:
                self.file.seek(count * SCALAR_BYTES[kind], 1)
            return None
        return self.take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
                          10: "Q", 11: "q", 12: "d"}[kind])


def facts(path):
    """What decides how fast a file can be: bytes that every token reads, those of experts, of which it
    reads some, and bytes of keys and values that a token leaves behind (as F16)."""
    with open(path, "rb") as file:
        reader = Reader(file)
        magic, _, n_tensors, n_pairs = reader.take("4sIQQ")
        if magic != b"GGUF":
            raise SystemExit(f"{path} is no GGUF file")
        metadata = {}
        for _ in range(n_pairs):
            key = reader.string()
            metadata[key] = reader.value()
        places = {}
        for _ in range(n_tensors):
            name = reader.string()
            reader.take(f"{reader.take('I')}Q")
            places[name] = reader.take("IQ")[1]
        start = aligned(file.tell())
    ends = sorted(places.values())[1:] + [os.path.getsize(path) - start]
    sizes = {name: end - place for (name, place), end in zip(by_place(places), ends)}
    # Of an embedding that is no output matrix too, a token reads one row.
    skipped = sizes["token_embd.weight"] if "output.weight" in sizes else 0
    arch = metadata["general.architecture"]
    heads, width = (metadata[f"{arch}.{key}"] for key in
                    ("attention.head_count", "embedding_length"))
    head_size = metadata.get(f"{arch}.attention.key_length", width // heads)
    kv_heads = metadata.get(f"{arch}.attention.head_count_kv", heads)
    layers = metadata[f"{arch}.block_count"]
    of_experts = sum(size for name, size in sizes.items() if "_exps." in name)
    return {
        "file_bytes": os.path.getsize(path),
        "bytes_per_token": sum(sizes.values()) - skipped - of_experts,
        "expert_bytes": of_experts,
        "expert_share": metadata.get(f"{arch}.expert_used_count", 0) / metadata.get(f"{arch}.expert_count", 1),
        "kv_bytes_per_token": 2 * 2 * layers * kv_heads * head_size,
        "context_tokens": metadata[f"{arch}.context_length"],
    }


def by_place(places):
    return sorted(places.items(), key=lambda item: item[1])
