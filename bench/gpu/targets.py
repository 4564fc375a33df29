"""What figures must be, and what they aim at: on one H200, over HTTP, in one run.

A figure that reaches must and not aim is good enough; one below must is short. Times and ratios
of times are better when they are smaller, rates and shares when they are larger.
"""

from dataclasses import dataclass

SHORT, MUST, AIM = "short", "must", "aim"


@dataclass(frozen=True)
class Target:
    must: float
    aim: float

    @property
    def smaller_is_better(self):
        return self.aim < self.must

    def mark(self, value):
        """SHORT, MUST or AIM: which of the two is reached."""
        if self.smaller_is_better:
            return AIM if value <= self.aim else MUST if value <= self.must else SHORT
        return AIM if value >= self.aim else MUST if value >= self.must else SHORT

    def missing(self, value):
        """How far a short figure is from must, as a share of must: 0.25 is a quarter too slow."""
        return abs(value - self.must) / self.must


def decode(must, aim):
    """Rates of so many streams, behind short prompts."""
    return {
        ("decode", streams): Target(*both)
        for streams, both in zip((256, 128, 64, 32), zip(must, aim))
    }


def prompts(**milliseconds):
    """p1024=(must, aim): from a prompt of 1,024 to its first token."""
    return {("prompt", int(name[1:])): Target(*both) for name, both in milliseconds.items()}


"""p99 between tokens of 32 streams while prompts arrive, over p50 without."""
MIXED = {("mixed", 32): Target(3, 2)}

"""Of the rate without a schema, and without one beside."""
STRUCTURED = {
    ("structured", "constrained", 1): Target(0.9, 0.98),
    ("structured", "constrained", 32): Target(0.9, 0.98),
    ("structured", "neighbours", 32): Target(0.99, 1.0),
}

"""model: figure: target. A figure is named as `table.figures` names it."""
TARGETS = {
    "7b-F16": {
        **decode((30_000, 22_000, 13_000, 7_000), (36_000, 26_000, 15_000, 8_000)),
        **prompts(p1024=(25, 20), p8192=(190, 165)),
        ("long", 1, 4096): Target(250, 258),
        ("long", 1, 32_768): Target(215, 235),
        ("long", 32, 4096): Target(4_800, 5_600),
        **MIXED,
        **STRUCTURED,
    },
    "7b-Q8_0": {
        **decode((30_000, 23_000, 15_000, 8_500), (36_000, 27_000, 17_000, 11_000)),
        ("share", 1): Target(0.80, 0.88),
        **MIXED,
        **STRUCTURED,
    },
    "7b-Q4_K_M": {
        **decode((30_000, 22_000, 14_000, 9_000), (36_000, 27_000, 17_000, 13_000)),
        **prompts(p1024=(25, 21), p8192=(190, 170)),
        ("share", 1): Target(0.60, 0.75),
        **MIXED,
        **STRUCTURED,
    },
    "30b-a3b-F16": {("share", 1): Target(0.45, 0.65)},
    "30b-a3b-Q4_K_M": {("share", 1): Target(0.45, 0.65)},
    "0.5b-F16": {
        ("share", 1): Target(0.55, 0.70),
        ("decode", 8): Target(16_000, 22_000),
        ("decode", 256): Target(130_000, 170_000),
        **prompts(p1024=(4.0, 3.0)),
    },
}


def of(label):
    """The targets of a model; none for most."""
    return TARGETS.get(label, {})
