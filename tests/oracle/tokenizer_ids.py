"""Token ids equal llama.cpp's, and text comes back as it went in.

    python tokenizer_ids.py MODEL ORCD_TOKENIZE

Claims, for the model's own tokenizer:
1. the ids of every string equal llama.cpp's, as a whole prompt and as a part of one;
2. text made of ids, drawn at random so that UTF-8 is often cut or invalid, equals llama.cpp's
   bytes decoded with U+FFFD for each maximal invalid part, the same whether the tokens come all
   at once or one by one;
3. the ids of a string turn back into that string.

Claim 1 also for tokenizers that no small model at hand has: the same vocabulary and merges under
every pre-tokenizer name that we accept, a SentencePiece vocabulary made here from real text, and the real
vocabularies of the families that are served (`families.py`), with their control tokens.
"""

import random
import sys
import tempfile
from pathlib import Path

import llama_cpp
import ours
import strings
import vocabularies


def main(model, program):
    failures = []
    plain, specials = strings.plain(), strings.with_specials()
    with llama_cpp.Model(model, vocab_only=True) as reference:
        failures += compare_ids(model, program, reference, plain + specials, "")
        failures += compare_text(model, program, reference, plain)
    with tempfile.TemporaryDirectory() as folder:
        for name, path in vocabularies.write_all(Path(folder), model):
            with llama_cpp.Model(path, vocab_only=True) as reference:
                found = list(compare_ids(path, program, reference, plain, f"{name}: "))
            path.unlink()
            print(f"{name}: {len(found)} differences")
            failures += found
        for name, path, own in vocabularies.write_real(Path(folder), model):
            texts = plain + strings.with_specials(own[:40])
            with llama_cpp.Model(path, vocab_only=True) as reference:
                found = list(compare_ids(path, program, reference, texts, f"{name}: "))
            path.unlink()
            print(f"{name}: {len(set(texts))} strings, {len(found)} differences")
            failures += found

    for failure in failures[:20]:
        print(failure)
    count = len(set(plain))
    print(f"{count} strings without control tokens, {len(failures)} differences")
    return 1 if failures or count < 1000 else 0


def compare_ids(model, program, reference, texts, label):
    requests = [{"text": text, "whole": whole} for text in texts for whole in (False, True)]
    answers = ours.tokenize(program, model, requests)
    for request, answer in zip(requests, answers, strict=True):
        expected = reference.tokenize(request["text"], request["whole"])
        if answer["ids"] != expected:
            yield f"{label}{request}: ours {answer['ids']}, llama.cpp {expected}"


def compare_text(model, program, reference, texts):
    round_trips = [reference.tokenize(text) for text in texts]
    yield from compare_decoded(model, program, reference, random_ids(reference, 400) + round_trips)
    answers = ours.tokenize(program, model, [{"ids": ids} for ids in round_trips])
    for text, answer in zip(texts, answers, strict=True):
        if answer["text"] != text:
            yield f"round trip: {text!r} came back as {answer['text']!r}"


def compare_decoded(model, program, reference, histories):
    answers = ours.tokenize(program, model, [{"ids": ids} for ids in histories])
    for ids, answer in zip(histories, answers, strict=True):
        raw = b"".join(reference.piece(token, specials=False) for token in ids)
        expected = raw.decode(errors="replace")
        for way in ("text", "streamed"):
            if answer[way] != expected:
                yield f"{way} of {ids}: ours {answer[way]!r}, llama.cpp {expected!r}"


def random_ids(reference, count):
    """Short tokens are preferred: single bytes of multi-byte characters are among them."""
    rng = random.Random(11)
    short = [t for t in range(reference.n_vocab) if 0 < len(reference.piece(t, False)) <= 2]
    return [
        [
            rng.choice(short) if rng.random() < 0.8 else rng.randrange(reference.n_vocab)
            for _ in range(rng.randint(1, 20))
        ]
        for _ in range(count)
    ]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
