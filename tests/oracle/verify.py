"""A model file through llama.cpp and through ours: a table of what is compared, in Markdown on standard output.

    python verify.py MODEL --programs FOLDER [--device cpu] [--device cuda:0] [--threads 4]

`cargo xtask verify` runs this; docs/guide/models.md describes the rows. FOLDER has the programs of the `tests` crate. The exit
status is 1 if a row does not hold. What cannot be compared has its reason in place of a result.

llama.cpp computes on the CPU, and each of our devices is compared with it. Rows that need llama.cpp's numbers first make sure, in
a process of their own, that it computes the file at all: it aborts on some.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

sys.dont_write_bytecode = True

import verify_file
import verify_numbers
import verify_service
from verify_numbers import Job
from verify_table import HEAD, Row

LLAMA_CPP = f"llama.cpp (xllamacpp {version('xllamacpp')})"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("--programs", type=Path, required=True, help="a folder with the programs of the tests crate")
    arguments.add_argument("--device", action="append", help="ours: cpu or cuda:N; may be repeated [default: cpu]")
    arguments.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--ours", help="another file for our side, to see rows fail")
    options = arguments.parse_args()

    file = verify_file.read(options.model)
    path = options.ours or file.path
    job = Job(file, path, options.programs, options.device or ["cpu"], options.threads)
    for line in head(job):
        print(line, flush=True)
    rows = []
    for row in every_row(job):
        rows.append(row)
        print(row.in_markdown(), flush=True)
    count = lambda holds: sum(row.holds is holds for row in rows)
    print(f"\n{count(True)} rows hold, {count(False)} do not; not run: {count(None)}.")
    return int(count(False) > 0 or count(True) == 0)


def head(job):
    yield from job.theirs.described()
    yield f"- reference: {LLAMA_CPP}, transformers {version('transformers')}; Python {platform.python_version()}"
    yield f"- ours: {', '.join(job.devices)}, {job.threads} threads\n"
    yield HEAD


def every_row(job):
    yield from guarded("token ids", "", lambda: verify_numbers.token_ids(job))
    for number, device in enumerate(job.devices):
        yield from guarded("worker", device, lambda: service(job, device, is_first=number == 0))
    yield from guarded("bits", "", lambda: verify_numbers.bits(job))
    reason = "it gives embeddings and no logits" if job.theirs.pools else why_not(job.theirs.path)
    for name, rows in [
        ("logits", verify_numbers.logits),
        ("greedy tokens", verify_numbers.greedy_tokens),
        ("perplexity", verify_numbers.text_perplexity),
    ]:
        if reason:
            yield Row.not_run(name, "", reason)
        else:
            yield from guarded(name, "", lambda: rows(job))


def service(job, device, is_first):
    with verify_service.Worker(job, device) as worker:
        if is_first:
            # What a template makes of a chat does not depend on the device.
            yield from verify_service.chats(job, worker)
        yield from verify_service.answers(job, worker, device)


def guarded(name, device, rows):
    """The rows, and one more that fails where they break off."""
    begin = time.monotonic()
    try:
        yield from rows()
    except Exception as error:
        yield Row(name, device, "it broke off", f"{type(error).__name__}: {error}", "", False)
    print(f"{name} {device}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def why_not(path):
    """Why llama.cpp does not compute this file, or None."""
    script = Path(__file__).with_name("llama_computes.py")
    done = subprocess.run([sys.executable, "-B", script, path], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return f"{LLAMA_CPP} does not compute it, and ends with {done.returncode}: {said[-1] if said else 'without output'}"


if __name__ == "__main__":
    sys.exit(main())
