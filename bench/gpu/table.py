"""Findings as one table: a row for each figure of each model, with what it must be and aims at.

A share is of the bandwidth floor: the time that reading the weights once (of experts, those that are chosen)
and every sequence's keys and values takes at the bandwidth measured in the same run, over the time that a step took."""

import json
import pathlib
from dataclasses import dataclass, field

import targets

HEAD = ["model", "figure", "HTTP", "share", "bare", "must", "aim", "reached"]
SIDES = {"served": "HTTP", "bare": "bare"}
RATE, TIME, SHARE, RATIO = "tok/s", "ms", "share", "ratio"


@dataclass
class Figure:
    """As targets name it."""
    name: tuple
    title: str
    unit: str
    """side: number"""
    values: dict = field(default_factory=dict)
    """Of the floor, as HTTP reaches it; else as bare does."""
    share: float = None


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
    lines = [
        "# gpu", "",
        f"- command: `{results['command']}`",
        f"- date: {machine['date']}",
        f"- commit: {machine['commit']}",
        f"- device: {machine['device']}: {machine['gpu']}",
        f"- machine: {machine['cpu']}",
        f"- read-only bandwidth in this run: {tera(floor_rate(results))}", "",
        "Rates are tokens per second of so many streams at once, behind prompts of "
        f"{settings['prompt_tokens']} tokens or as many positions as said, {settings['tokens']} "
        "tokens each; a share is of the bandwidth floor. Times are from the call or the request to "
        "the first token of a new prompt, or between tokens. Medians where nothing else is said. "
        "Must and aim are what one H200 is to reach over HTTP.", "",
        row(HEAD), "|" + "---|" * len(HEAD),
    ]
    for model in results["models"]:
        lines += [row(fact) for fact in facts(model)]
        lines += [row(cells(model, figure)) for figure in figures(model, results)]
    lines += ["", *verdict(results), ""]
    for model in results["models"]:
        lines += [f"- {model['label']}: {note}" for note in model["notes"]]
        for it in of(model, "served", "mixed"):
            if it["held_back"]:
                lines.append(
                    f"- {model['label']}: {it['held_back']} of {it['held_back'] + it['answered']} "
                    "prompts were not sent while streams ran: too many were unanswered"
                )
        for text in of(model, "served", "text"):
            lines.append(f"- {model['label']} says, greedily: {text['prompt']!r} → {text['text']!r}")
    return "\n".join(lines).rstrip() + "\n"


def facts(model):
    """Rows that are no speed of tokens: whether answers were equal, and how long a start takes."""
    found = {side: of(model, side, "check") for side in SIDES}
    if any(found.values()):
        def equal(checks):
            return "–" if not checks else "yes" if all(c["equal"] for c in checks) else "NO"
        yield [model["label"], "answers equal", equal(found["served"]), "", equal(found["bare"]),
               "", "", ""]
    ready = [f"{f['median_seconds']:.3f} s" for f in of(model, "served", "ready")]
    # In one process, from the call: there is no exec to begin from.
    loaded = [f"{f['seconds']:.3f} s (load)" for f in of(model, "bare", "loaded")]
    if ready or loaded:
        yield [model["label"], "exec to ready", (ready or ["–"])[0], "", (loaded or ["–"])[0],
               "", "", ""]


def figures(model, results):
    """Every figure of a model in the order of the table, whichever side found it."""
    found = {}

    def add(side, name, title, unit, value, share=None):
        if value is None:
            return
        figure = found.setdefault(name, Figure(name, title, unit))
        figure.values[side] = value
        if share is not None and (side == "served" or figure.share is None):
            figure.share = share

    tokens, short = results["settings"]["tokens"], results["settings"]["prompt_tokens"]
    for side in SIDES:
        for it in of(model, side, "decode"):
            streams, rate = it["batch"], it.get("tokens_per_second")
            share = share_of_floor(model, streams, short + tokens / 2, rate, results)
            add(side, ("decode", streams), plural(streams), RATE, rate, share)
            if ("share", streams) in targets.of(model["label"]):
                title = plural(streams) + ", share of the floor"
                add(side, ("share", streams), title, SHARE, share)
        for it in of(model, side, "prompt"):
            title = f"prompt of {it['tokens']:,} to first token"
            add(side, ("prompt", it["tokens"]), title, TIME, it["median_ms"])
        for it in of(model, side, "long"):
            streams, positions, rate = it["streams"], it["positions"], it["tokens_per_second"]
            share = share_of_floor(model, streams, positions + tokens / 2, rate, results)
            title = f"{plural(streams)} behind {positions:,} positions"
            add(side, ("long", streams, positions), title, RATE, rate, share)
        for it in of(model, side, "mixed"):
            mixed_figures(side, it, add)
        for it in of(model, side, "structured"):
            streams, figure = it["streams"], it["figure"]
            title = {
                "constrained": f"{plural(streams)} under a schema, over as many without",
                "neighbours": f"{streams - 1} beside one under a schema, over beside one without",
            }[figure]
            add(side, ("structured", figure, streams), title, RATIO, it["median_of_ratios"])
    order = ["share", "decode", "prompt", "long", "mixed", "structured"]
    return sorted(found.values(), key=lambda it: (order.index(it.name[0]), it.name[1:]))


def mixed_figures(side, it, add):
    streams = it["streams"]
    arriving = f"while prompts of {it['arriving_tokens']:,} arrive every {it['every_ms']} ms"
    between = f"between tokens of {plural(streams)}"
    add(side, ("mixed", streams, "alone"), f"{between}, p50 without arrivals", TIME,
        it["alone"]["p50_ms"])
    for quantile in ("p50", "p99"):
        title = f"{between}, {quantile} {arriving}"
        add(side, ("mixed", streams, quantile), title, TIME, it["mixed"][quantile + "_ms"])
        title = f"first token of such a prompt, {quantile}"
        add(side, ("mixed", streams, "prompt", quantile), title, TIME,
            it["first_tokens"][quantile + "_ms"])
    add(side, ("mixed", streams), f"{between}, that p99 over p50 without", RATIO,
        it["p99_over_p50_alone"])


def cells(model, figure):
    target = targets.of(model["label"]).get(figure.name)
    number = {side: told(figure.values[side], figure.unit) if side in figure.values else "–"
              for side in SIDES}
    share = f"{figure.share:.0%}" if figure.share and figure.unit == RATE else ""
    wanted = ["", "", ""]
    if target:
        wanted = [told(target.must, figure.unit), told(target.aim, figure.unit),
                  reached(target, figure)]
    return [model["label"], figure.title, number["served"], share, number["bare"], *wanted]


def reached(target, figure):
    """Targets are of what a client sees."""
    value = figure.values.get("served")
    if value is None:
        return "not measured"
    mark = target.mark(value)
    return f"**SHORT** by {target.missing(value):.0%}" if mark == targets.SHORT else mark


def verdict(results):
    """What is short, and what has a target and no figure: nothing is missed by being silent."""
    count, short, unmeasured = 0, [], []
    for model in results["models"]:
        found = {figure.name: figure for figure in figures(model, results)}
        for name, target in targets.of(model["label"]).items():
            count += 1
            figure = found.get(name)
            value = figure.values.get("served") if figure else None
            if value is None:
                unmeasured.append(f"{model['label']} {' '.join(map(str, name))}")
            elif target.mark(value) == targets.SHORT:
                short.append(f"{model['label']}: {figure.title}")
    if not count:
        return ["No figure of these models has a target."]
    lines = [f"Must is reached by {count - len(short) - len(unmeasured)} of {count} figures."]
    if short:
        lines.append("Short: " + "; ".join(short) + ".")
    if unmeasured:
        lines.append("Not measured: " + "; ".join(unmeasured) + ".")
    return ["  \n".join(lines)]


def share_of_floor(model, streams, context, tokens_per_second, results):
    rate = floor_rate(results)
    if not rate or tokens_per_second is None:
        return None
    # Of experts that tokens choose evenly, those that at least one of them chooses.
    chosen = 1 - (1 - model.get("expert_share", 0)) ** streams
    weights = model["bytes_per_token"] + chosen * model.get("expert_bytes", 0)
    step_bytes = weights + streams * context * model["kv_bytes_per_token"]
    return step_bytes / rate * tokens_per_second / streams


def floor_rate(results):
    return max((found["median"] for found in results["bandwidth"]), default=None)


def of(model, side, what):
    """Findings of one side, and one kind."""
    return [it for it in model["findings"] if it["side"] == side and it["what"] == what]


def told(value, unit):
    if unit == RATE:
        return f"{value:,.0f}"
    if unit == SHARE:
        return f"{value:.0%}"
    return f"{value:.2f}" + (" ms" if unit == TIME else "")


def plural(streams):
    return f"{streams} stream" + ("s" if streams != 1 else "")


def tera(rate):
    return f"{rate / 1e12:.3f} TB/s" if rate else "not measured"


def row(found):
    return "| " + " | ".join(found) + " |"
