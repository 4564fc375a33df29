"""Our side of a comparison: the two small programs built with the tests crate.

`orcd-tokenize` turns text into ids and back through the supervisor's text code; `orcd-logits`
runs token histories through the child's CPU executor. Both speak JSON lines, so that the
scripts here stay free of any knowledge of how the engine is built.
"""

import json
import subprocess

import numpy as np


def tokenize(program, model, requests):
    """One answer per request, in order; see tests/src/bin/orcd-tokenize.rs for the fields."""
    lines = _lines([program, model], requests)
    return [json.loads(line) for line in lines.splitlines()]


def next_tokens(program, model, requests, *flags):
    """Per request: `argmax` at every wanted position and `nll` of the token that follows."""
    lines = _lines([program, model, "--output", "next-token", *flags], requests)
    return [json.loads(line) for line in lines.splitlines()]


def logits(program, model, requests, n_vocab, *flags):
    """Per request: an array [positions, vocab]."""
    raw = _lines([program, model, "--output", "logits", *flags], requests)
    rows = np.frombuffer(raw, dtype="<f4").reshape(-1, n_vocab)
    wanted = [len(request["positions"]) for request in requests]
    if rows.shape[0] != sum(wanted):
        raise RuntimeError(f"{rows.shape[0]} rows came back, {sum(wanted)} were asked for")
    return np.split(rows, np.cumsum(wanted)[:-1])


def _lines(command, requests):
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([str(part) for part in command], input=text.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        errors = done.stderr.decode(errors="replace")
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {errors}")
    return done.stdout
