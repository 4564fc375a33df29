"""Rows of `verify.py`'s report."""

import sys
from dataclasses import dataclass

HEAD = "| row | device | compared | result | bound | ok |\n|---|---|---|---|---|---|"
# Differences of a row on standard error, and characters of each.
SHOWN, SHOWN_CHARACTERS = 3, 1000


@dataclass(frozen=True)
class Row:
    """`holds` is None for what could not be compared: `result` is then the reason."""

    name: str
    device: str
    compared: str
    result: str
    bound: str
    holds: bool | None

    @classmethod
    def of_differences(cls, name, device, compared, found):
        for difference in found[:SHOWN]:
            print(f"{name}: {difference:.{SHOWN_CHARACTERS}}", file=sys.stderr)
        return cls(name, device, compared, f"{len(found)} differ", "0", not found)

    @classmethod
    def not_run(cls, name, device, reason):
        return cls(name, device, "", reason, "", None)

    def in_markdown(self):
        verdict = {True: "yes", False: "**no**", None: "not run"}[self.holds]
        cells = [self.name, self.device, self.compared, self.result, self.bound, verdict]
        return f"| {' | '.join(on_one_line(cell) for cell in cells)} |"


def on_one_line(text):
    return " ".join(text.split()).replace("|", "\\|")
