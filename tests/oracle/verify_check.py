"""`verify.py` sees a changed file: all rows of a tiny model hold, and for another file on our side those fail that depend on it.

    python verify_check.py FOLDER

FOLDER has the programs of the tests crate. The changed copy has other weights, two tokens in each other's place, and another chat
template.
"""

import sys
import tempfile
from pathlib import Path

import gguf_writer
import tiny_models
import verify
import verify_file
from verify_numbers import Job

TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{- '<tool_call>\n' }}{{- call.function | tojson }}{{- '\n</tool_call>' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
OTHER_TEMPLATE = TEMPLATE.replace("message.role", "message.role | upper")
CONTEXT = 128

DEPEND = {"token ids", "text of ids", "chat", "chat with tools", "logits", "greedy tokens", "perplexity"}
# A file agrees with itself, whatever it is.
DO_NOT = {"ids of chats", "bits: chunk", "bits: batch", "bits: decode"} | {f"answer: {it}" for it in ("again", "batch", "kill", "upgrade")}


def main(programs):
    variant = tiny_models.named("llama")
    with tempfile.TemporaryDirectory() as folder:
        path, changed = Path(folder) / "tiny.gguf", Path(folder) / "changed.gguf"
        tiny_models.write(path, variant, "F32", 1, template=TEMPLATE, context=CONTEXT)
        tiny_models.write(changed, variant, "F32", 2, template=OTHER_TEMPLATE, context=CONTEXT)
        exchange(changed, "e", "o")
        file = verify_file.read(path)
        right = found(Job(file, path, Path(programs), ["cpu"], 1))
        wrong = found(Job(file, changed, Path(programs), ["cpu"], 1))
    expected = dict.fromkeys(DEPEND | DO_NOT, True)
    print(f"the same file: {right == expected}, a changed one: {wrong == expected | dict.fromkeys(DEPEND, False)}")
    return int(right != expected or wrong != expected | dict.fromkeys(DEPEND, False))


def found(job):
    """Whether all rows of a name hold."""
    holds = {}
    for row in verify.every_row(job):
        print(row.in_markdown(), flush=True)
        holds[row.name] = holds.get(row.name, True) and row.holds
    return holds


def exchange(path, one, other):
    """Gives two tokens each other's id."""
    data = bytearray(path.read_bytes())
    tokens = [gguf_writer.packed(it) for it in (one, other)]
    assert [data.count(it) for it in tokens] == [1, 1], "a token is in the file once"
    places = [data.index(it) for it in tokens]
    for place, it in zip(places, reversed(tokens), strict=True):
        data[place : place + len(it)] = it
    path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
