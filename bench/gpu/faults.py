"""`run.py faults`: the chaos runner on the device, twice, and one report of both.

First the faults: the device's own, a NaN from its arithmetic and a kill while it computes, mixed,
under streams that are compared with a run without faults. Then kills from outside, each sent again
while the next child starts, so that they hit it in its load as well.
"""

import os
import pathlib

"""What a GPU can be made to do, and what every device can."""
ON_A_GPU, ANYWHERE = "device|nan|kill", "any"
"""For the second part, for starts, references and what runs may finish."""
KILLS_SECONDS, MARGIN_SECONDS = 25, 45
STREAMS = ["--streams", "32", "--max-running", "32", "--steady"]
"""Prompts with log probabilities and embeddings keep steps from being launched ahead; here they should be."""
MIX = ["--mix", "execute"]


def parts(arguments):
    """Title, file and flags of each run."""
    on_a_gpu = arguments.device.startswith("cuda:")
    kinds = arguments.kinds or (ON_A_GPU if on_a_gpu else ANYWHERE)
    minutes = max(0.3, (arguments.seconds - KILLS_SECONDS - MARGIN_SECONDS) / 60)
    common = ["--device", arguments.device, *STREAMS, *MIX, *arguments.flags.split()]
    yield "Faults of the device", "faults.part", [
        *common, "--faults", str(arguments.deaths), "--minutes", f"{minutes:.1f}",
        "--kinds", kinds, "--fault-chance", str(arguments.fault_chance), "--signal-seconds", "0",
    ]
    yield "Kills from outside", "kills.part", [
        *common, "--minutes", f"{KILLS_SECONDS / 60:.2f}", "--kinds", "kill", "--fault-chance", "0",
        "--signal-seconds", "0.8", "--signals", "SIGKILL", "--chase",
    ]


def run(arguments, steps, model, commit, machine):
    """The exit code: 0 when no part shows a violation."""
    out, code = pathlib.Path(arguments.out), 0
    whole = [f"# gpu-faults\n\nOn: {machine['gpu']}.\n"]
    for title, name, flags in parts(arguments):
        file = out / name
        code |= steps.run(
            "chaos", ["--commit", commit, *flags, "--report", name],
            cwd=out, env={**os.environ, "WORKER_ORCD_MODEL": str(model)},
        )
        if file.is_file():
            whole.append(section(title, file.read_text()))
            file.unlink()
        (out / "gpu-faults.md").write_text("\n".join(whole))
    return code


def section(title, report):
    """A report of its own, one level down."""
    lines = report.splitlines()
    deeper = ["#" + line if line.startswith("#") else line for line in lines]
    return "\n".join([f"## {title}", *deeper[1:], ""])
