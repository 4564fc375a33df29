"""Every streamed token, derived again from the logits trace.

    python rederive.py MODEL TRACE TRANSCRIPTS

TRACE is what `--trace-logits` wrote with whole rows; TRANSCRIPTS is a JSON list of what clients
received, in the order in which the requests began:
`{text, tokens_in, tokens_out, stop_reason, parameters, prompt?}`. `prompt` (raw, as sent) is
needed only where a repetition penalty is.

Each row of logits is sampled by definition (`sampling.py`: numpy, double precision, Philox from
the paper), and the tokens' bytes, by llama.cpp's vocabulary, must be the text that was streamed.
A worker that answers from anywhere but its model has no such trace.
"""

import json
import sys
from pathlib import Path

import numpy as np

import llama_cpp
import sampling


def main(model, trace, transcripts):
    requests = {}
    for row in map(json.loads, Path(trace).read_text().splitlines()):
        requests.setdefault(row["request"], []).append(row)
    transcripts = json.loads(Path(transcripts).read_text())
    if len(requests) != len(transcripts):
        print(f"{len(requests)} requests in the trace, {len(transcripts)} transcripts")
        return 1
    with llama_cpp.Model(model, vocab_only=True) as vocabulary:
        held = [rederive(vocabulary, *pair) for pair in zip(transcripts, requests.values())]
    return 0 if held and all(held) else 1


def rederive(vocabulary, transcript, rows):
    if len(rows) != transcript["tokens_out"]:
        print(f"{transcript['tokens_out']} tokens were counted, {len(rows)} are in the trace")
        return False
    parameters = transcript["parameters"]
    prompt = vocabulary.tokenize(transcript["prompt"], whole=True) if "prompt" in transcript else ()
    generated, nearest = [], float("inf")
    for index, row in enumerate(rows):
        values = np.array(row["values"], dtype=np.float32)
        if len(values) != vocabulary.n_vocab:
            raise RuntimeError(f"a row of {len(values)} values: whole rows are needed")
        position = transcript["tokens_in"] + index
        if row["token_idx"] != position:
            print(f"row {index} is of position {row['token_idx']}, expected {position}")
            return False
        token, distance = sampling.draw(values, parameters, position, prompt, generated)
        generated.append(token)
        nearest = min(nearest, distance)

    # The token that ends a sequence has no text.
    ended = transcript["stop_reason"] == "EOS"
    if ended != vocabulary.is_end(generated[-1]):
        print(f"stop reason {transcript['stop_reason']}, but the last token derived is {generated[-1]}")
        return False
    visible = generated[:-1] if ended else generated
    raw = b"".join(vocabulary.piece(token, specials=False) for token in visible)
    text = raw.decode(errors="replace")
    if text != transcript["text"]:
        # Never the text itself: a failure's log is a log.
        common = next(
            (i for i, (a, b) in enumerate(zip(text, transcript["text"])) if a != b),
            min(len(text), len(transcript["text"])),
        )
        print(f"the text differs from character {common} on; nearest border {nearest:.1e}")
        return False
    print(f"{len(generated)} tokens derived again, nearest border {nearest:.1e}")
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
