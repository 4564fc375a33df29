#!/usr/bin/env python3
"""One script for a GPU machine without Rust and without internet. Only Python is needed there.

    run.py speed     every figure of bench/results/gpu.md, beside what it must be and aims at:
                     prints one table
    run.py devices   several cards in one worker: together beside one, and a death of one child
    run.py faults    a hundred faults of the device under 32 streams, and kills from outside
    run.py models    only makes the random models, and says how long that took

It writes $OUT/gpu.md and $OUT/gpu.json (or gpu-faults.md) after every finding, so that a run that
is cut short keeps what it has. Correct before fast: a model whose answers differ over batch sizes
gets no figure. Each program that measures has an end of its own, so that one that hangs costs no
figure but its own.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import bandwidth
import devices
import faults
import gguf_file
import models
import table
from steps import Cut, Steps

HERE = pathlib.Path(__file__).resolve().parent
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
REAL_TEXT = "The history of the Roman Empire began when Augustus became"
# The most telling first: a run that ends early has those.
ORDER = ["0.5b-F16", "smollm2", "0.5b-Q8_0", "0.5b-Q4_K_M", "7b-F16", "7b-Q8_0", "7b-Q4_K_M"]
"""Larger than what has room beside others in memory: made only when it is asked for (--only)."""
LARGE = ["30b-a3b-Q4_K_M", "30b-a3b-Q8_0", "30b-a3b-F16", "gpt-oss-20b-MXFP4_MOE"]
MEASURES = ["decode", "prompt", "long", "mixed", "structured"]
"""Programs of each side, each with a start of its own: a worker that may serve 32,768 positions
is another one than that which serves 256 short streams."""
PROGRAMS = {"served": [("decode", "prompt"), ("long", "mixed"), ("structured",)], "bare": [("decode", "prompt")]}
PROMPTS = [128, 1024, 8192]
"""Streams, and positions behind them."""
LONG = [(1, 4096), (32, 4096), (1, 32_768)]
MARGIN_BYTES = 2 << 30
KV_MIB = 16 << 10


def main():
    arguments = parse()
    arguments.out = os.path.abspath(arguments.out)
    os.makedirs(arguments.out, exist_ok=True)
    try:
        what = {"speed": speed, "devices": several_devices, "faults": real_faults, "models": only_models}[
            arguments.what
        ]
        return what(arguments)
    except bandwidth.NoDriver as error:
        print(f"run.py: {error}; --device cpu tries the bundle out", file=sys.stderr)
        return 2


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "devices", "faults", "models"])
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="where results go")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or several with commas between; cpu tries the bundle out")
    parser.add_argument("--only", default=",".join(ORDER),
                        help="models (SHAPE-TYPE of models.py, smollm2), with commas between")
    parser.add_argument("--measure", default=",".join(MEASURES), type=chosen(MEASURES),
                        help="figures: " + ",".join(MEASURES))
    parser.add_argument("--scratch", help="where random models go (15 GB at a time)")
    parser.add_argument("--smollm2", help=f"{SMOLLM2}, or its parts' common beginning")
    parser.add_argument("--seconds", type=float, default=540, help="time for everything")
    parser.add_argument("--program-seconds", type=float, default=150,
                        help="time for one program, which measures two groups of figures")
    parser.add_argument("--patience", type=float, default=6,
                        help="seconds after which a figure gets no further round")
    parser.add_argument("--sides", default="bare,served", help="bare, served, or both")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="in front of a decode")
    parser.add_argument("--tokens", type=int, default=256, help="that are decoded")
    parser.add_argument("--layers", type=int, help="fewer layers than the shapes have")
    parser.add_argument("--flags", default="", help="more flags for bench-gpu or chaos")
    parser.add_argument("--deaths", type=int, default=100, help="faults, devices: how many")
    parser.add_argument("--streams", type=int, default=256, help="devices: whose rate is taken")
    parser.add_argument("--measure-devices", default=",".join(devices.MEASURES), type=chosen(devices.MEASURES),
                        help="devices: " + ",".join(devices.MEASURES))
    parser.add_argument("--kinds", help="faults: which, as chaos --kinds [device|nan|kill]")
    parser.add_argument("--fault-chance", type=float, default=0.01, help="faults: in each step")
    return parser.parse_args()


def chosen(measures):
    def some_of_them(text):
        unknown = set(text.split(",")) - set(measures)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is none of {measures}")
        return text

    return some_of_them


def speed(arguments):
    steps = Steps(HERE / "bin", arguments.seconds)
    results = {
        "command": command(arguments),
        "machine": machine(arguments.device),
        "settings": {"prompt_tokens": arguments.prompt_tokens, "tokens": arguments.tokens},
        "bandwidth": [],
        "models": [],
    }
    failed = False
    read_bandwidth(arguments, results)
    for label in arguments.only.split(","):
        entry = {"label": label, "findings": [], "notes": []}
        results["models"].append(entry)
        try:
            measure(label, entry, arguments, steps, lambda: table.write(arguments.out, results))
        except (Cut, RuntimeError, OSError, subprocess.SubprocessError) as error:
            entry["notes"].append(str(error))
            failed |= not isinstance(error, Cut)
            print(f"{label}: {error}", file=sys.stderr)
        table.write(arguments.out, results)
    read_bandwidth(arguments, results)
    table.write(arguments.out, results)
    print(table.markdown(results))
    return int(failed)


def command(arguments):
    """What decides the figures, and no folder of the machine."""
    words = ["run.py", arguments.what, "--device", arguments.device]
    for name in ("only", "measure", "sides", "prompt_tokens", "tokens", "patience", "layers", "flags"):
        given = getattr(arguments, name)
        if given:
            words += ["--" + name.replace("_", "-"), repr(given) if name == "flags" else str(given)]
    return " ".join(words)


def read_bandwidth(arguments, results):
    """At the beginning and at the end: the larger is the floor, so no share is flattered."""
    if not arguments.device.startswith("cuda:"):
        return
    first = arguments.device.split(",")[0]
    found = bandwidth.measure(int(first.removeprefix("cuda:")))
    results["bandwidth"].append(found)
    print(f"reads {found['median'] / 1e12:.3f} TB/s (best {found['best'] / 1e12:.3f})", flush=True)


def measure(label, entry, arguments, steps, keep):
    """One model, by every program of the sides that are asked for."""
    steps.need(20, label)
    with model(label, entry, arguments) as path:
        entry.update(gguf_file.facts(path))
        for side, flags in programs(label, entry, arguments):
            try:
                for finding in steps.findings(
                    "bench-gpu",
                    [side, "--model", str(path), "--device", arguments.device, *flags],
                    arguments.program_seconds,
                ):
                    entry["findings"].append(finding)
                    print(f"{label}: {json.dumps(finding)}", flush=True)
                    keep()
            except Cut as error:
                # The next one has an end of its own, if the whole run has time for it.
                entry["notes"].append(str(error))
                print(f"{label}: {error}", file=sys.stderr)


def programs(label, facts, arguments):
    """Side and flags of each program that this model needs for what is asked for."""
    common = ["--prompt-tokens", str(arguments.prompt_tokens), "--tokens", str(arguments.tokens),
              "--patience", str(arguments.patience)]
    for side in arguments.sides.split(","):
        for group in PROGRAMS[side]:
            wanted = [name for name in arguments.measure.split(",") if name in group]
            flags = ["--measure", ",".join(wanted), *common]
            if "prompt" in wanted:
                fit = [tokens for tokens in PROMPTS if tokens + 2 <= facts["context_tokens"]]
                flags += ["--prompts", ",".join(map(str, fit))]
            if "long" in group:
                flags += long_flags(facts, arguments)
            if side == "served" and label == "smollm2":
                flags += ["--alphabet", "words"]
                flags += ["--show", REAL_TEXT] if "decode" in group else []
            if wanted:
                yield side, joined(flags, arguments.flags.split())


def joined(flags, given):
    """Pairs of a flag and its value; of a flag that is given too, the given one. Lists that are
    told twice would be one long list."""
    pairs = [pair for pair in zip(flags[::2], flags[1::2]) if pair[0] not in given]
    return [word for pair in pairs for word in pair] + given


def long_flags(facts, arguments):
    """Streams that the model has positions for, and memory for their keys and values."""
    fit = [(streams, positions) for streams, positions in LONG
           if positions + arguments.tokens <= facts["context_tokens"]]
    most = max((streams * (positions + arguments.tokens) for streams, positions in fit), default=0)
    needed = most * facts["kv_bytes_per_token"] * 5 // 4 >> 20
    flags = ["--starts", "1", "--kv-cache", str(max(KV_MIB, needed))]
    return flags + ["--long", ",".join(f"{streams}x{positions}" for streams, positions in fit)]


class model:
    """A file that is there while it is measured: SmolLM2's, or a random one that is made for it
    and removed, since seven of them would not fit."""

    def __init__(self, label, entry, arguments):
        self.folder = None
        self.label, self.entry, self.arguments = label, entry, arguments

    def __enter__(self):
        if self.label == "smollm2":
            return smollm2(self.arguments)
        shape_name, _, kind = self.label.rpartition("-")
        shape = models.SHAPES.get(shape_name)
        if shape is None or kind not in models.TYPES or not models.has(shape, kind):
            raise RuntimeError(f"no model named {self.label}; there are {', '.join(ORDER + LARGE)}")
        if self.arguments.layers:
            shape = models.replace(shape, layers=self.arguments.layers)
        self.folder = tempfile.mkdtemp(dir=scratch(self.arguments, shape, kind))
        path = pathlib.Path(self.folder, f"{self.label}.gguf")
        try:
            made = models.generate(shape, kind, path)
        except BaseException:
            self.__exit__()
            raise
        self.entry["made_in_seconds"] = made["seconds"]
        print(f"{self.label}: {made['file_bytes']} bytes in {made['seconds']} s", flush=True)
        return path

    def __exit__(self, *_):
        if self.folder:
            shutil.rmtree(self.folder)


def scratch(arguments, shape, kind):
    """Memory if it has the room, so that no disk is waited for; else the disk."""
    if arguments.scratch:
        return arguments.scratch
    needed = sum(tensor.nbytes for tensor in models.tensors(shape, kind)) + MARGIN_BYTES
    memory = "/dev/shm"
    if os.path.isdir(memory) and shutil.disk_usage(memory).free > needed:
        return memory
    return tempfile.gettempdir()


def smollm2(arguments):
    """The file as given, or beside this script, or joined from parts (`split` made them, because
    a transfer was limited)."""
    given = pathlib.Path(arguments.smollm2 or HERE / SMOLLM2).absolute()
    if given.is_file():
        return given
    parts = sorted(given.parent.glob(given.name + "?*"))
    if not parts:
        raise RuntimeError(f"{given} is not there, and no parts of it")
    whole = pathlib.Path(tempfile.gettempdir(), SMOLLM2)
    with open(whole, "wb") as out:
        for part in parts:
            out.write(part.read_bytes())
    return whole


def real_faults(arguments):
    """The chaos runner on the device: every stream is compared with a run without faults."""
    steps = Steps(HERE / "bin", arguments.seconds)
    labels = ["smollm2"] if arguments.only == ",".join(ORDER) else arguments.only.split(",")
    with model(labels[0], {}, arguments) as path:
        return faults.run(arguments, steps, path, commit(), machine(arguments.device))


def several_devices(arguments):
    arguments.command = " ".join([
        "run.py devices --device", arguments.device, "--only", arguments.only, "--deaths", str(arguments.deaths),
        "--measure-devices", arguments.measure_devices, "--streams", str(arguments.streams),
    ])
    steps = Steps(HERE / "bin", arguments.seconds)
    return devices.run(arguments, lambda: steps, lambda label: model(label, {}, arguments), machine(arguments.device))


def only_models(arguments):
    for label in arguments.only.split(","):
        with model(label, {}, arguments) as path:
            print(f"{label}: {json.dumps(gguf_file.facts(path))}")
    return 0


def machine(device):
    """What the figures belong to."""
    smi = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    found = subprocess.run(smi, capture_output=True, text=True) if shutil.which(smi[0]) else None
    cpu = next(
        (line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if "model name" in line),
        "unknown CPU",
    )
    return {
        "device": device,
        "gpu": found.stdout.strip() if found and found.returncode == 0 else "no GPU",
        "cpu": f"{cpu}, {os.cpu_count()} threads",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
    }


def commit():
    file = HERE / "COMMIT"
    return file.read_text().strip() if file.is_file() else "unknown"


if __name__ == "__main__":
    sys.exit(main())
