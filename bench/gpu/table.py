"""Findings as one table. A share is of the bandwidth floor: the time that reading the weights once
and every sequence's keys and values takes at the bandwidth measured in the same run, over the time
that a step took."""

import json
import pathlib

HEAD = ["model", "side", "answers equal", "exec to ready, s"]


def write(folder, results):
    """Both forms, each replaced in one go."""
    for name, text in (
        ("gpu.json", json.dumps(results, indent=1) + "\n"),
        ("gpu.md", markdown(results)),
    ):
        path = pathlib.Path(folder, name)
        fresh = path.with_suffix(path.suffix + ".new")
        fresh.write_text(text)
        fresh.replace(path)


def markdown(results):
    machine, settings = results["machine"], results["settings"]
    batches, prompts = seen(results, "decode", "batch"), seen(results, "prompt", "tokens")
    rate = floor_rate(results)
    lines = [
        "# gpu", "",
        f"- command: `{results['command']}`",
        f"- date: {machine['date']}",
        f"- commit: {machine['commit']}",
        f"- device: {machine['device']}: {machine['gpu']}",
        f"- machine: {machine['cpu']}",
        f"- read-only bandwidth in this run: {tera(rate)}", "",
        "Tokens per second (share of the bandwidth floor) of so many sequences at once, behind "
        f"prompts of {settings['prompt_tokens']} tokens, {settings['tokens']} tokens each; "
        "milliseconds from the call or the request to the first token of a new prompt. Medians.",
        "",
    ]
    columns = HEAD + [f"batch {batch}" for batch in batches]
    columns += [f"prompt {tokens}, ms" for tokens in prompts]
    lines += [row(columns), "|" + "---|" * len(columns)]
    for model in results["models"]:
        sides = [side for side in ("bare", "served") if of(model, side)]
        lines += [row(cells(model, side, results, batches, prompts)) for side in sides]
    lines.append("")
    for model in results["models"]:
        if "failed" in model:
            lines.append(f"- {model['label']}: {model['failed']}")
        for text in of(model, "served", "text"):
            lines.append(f"- {model['label']} says, greedily: {text['prompt']!r} → {text['text']!r}")
    return "\n".join(lines).rstrip() + "\n"


def cells(model, side, results, batches, prompts):
    checks = of(model, side, "check")
    equal = "not checked" if not checks else "yes" if all(c["equal"] for c in checks) else "NO"
    if side == "bare":
        # In one process, from the call: there is no exec to begin from.
        start = [f"{found['seconds']:.3f} (load)" for found in of(model, side, "loaded")]
    else:
        start = [f"{found['median_seconds']:.3f}" for found in of(model, side, "ready")]
    found = [model["label"], "HTTP" if side == "served" else "bare", equal, *(start or ["–"])]
    found += [decode(model, side, batch, results) for batch in batches]
    for tokens in prompts:
        times = [p for p in of(model, side, "prompt") if p["tokens"] == tokens]
        found.append(f"{times[-1]['median_ms']:.2f}" if times else "–")
    return found


def decode(model, side, batch, results):
    rates = [d for d in of(model, side, "decode") if d["batch"] == batch]
    rate = rates[-1].get("tokens_per_second") if rates else None
    if rate is None:
        return "–"
    share = share_of_floor(model, batch, rate, results)
    return f"{rate:,.0f}" + (f" ({share:.0%})" if share else "")


def share_of_floor(model, batch, tokens_per_second, results):
    rate = floor_rate(results)
    if not rate:
        return None
    settings = results["settings"]
    context = settings["prompt_tokens"] + settings["tokens"] / 2
    step_bytes = model["bytes_per_token"] + batch * context * model["kv_bytes_per_token"]
    return step_bytes / rate * tokens_per_second / batch


def floor_rate(results):
    return max((found["median"] for found in results["bandwidth"]), default=None)


def seen(results, what, key):
    """The columns: whatever any model was measured at."""
    findings = [found for model in results["models"] for found in model["findings"]]
    return sorted({found[key] for found in findings if found["what"] == what})


def of(model, side, what=None):
    """Findings of one side, and one kind."""
    return [
        found for found in model["findings"]
        if found["side"] == side and what in (None, found["what"])
    ]


def tera(rate):
    return f"{rate / 1e12:.3f} TB/s" if rate else "not measured"


def row(found):
    return "| " + " | ".join(found) + " |"
