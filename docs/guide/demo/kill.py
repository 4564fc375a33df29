#!/usr/bin/env python3
"""Records the kill demo of README.md and draws it as kill.svg.

    python3 docs/guide/demo/kill.py [--worker PROGRAM] [--child PROGRAM] [--model FILE] [--tokens N] [--out FILE] [-- FLAG ...]

Starts a worker, streams one request to the end, streams it again, and sends SIGKILL to the child in the middle. Each
character of the drawing comes from the second stream, at the time at which it arrived. Nothing is written unless both
streams have the same text. Flags after `--` go to the worker. Needs only Python.
"""

import argparse
import html
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

REQUEST = {
    "job_id": "long",
    "prompt": "Once upon a time",
    "seed": 7,
    "temperature": 0.8,
    "ignore_eos": True,
}

COLUMNS = 86
"""Characters of a line of the terminal."""
CHARACTER, LINE = 8.4, 20
"""Width and height of a character cell, for a monospaced font of 14 px."""
MARGIN = 16
SHOWN_LINES = 14
"""Lines of the stream that are drawn, from its beginning."""
HOLD = 4.0
"""Seconds for which the last frame stays before the animation repeats."""

COMMENT, TEXT, PROMPT, DEATH, GOOD = "#8b949e", "#e6edf3", "#7ee787", "#ff7b72", "#79c0ff"


def main():
    arguments, flags = parsed()
    port = free_port()
    command = [arguments.worker, "--model", arguments.model, "--port", str(port), *flags]
    if arguments.child:
        command += ["--child-binary", arguments.child]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(worker, port)
        if "--standby" in flags:
            wait_for_standby(port)
        body = {**REQUEST, "max_tokens": arguments.tokens}
        calm = stream(port, body, kill_at=None)
        killed = stream(port, body, kill_at=arguments.tokens // 2)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    if calm["text"] != killed["text"] or killed["end"]["recoveries"] != 1:
        sys.exit("the stream with a death is not the one without: nothing is written")
    shown = [pathlib.Path(arguments.model).name, *flags]
    pathlib.Path(arguments.out).write_text(drawing(shown, body, killed))
    print(f"{arguments.out}: {len(killed['tokens'])} tokens, pause {killed['pause'] * 1000:.0f} ms")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", default=str(ROOT / "target/release/worker-orcd"))
    parser.add_argument("--child", help="the child's program, where it is not beside the worker's")
    parser.add_argument("--model", default=str(ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--tokens", type=int, default=112)
    parser.add_argument("--out", default=str(HERE / "kill.svg"))
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:split]), arguments[split + 1 :]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_ready(worker, port):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if worker.poll() is not None:
            sys.exit(f"the worker ended with {worker.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit("the worker was not ready within two minutes")


def wait_for_standby(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            if b"\nworker_orcd_standby_ready 1\n" in answer.read():
                return
        time.sleep(0.1)
    sys.exit("the standby was not ready within a minute")


def health(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return json.load(answer)


def stream(port, body, kill_at):
    """Tokens with their times, the end event, and the death if one was asked for."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/execute",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begun, tokens, found = time.monotonic(), [], {}
    child = health(port)["child"]["pid"]
    with urllib.request.urlopen(request, timeout=120) as answer:
        event = None
        for line in answer:
            now = time.monotonic() - begun
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: ") and event == "token":
                tokens.append((now, json.loads(line[6:])["t"]))
                if kill_at is not None and len(tokens) == kill_at:
                    os.kill(child, signal.SIGKILL)
                    found["killed_at"], found["child"] = time.monotonic() - begun, child
            elif line.startswith("data: ") and event in ("end", "error"):
                found["end"] = json.loads(line[6:])
                found["ended_at"] = now
    found["tokens"], found["text"] = tokens, "".join(text for _, text in tokens)
    if kill_at is not None:
        found["pause"] = tokens[kill_at][0] - found["killed_at"]
    return found


def wrapped(tokens):
    """Lines of (time, text) pieces, none of them longer than the terminal is wide."""
    lines, column = [[]], 0
    for at, text in tokens:
        for index, part in enumerate(text.split("\n")):
            if index:
                lines.append([])
                column = 0
            if column + len(part) > COLUMNS and part.startswith(" "):
                lines.append([])
                column, part = 0, part.lstrip()
            if part:
                lines[-1].append((at, column, part))
                column += len(part)
    return lines


def drawing(shown, body, killed):
    lines = wrapped(killed["tokens"])[:SHOWN_LINES]
    command = " ".join(["worker-orcd --model", *shown])
    rows, styles, total = [], [], killed["ended_at"] + HOLD

    def piece(at, row, column, text, colour):
        if at > 0:
            share = 100 * at / total
            styles.append(f"@keyframes k{len(styles)}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,to{{opacity:1}}}}")
            animated = f' style="animation:k{len(styles) - 1} {total:.2f}s infinite"'
        else:
            animated = ""
        x, y = MARGIN + column * CHARACTER, MARGIN + (row + 1) * LINE
        width = len(text) * CHARACTER
        rows.append(
            f'<text x="{x:.1f}" y="{y}" fill="{colour}" textLength="{width:.1f}"{animated}>{html.escape(text)}</text>'
        )

    row = 0
    for text, colour in (
        (f"$ {command} &", PROMPT),
        (f"$ curl -N localhost:8080/execute -H 'Content-Type: application/json' -d '{json.dumps(body)}'", PROMPT),
    ):
        while text:
            piece(0, row, 0, text[:COLUMNS], colour)
            text, row = text[COLUMNS:], row + 1
    row += 1
    for line in lines:
        for at, column, text in line:
            piece(at, row, column, text, TEXT if at < killed["killed_at"] else GOOD)
        row += 1
    row += 1
    piece(killed["killed_at"], row, 0, f"$ kill -9 {killed['child']}", DEATH)
    note = f"# in a second terminal, {killed['killed_at']:.2f} s after the request: the child that computes is dead"
    piece(killed["killed_at"], row + 1, 0, note, COMMENT)
    resumed = killed["killed_at"] + killed["pause"]
    successor = "the standby" if "--standby" in shown else "the next child"
    note = f"# next token of the same stream {killed['pause'] * 1000:.0f} ms later, from {successor}"
    piece(resumed, row + 2, 0, note, GOOD)
    end = {key: killed["end"][key] for key in ("tokens_out", "stop_reason", "recoveries")}
    piece(killed["ended_at"], row + 3, 0, f"end {json.dumps(end)}", TEXT)
    note = "# the text is byte for byte that of the same request without the kill"
    piece(killed["ended_at"], row + 4, 0, note, COMMENT)
    width, height = 2 * MARGIN + COLUMNS * CHARACTER, 2 * MARGIN + (row + 5) * LINE
    style = "".join(styles) + "@media (prefers-reduced-motion: reduce){text{animation:none!important}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
            f'height="{height}" font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14" '
            'xml:space="preserve">',
            "<title>A stream goes on when the child that computes it is killed</title>",
            f"<style>{style}</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
            *rows,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    main()
