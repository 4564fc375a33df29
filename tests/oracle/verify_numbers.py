"""Rows of `verify.py` that compare ids and logits of a file: with llama.cpp's on the CPU, and with ours computed another way."""

import contextlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import architectures
import chat_templates
import dequantized
import greedy
import llama_cpp
import ours
import perplexity
import prose
import strings
import tokenizer_ids
from verify_file import ModelFile
from verify_table import Row

# Where a page of keys and values, a block of a recurrent state, or llama.cpp's batch ends.
BORDERS = (32, 64, 128, 256, 512)
# Prompt tokens of a step: more than a history has, and a number that no border divides.
WHOLE, IN_CHUNKS = 2048, 24
# At the end of a history, where single tokens are compared with a prompt.
STEPWISE = 32
CLOSE_ONES = 40
# Where llama.cpp rounds activations as it does and no copy of the weights in F32 can be made (verify_file.py).
COARSER = 10
# Of tokens of a model with experts, which go to another expert where two are about as likely.
SHARE_OF_EXPERTS = 0.01


@dataclass(frozen=True)
class Job:
    """What is compared: `theirs` is the file as llama.cpp reads it, `path` the one that we read."""

    theirs: ModelFile
    path: Path
    programs: Path
    devices: list
    threads: int

    def flags(self, device, context):
        return ["--device", device, "--threads", self.threads, "--context", context]

    @property
    def orcd_logits(self):
        return self.programs / "orcd-logits"

    def reference(self, context, path=None, **settings):
        return llama_cpp.Model(path or self.theirs.path, n_ctx=context, threads=self.threads, **settings)


# --- text ---


def token_ids(job):
    """Ids and text of the strings of the oracles, with the control tokens of the file in them."""
    program = job.programs / "orcd-tokenize"
    plain = strings.plain()
    texts = plain + strings.with_specials(job.theirs.specials[:CLOSE_ONES] or strings.SPECIALS)
    with llama_cpp.Model(job.theirs.path, vocab_only=True) as reference:
        found = list(tokenizer_ids.compare_ids(job.path, program, reference, texts, ""))
        yield Row.of_differences("token ids", "", f"{len(texts)} strings, as a prompt and as a part of one", found)
        histories = tokenizer_ids.random_ids(reference, 400)
        found = list(tokenizer_ids.compare_decoded(job.path, program, reference, histories))
        yield Row.of_differences("text of ids", "", f"{len(histories)} lists of random tokens, at once and one by one", found)


# --- logits ---


def logits(job):
    """Logits of a history at positions around borders, as one prompt."""
    history, positions = history_of(job)
    with exact_weights(job) as (path, tolerance, how):
        with job.reference(context_of(job), path, exact_kv=True) as reference:
            theirs = reference.rows(history, positions)
    bound = tolerance * max(job.theirs.layers / architectures.LAYERS, 1)
    for device in job.devices:
        [mine] = ours.logits(
            job.orcd_logits, job.path, [{"tokens": history, "positions": positions}], theirs.shape[1],
            *job.flags(device, context_of(job)), "--chunk", WHOLE,
        )  # fmt: skip
        errors = [architectures.normalised_error(a[None], b[None]) for a, b in zip(mine, theirs, strict=True)]
        worst, median = max(errors), float(np.median(errors))
        # A row that goes to another expert in one layer differs, and so do rows that attend to it.
        decides = median if job.theirs.has_experts else worst
        at = positions[errors.index(worst)]
        yield Row(
            "logits", device, f"{len(positions)} positions of {len(history)} tokens{how}: normalised error",
            f"{worst:.1e} (position {at}), median {median:.1e}",
            f"{bound:.1e}" + (", median" if job.theirs.has_experts else ""), decides <= bound,
        )  # fmt: skip


def bits(job):
    """Logits of the same tokens in other chunks, beside others, and token by token."""
    history, positions = history_of(job)
    start = max(len(history) - STEPWISE, 1)
    positions = sorted({*positions, *range(start, len(history))})
    with llama_cpp.Model(job.theirs.path, vocab_only=True) as reference:
        n_vocab = reference.n_vocab
    whole = {"tokens": history, "positions": positions}
    # Others are shorter and longer than a chunk, and end at other steps.
    others = [history[n:] for n in (1, len(history) // 3, len(history) - 7)]
    beside = [{"tokens": it, "positions": [len(it) - 1]} for it in others]
    stepwise = {"tokens": history, "positions": list(range(start, len(history)))}

    def run(device, requests, *flags):
        flags = [*job.flags(device, context_of(job)), *flags]
        return ours.logits(job.orcd_logits, job.path, requests, n_vocab, *flags)[0].view(np.uint32)

    for device in job.devices:
        expected = run(device, [whole], "--chunk", WHOLE)
        tail = [positions.index(position) for position in stepwise["positions"]]
        cases = [
            ("chunk", f"chunks of {IN_CHUNKS} tokens", expected, run(device, [whole], "--chunk", IN_CHUNKS)),
            ("batch", "beside three others", expected, run(device, [whole, *beside], "--chunk", WHOLE, "--batch", 4)),
            ("decode", f"the last {len(tail)} one by one", expected[tail], run(device, [stepwise], "--chunk", IN_CHUNKS)),
        ]
        for name, way, one, other in cases:
            wrong = int((one != other).any(axis=1).sum())
            compared = f"{len(one)} rows of logits: {way}, and as one prompt alone"
            yield Row(f"bits: {name}", device, compared, f"{wrong} rows differ", "0", wrong == 0)


# --- tokens ---


def greedy_tokens(job):
    """The most likely token at each step of histories that llama.cpp writes."""
    context = min(job.theirs.context, 512)
    steps = min(32, context // 4)
    prompts = prompts_of(job.theirs, 16 if job.theirs.is_small else 8)
    with job.reference(context) as reference:
        ids = [reference.tokenize(prompt, whole=True)[: context - steps] for prompt in prompts]
        runs = [greedy.generate(reference, prompt, it, steps) for prompt, it in zip(prompts, ids, strict=True)]
    with job.reference(context, exact_kv=True) as reference:
        sure = [greedy.confirm(reference, run) for run in runs]
    total = len(runs) * steps
    allowed = int(total * SHARE_OF_EXPERTS) if job.theirs.has_experts else 0
    for device in job.devices:
        flags = job.flags(device, context)
        found = greedy.differences(job.orcd_logits, job.path, flags, runs, sure, greedy.CLEAR_MARGIN)
        yield Row(
            "greedy tokens", device, f"{len(runs)} prompts, {total} tokens; margins in brackets",
            f"{greedy.told(found.counted)} differ where llama.cpp is sure by more than {greedy.CLEAR_MARGIN}, "
            f"{greedy.told(found.one_way)} where it is sure one way only, {greedy.told(found.close)} where it is not",
            f"{allowed} where it is sure", len(found.counted) <= allowed,
        )  # fmt: skip


def prompts_of(file, count):
    """Half of them questions in the model's own format, if it has one, half texts to go on with."""
    questions = greedy.QUESTIONS[: count // 2]
    if file.template:
        questions = [in_format(file, question) for question in questions]
    return questions + greedy.RAW[: count - len(questions)]


def in_format(file, question):
    body = {"messages": [{"role": "user", "content": question}], "tools": []}
    case = {"template": file.template, "begin": file.begin, "end": file.end, "body": json.dumps(body)}
    prompt = chat_templates.made_by_transformers(case).get("prompt", question)
    # A tokenizer puts its first token in front of it.
    return prompt.removeprefix(file.begin)


def text_perplexity(job):
    """Perplexity of prose, in windows that each begin with the model's first token if it has one."""
    windows, length = (8, 512) if job.theirs.is_small else (4, 256)
    length = min(length, job.theirs.context)
    with job.reference(length) as reference:
        first = reference.tokenize("", whole=True)[:1]
        ids, own = reference.tokenize(prose.text(characters=windows * length * 6)), length - len(first)
        texts = [first + ids[i * own : (i + 1) * own] for i in range(windows)]
        theirs = [perplexity.nll_of(reference, text) for text in texts]
    requests = [{"tokens": text, "positions": list(range(len(text) - 1))} for text in texts]
    expected = math.exp(np.concatenate(theirs).mean())
    for device in job.devices:
        flags = [*job.flags(device, length), "--batch", windows]
        mine = [answer["nll"] for answer in ours.next_tokens(job.orcd_logits, job.path, requests, *flags)]
        found = math.exp(np.concatenate(mine).mean())
        difference = found / expected - 1
        yield Row(
            "perplexity", device, f"{sum(map(len, mine))} tokens of prose: ours and llama.cpp's",
            f"{found:.4f}, {expected:.4f}: {difference:+.3%}", f"{perplexity.TOLERANCE:.1%}",
            abs(difference) <= perplexity.TOLERANCE,
        )  # fmt: skip


# --- what they share ---


def context_of(job):
    """As long as a history, and past a window if there is one of a common size."""
    length, window = (600 if job.theirs.is_small else 320), job.theirs.window
    wanted = max(length, window + 40) if window <= 1024 else length
    return min(wanted, job.theirs.context)


def history_of(job):
    """Ids of a text, and positions in them."""
    with llama_cpp.Model(job.theirs.path, vocab_only=True) as reference:
        length = context_of(job)
        ids = reference.tokenize(prose.text(characters=12 * length), whole=True)[:length]
    window = job.theirs.window
    borders = [border + offset for border in (*BORDERS, window) for offset in (-1, 0, 1)]
    # The first has no effect of rotation or attention.
    positions = {1, 2, 3, *borders, len(ids) - 1}
    return ids, sorted(position for position in positions if 1 <= position < len(ids))


@contextlib.contextmanager
def exact_weights(job):
    """The file that llama.cpp reads for logits, the tolerance of three layers, and a note."""
    file = job.theirs
    types = [architectures.TOLERANCE.get(kind, architectures.TOLERANCE_QUANTIZED) for kind in file.matrix_types]
    tolerance = max(types)
    if not file.needs_exact_weights:
        yield file.path, tolerance, ""
    elif not file.can_be_f32:
        yield file.path, COARSER * tolerance, ", llama.cpp's own rounding included"
    else:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "f32.gguf"
            dequantized.write(file.path, plain)
            yield plain, tolerance, ", llama.cpp with the weights as F32"
