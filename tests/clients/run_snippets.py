"""Runs Python programs and shell scripts, two at a time, a Python program in a fork of this interpreter.

    python run_snippets.py PROGRAM...

The name of a Python program ends in `.python`.

Most of the time of a client's program is the import of its packages. So what all of them import is imported once, before
the first fork, and a program finds it there. Its output goes to the files PROGRAM.out and PROGRAM.err. A line of
standard output, `PROGRAM STATUS SECONDS`, follows its end.
"""

import ast
import gc
import importlib
import os
import runpy
import signal
import sys
import time

AT_A_TIME = 2
# 4 min: other tests may run beside these.
PATIENCE = 240


def main():
    waiting, running = sys.argv[1:], {}
    gc.disable()
    for name in sorted({name for path in waiting for name in imported(path)}):
        importlib.import_module(name)
    # A collection in a fork, as at its end, would visit what was imported.
    gc.freeze()
    gc.enable()
    while waiting or running:
        while waiting and len(running) < AT_A_TIME:
            path = waiting.pop(0)
            running[start(path)] = path, time.monotonic()
        process, status = os.wait()
        path, started = running.pop(process)
        print(path, os.waitstatus_to_exitcode(status), f"{time.monotonic() - started:.1f}", flush=True)


def imported(path):
    """Modules that a program imports."""
    if not is_python(path):
        return
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def is_python(path):
    return path.endswith(".python")


def start(path):
    process = os.fork()
    if process:
        return process
    signal.alarm(PATIENCE)
    for stream, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(path + suffix, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    if not is_python(path):
        # The alarm outlives it.
        os.execv("/bin/sh", ["sh", path])
    sys.argv = [path]
    # Exits through the interpreter's end, as a program does: exit handlers run, and buffers are written.
    runpy.run_path(path, run_name="__main__")
    sys.exit()


main()
