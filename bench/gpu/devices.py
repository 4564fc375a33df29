"""`run.py devices`: one worker over several devices. What they give together beside one alone, and what the death of
one child costs its streams and those of the others.

A stream's pause is the longest time between two pieces of its text around the death. Whose child died is known by
number alone: /health counts the streams that went on with another child, and those with the longest pauses are
taken for them. Every text is compared with that of the same request without a death.
"""

import json
import os
import pathlib
import random
import selectors
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

STREAMS, CONTEXT, TOKENS = 64, 1000, 700
"""Seconds before and after a death in which times between tokens are compared."""
AROUND = 1.0
"""Pieces that each stream has before the death."""
BEFORE = 40
READY_SECONDS = 60
FAULT = "illegal-address"
MEASURES = ["sigkill", FAULT, "rate"]


class Worker:
    """The programs of a folder, as a user starts them."""

    def __init__(self, folder, model, device, flags=(), env=None, child="tested-worker-orcd-gpu"):
        self.port = free_port()
        self.log = tempfile.TemporaryFile("w+")
        program = pathlib.Path(folder, "tested-worker-orcd")
        self.process = subprocess.Popen(
            [program, "--child-binary", pathlib.Path(folder, child), "--model", str(model), "--device", device,
             "--port", str(self.port), "--max-restart-delay", "1ms",
             "--max-queue", "1000", "--log-format", "json", *flags],
            stderr=self.log, env={**os.environ, **(env or {})}, start_new_session=True,
        )

    def __enter__(self):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if all(device["state"] == "serving" for device in self.health()["devices"]):
                    return self
            except (OSError, KeyError):
                pass
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError("the worker is not ready")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def health(self):
        try:
            answer = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
        except urllib.error.HTTPError as error:
            answer = error
        return json.load(answer)

    def wait_whole(self):
        """Until a child serves on each device."""
        deadline = time.monotonic() + READY_SECONDS
        while not all(it["state"] == "serving" for it in self.health()["devices"]):
            if time.monotonic() > deadline:
                raise RuntimeError("a device did not come back")
            time.sleep(0.02)


class Stream:
    """A request whose answer's bytes are kept with the times at which they came."""

    def __init__(self, port, body):
        self.arrivals = []
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        text = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" \
               f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
        self.socket.sendall(head.encode() + text)
        self.pieces = []
        self.is_over = False

    def read(self):
        piece = self.socket.recv(65536)
        if not piece:
            self.is_over = True
            return
        self.arrivals.append(time.monotonic())
        self.pieces.append(piece)

    def text(self):
        """Of all choices' pieces. Chunked encoding puts sizes between lines, and none of them looks like an event."""
        answer = b"".join(self.pieces)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"a request was answered with {answer[:400]}")
        found = []
        for line in b"".join(self.pieces).replace(b"\r\n", b"\n").split(b"\n"):
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"a stream ended with {event['error']}")
                found += [choice["text"] for choice in event["choices"]]
        return "".join(found)

    def gaps(self, begin, end):
        """Times between pieces, of which the later one came in that time."""
        pairs = zip(self.arrivals, self.arrivals[1:])
        return [later - earlier for earlier, later in pairs if begin <= later < end]


def requests(seed, streams=STREAMS, context=CONTEXT, tokens=TOKENS):
    """Prompts of token ids that no other round has."""
    draws = random.Random(seed)
    return [
        {"prompt": [draws.randrange(1000, 40000) for _ in range(context)], "max_tokens": tokens,
         "seed": seed * 1000 + number, "temperature": 1.0, "ignore_eos": True, "stream": True}
        for number in range(streams)
    ]


def crowd(worker, bodies, strike=None):
    """Reads all streams to their ends. Strikes once when each has its first pieces, and gives that moment."""
    streams = [Stream(worker.port, body) for body in bodies]
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    struck = None
    while not all(stream.is_over for stream in streams):
        for key, _ in selector.select(30):
            key.data.read()
            if key.data.is_over:
                selector.unregister(key.data.socket)
                key.data.socket.close()
        if strike and struck is None and all(len(it.arrivals) >= BEFORE for it in streams):
            struck = time.monotonic()
            strike()
    return streams, struck


def death(worker, seed, strike):
    """One death under all streams: what it cost, in milliseconds."""
    expected = [stream.text() for stream in crowd(worker, requests(seed))[0]]
    before = worker.health()["faults"]["recoveries"]
    streams, struck = crowd(worker, requests(seed), strike)
    worker.wait_whole()
    health = worker.health()
    moved = health["faults"]["recoveries"] - before
    pauses = sorted(max(it.gaps(struck, struck + 10), default=0) for it in streams)
    others = sorted(streams, key=lambda it: max(it.gaps(struck, struck + 10), default=0))
    others = others[: len(streams) - moved]
    calm = [gap for it in others for gap in it.gaps(struck - AROUND, struck)]
    after = [gap for it in others for gap in it.gaps(struck, struck + AROUND)]
    equal = sum(stream.text() == text for stream, text in zip(streams, expected))
    return {
        "moved": moved, "equal": equal, "streams": len(streams),
        "adopted_tokens": health["load"]["adopted_tokens"],
        "overdue": health["faults"]["overdue_children"],
        "pauses_ms": [1e3 * pause for pause in pauses[len(pauses) - moved :]],
        "others_before_p99_ms": 1e3 * percentile(calm, 99) if calm else None,
        "others_after_p99_ms": 1e3 * percentile(after, 99) if after else None,
        "others_longest_ms": 1e3 * max(after, default=0),
    }


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, len(values) * percent // 100)]


def deaths(folder, model, device, rounds, flags=(), fault=False):
    """Deaths of the children of each device in turn."""
    trigger = pathlib.Path(tempfile.mkdtemp(), "now")
    env, more, child = {}, [], "tested-worker-orcd-gpu"
    if fault:
        child = "faulty-worker-orcd-gpu"
        env = {"WORKER_ORCD_FAULTS": f"{FAULT}@file={trigger}"}
        more = ["--accept-fault-injection", "--quarantine-for", "0s"]
    with Worker(folder, model, device, [*flags, *more], env, child) as worker:
        crowd(worker, requests(999, tokens=64))
        for number in range(rounds):
            children = worker.health()["devices"]
            victim = children[number % len(children)]["child"]["pid"]

            def strike():
                if fault:
                    trigger.write_text("")
                else:
                    os.kill(victim, signal.SIGKILL)

            yield death(worker, number + 1, strike)


def rate(steps, model, device, streams, flags):
    """Tokens per second of so many streams together."""
    for finding in steps.findings(
        "bench-gpu",
        ["served", "--model", str(model), "--device", device, "--measure", "decode",
         "--batches", str(streams), "--starts", "1", *flags],
    ):
        print(json.dumps(finding), flush=True)
        if finding["what"] == "decode":
            return finding["tokens_per_second"]
    raise RuntimeError("no rate was told")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def report(machine, command, rates, tables):
    """The findings as Markdown."""
    out = [f"# gpu-devices\n\n- command: `{command}`\n- date: {machine['date']}\n- commit: {machine['commit']}\n"
           f"- machine: {machine['cpu']}; {machine['gpu'].splitlines()[0]} x {machine['gpu'].count(chr(10)) + 1}\n"]
    if rates:
        out.append("## Tokens per second\n\n| model | streams on one card | streams on all | one card | all | ratio |\n"
                   "|---|---|---|---|---|---|")
        for label, streams, several, one, every in rates:
            out.append(f"| {label} | {streams} | {several} | {one:,.0f} | {every:,.0f} | {every / one:.2f} |")
    for title, found in tables:
        pauses = [pause for it in found for pause in it["pauses_ms"]]
        moved, equal = sum(it["moved"] for it in found), sum(it["equal"] for it in found)
        every = sum(it["streams"] for it in found)
        ratios = [it["others_after_p99_ms"] / it["others_before_p99_ms"] for it in found
                  if it["others_before_p99_ms"] and it["others_after_p99_ms"]]
        out.append(f"\n## {title}\n\n{len(found)} deaths under {STREAMS} streams of {CONTEXT} tokens of context; "
                   f"{moved} streams moved, {equal} of {every} texts equal to those without a death.\n")
        out.append("| figure | ms |\n|---|---|")
        if pauses:
            out.append(f"| pause of a stream that moved, p50 | {percentile(pauses, 50):.1f} |")
            out.append(f"| p99 | {percentile(pauses, 99):.1f} |\n| longest | {max(pauses):.1f} |")
        if ratios:
            out.append(f"| the others: p99 between pieces, after the death over before, median | "
                       f"{percentile(ratios, 50):.2f} x |")
            out.append(f"| the others: longest between pieces | {max(it['others_longest_ms'] for it in found):.1f} |")
    return "\n".join(out) + "\n"


def run(arguments, steps_of, model_of, machine):
    """Everything, the most telling first; keeps what it has after each finding."""
    measures = arguments.measure_devices.split(",")
    out = pathlib.Path(arguments.out, "gpu-devices.md")
    rates, tables = [], []
    here = pathlib.Path(__file__).resolve().parent
    flags = arguments.flags.split()

    def keep():
        out.write_text(report(machine, arguments.command, rates, tables))

    for label in arguments.only.split(","):
        with model_of(label) as model:
            for kind, fault in [("SIGKILL", False), (FAULT, True)]:
                if kind.lower() not in measures:
                    continue
                found = []
                tables.append((f"{label}: {kind}", found))
                fit = ["--max-running", str(2 * STREAMS), "--max-context", "2048", *flags]
                for it in deaths(here / "bin", model, arguments.device, arguments.deaths, fit, fault):
                    print(json.dumps(it), flush=True)
                    found.append(it)
                    keep()
            if "rate" in measures:
                every, streams = arguments.device, arguments.streams
                one, cards = every.split(",")[0], every.count(",") + 1
                for several in (streams, cards * streams):
                    order = [(one, streams), (every, several), (every, several), (one, streams)]
                    found = [rate(steps_of(), model, device, of, flags) for device, of in order]
                    rates.append((label, streams, several, sum(found[::3]) / 2, sum(found[1:3]) / 2))
                    keep()
    print(out.read_text())
    return 0
