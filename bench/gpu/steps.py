"""Programs of the bundle, each with an end: none outlives the time that the whole run has."""

import json
import os
import signal
import subprocess
import threading
import time


class Cut(Exception):
    """There was no time left."""


class Steps:
    def __init__(self, folder, seconds):
        self.folder = folder
        self.deadline = time.monotonic() + seconds

    def left(self):
        return self.deadline - time.monotonic()

    def need(self, seconds, what):
        if self.left() < seconds:
            raise Cut(f"not run: {max(0, self.left()):.0f} s were left for {what}")

    def start(self, name, flags, **how):
        """A group of its own, so that what the program starts can be ended with it."""
        return subprocess.Popen([self.folder / name, *flags], start_new_session=True, **how)

    def findings(self, name, flags, seconds=float("inf")):
        """The JSON objects that the program prints, as they come, in so many seconds at most.
        Fails when the program does."""
        self.need(0.5, f"{name} {flags[0]}")
        seconds = min(seconds, self.left())
        program = self.start(name, flags, stdout=subprocess.PIPE, text=True)
        with Watchdog(program, seconds) as watchdog:
            for line in program.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            code = program.wait()
        if watchdog.bit:
            raise Cut(f"{name} {flags[0]} was cut short after {seconds:.0f} s: the time was used up")
        if code != 0:
            raise RuntimeError(f"{name} {flags[0]} ended with code {code}; why is above")

    def run(self, name, flags, **how):
        """The program's exit code; what it prints is shown."""
        program = self.start(name, flags, **how)
        with Watchdog(program, self.left()) as watchdog:
            code = program.wait()
        if watchdog.bit:
            print(f"{name} was cut short: the time was used up")
        return code


class Watchdog:
    """Kills the program's group when its time is up, or when nobody reads it any more."""

    def __init__(self, program, seconds):
        self.program, self.bit = program, False
        self.timer = threading.Timer(max(1, seconds), self.bite)

    def bite(self):
        self.bit = True
        self.kill()

    def kill(self):
        if self.program.poll() is None:
            os.killpg(self.program.pid, signal.SIGKILL)

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.kill()
        self.program.wait()
        if self.program.stdout:
            self.program.stdout.close()
