"""The vocabulary of a GGUF file, read by the `gguf` package, as JSON that `schema_walks` reads.

    tokenizer_facts.py MODEL.gguf
"""

import json
import sys

import gguf

KINDS = [None, "Normal", "Unknown", "Control", "UserDefined", "Unused", "Byte"]


def main(path):
    fields = gguf.GGUFReader(path).fields

    def contents(name):
        field = fields.get(f"tokenizer.ggml.{name}")
        return field.contents() if field else None

    eos = contents("eos_token_id")
    facts = {
        "kind": {"gpt2": "ByteLevelBpe", "llama": "SentencePiece"}[contents("model")],
        "tokens": contents("tokens"),
        "kinds": [KINDS[kind] for kind in contents("token_type")],
        "scores": contents("scores") or [],
        "eos": eos,
        "end_of_generation": [eos],
        # What says nothing of which token may come next.
        "pre": "", "merges": [], "bos": None, "unknown": None, "chat_template": None,
        "add_bos": False, "add_eos": False, "add_space_prefix": False,
    }  # fmt: skip
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
