"""What can be known of the bundle without a GPU: `python3 bench/gpu/test_bundle.py`."""

import argparse
import ctypes
import math
import pathlib
import re
import struct
import sys
import tempfile
import unittest
from dataclasses import replace
from unittest import mock

import bandwidth
import blocks
import faults
import gguf_file
import models
import run
import steps
import table
import targets
import vocabulary

TINY = replace(models.SHAPES["0.5b"], layers=1, vocabulary=1000)


class Weights(unittest.TestCase):
    def test_every_type_has_weights_near_three_hundredths(self):
        decoders = {"F32": f32, "F16": f16, "Q8_0": q8_0, "Q5_0": q5_0, "Q4_K": q4_k, "Q6_K": q6_k,
                    "MXFP4": mxfp4}
        for name, decode in decoders.items():
            size = blocks.TYPES[name][2]
            raw = blocks.pattern(name)
            values = [v for at in range(0, 400 * size, size) for v in decode(raw[at : at + size])]
            mean = sum(values) / len(values)
            deviation = (sum(v * v for v in values) / len(values)) ** 0.5
            self.assertLess(abs(mean), 0.005, name)
            self.assertTrue(0.02 < deviation < 0.04, (name, deviation))

    def test_types_fall_back_where_rows_are_not_whole_blocks(self):
        types = {}
        for tensor in models.tensors(models.SHAPES["0.5b"], "Q4_K_M"):
            types[tensor.name] = tensor.kind
        number = {name: ty[0] for name, ty in blocks.TYPES.items()}
        self.assertEqual(types["token_embd.weight"], number["Q8_0"])
        self.assertEqual(types["blk.0.attn_q.weight"], number["Q5_0"])
        self.assertEqual(types["blk.0.attn_v.weight"], number["Q8_0"])
        self.assertEqual(types["blk.0.ffn_down.weight"], number["Q6_K"])
        self.assertEqual(types["blk.4.ffn_down.weight"], number["Q4_K"])
        self.assertNotIn("output.weight", types)

    def test_no_two_rows_of_a_matrix_are_equal(self):
        """Tokens with the same weights have the same logits, and which of them is drawn is a
        matter of taste between two engines."""
        for shape in models.SHAPES.values():
            for kind in (kind for kind in models.TYPES if models.has(shape, kind)):
                # One layer has matrices of every size.
                for tensor in models.tensors(replace(shape, layers=1), kind):
                    if len(tensor.dims) == 2:
                        rows, period = tensor.dims[1], len(tensor.pattern)
                        row_bytes = tensor.nbytes // rows
                        starts = {row * row_bytes % period for row in range(rows)}
                        self.assertEqual(len(starts), rows, (shape.name, kind, tensor.name))

    def test_true_shapes_have_true_sizes(self):
        """Bytes that a token reads, as performance models of these shapes have them."""
        for shape, kind, gigabytes in (
            ("0.5b", "F16", 0.988), ("7b", "F16", 14.14), ("8b", "F16", 15.01)
        ):
            shape = models.SHAPES[shape]
            matrices = [t for t in models.tensors(shape, kind) if len(t.dims) == 2]
            total = sum(t.nbytes for t in matrices if shape.tied or t.name != "token_embd.weight")
            self.assertAlmostEqual(total / 1e9, gigabytes, delta=0.01)

    def test_gpt_oss_has_the_parameters_that_openai_names(self):
        """20.9 billion, of which a token uses 3.6 (model card, table 1): without the embedding's rows of others."""
        shape = models.SHAPES["gpt-oss-20b"]
        used, every = 0, 0
        for tensor in models.tensors(shape, "MXFP4_MOE"):
            count = math.prod(tensor.dims)
            share = shape.used / shape.experts if "_exps." in tensor.name else 1
            every += count
            used += count * share * (tensor.name != "token_embd.weight")
        self.assertAlmostEqual(every / 1e9, 20.91, delta=0.01)
        self.assertAlmostEqual(used / 1e9, 3.61, delta=0.01)

    def test_mxfp4_is_for_experts_alone(self):
        shape = replace(models.SHAPES["gpt-oss-20b"], layers=1, vocabulary=1000)
        number = {name: ty[0] for name, ty in blocks.TYPES.items()}
        for tensor in models.tensors(shape, "MXFP4_MOE"):
            if tensor.name.endswith("_exps.weight"):
                self.assertEqual(tensor.kind, number["MXFP4"], tensor.name)
            elif len(tensor.dims) == 1 or "ffn_gate_inp" in tensor.name or tensor.name.endswith(".bias"):
                self.assertEqual(tensor.kind, number["F32"], tensor.name)
            else:
                self.assertEqual(tensor.kind, number["Q8_0"], tensor.name)
        self.assertEqual([name for name, shape in models.SHAPES.items() if models.has(shape, "MXFP4_MOE")],
                         ["30b-a3b", "gpt-oss-20b"])

    def test_of_experts_a_token_reads_those_that_it_uses(self):
        shape = replace(models.SHAPES["30b-a3b"], layers=1, vocabulary=1000)
        with tempfile.TemporaryDirectory() as folder:
            facts = models.generate(shape, "F16", pathlib.Path(folder, "x.gguf"))
        self.assertEqual(facts["expert_bytes"], 128 * 3 * 768 * 2048 * 2)
        self.assertEqual(facts["expert_share"], 1 / 16)
        attention = 2 * 2048 * (2 * 4096 + 2 * 512)
        self.assertAlmostEqual(facts["bytes_per_token"], attention + 4 * 128 * 2048 + 2 * 2048 * 1000, delta=1e5)


class Files(unittest.TestCase):
    def test_what_is_written_is_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.gguf")
            made = models.generate(TINY, "Q8_0", path)
            self.assertEqual(made["file_bytes"], path.stat().st_size)
            self.assertEqual(made["kv_bytes_per_token"], 2 * 2 * 1 * 2 * 64)
            self.assertEqual(made["context_tokens"], 32_768)
            tensors = models.tensors(TINY, "Q8_0")
            raw = path.read_bytes()
            start = len(raw) - sum(gguf_file.aligned(t.nbytes) for t in tensors)
            for tensor in tensors:
                found = raw[start : start + tensor.nbytes]
                start += gguf_file.aligned(tensor.nbytes)
                repeated = tensor.pattern[tensor.start :] + tensor.pattern * (
                    1 + tensor.nbytes // len(tensor.pattern)
                )
                self.assertEqual(
                    found, repeated[: tensor.nbytes - tensor.zeros] + bytes(tensor.zeros),
                    tensor.name,
                )

    def test_kinds_of_tokens_are_signed(self):
        """llama.cpp loads no file where they are not."""
        raw = gguf_file.value([1, 3])
        self.assertEqual(struct.unpack("<IIQ2i", raw), (9, 5, 2, 1, 3))

    def test_a_vocabulary_has_its_size_and_no_token_twice(self):
        for size in (1000, 151_936):
            made = vocabulary.metadata(size)
            tokens = made["tokenizer.ggml.tokens"]
            self.assertEqual((len(tokens), len(set(tokens))), (size, size))
            self.assertEqual(len(made["tokenizer.ggml.token_type"]), size)
            # What the template writes is in the vocabulary, control tokens and characters.
            template = made["tokenizer.chat_template"]
            self.assertEqual(set(re.findall(r"<\|\w+\|>", template)), {"<|im_start|>", "<|im_end|>"})
            known = set(tokens)
            for merge in made["tokenizer.ggml.merges"]:
                left, right = merge.split(" ")
                self.assertTrue({left, right, left + right} <= known, merge)


class Bandwidth(unittest.TestCase):
    def test_a_kernel_that_reads_everything_once_is_believed(self):
        reading = bandwidth.Reading(HostDriver(), 1 << 16)
        self.assertEqual(reading.measure()["median"], reading.bytes / 1e-3)

    def test_a_kernel_that_cheats_is_not(self):
        for cheat in ("skips a row", "reads a row twice", "reads one place"):
            with self.assertRaises(RuntimeError, msg=cheat):
                bandwidth.Reading(HostDriver(cheat), 1 << 16).measure()

    def test_without_a_driver_there_is_a_sentence(self):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            with self.assertRaisesRegex(bandwidth.NoDriver, "no CUDA driver"):
                bandwidth.measure()

    def setUp(self):
        self.threads, bandwidth.BLOCK_THREADS = bandwidth.BLOCK_THREADS, 8

    def tearDown(self):
        bandwidth.BLOCK_THREADS = self.threads


class Programs(unittest.TestCase):
    def run_shell(self, text, seconds=20):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program")
            program.write_text("#!/bin/sh\n" + text)
            program.chmod(0o755)
            yield from steps.Steps(pathlib.Path(folder), seconds).findings("program", ["x"])

    def test_findings_come_one_by_one_and_a_failure_is_told(self):
        found = self.run_shell("echo '{\"what\": 1}'; echo words; exit 3")
        self.assertEqual(next(found), {"what": 1})
        with self.assertRaisesRegex(RuntimeError, "code 3"):
            next(found)

    def test_a_program_that_hangs_is_ended_with_what_it_started(self):
        found = self.run_shell("sleep 1000 & echo '{}'; wait", seconds=1)
        self.assertEqual(next(found), {})
        with self.assertRaisesRegex(steps.Cut, "time was used up"):
            next(found)

    def test_one_program_that_hangs_leaves_the_others_their_time(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program")
            program.write_text("#!/bin/sh\nsleep 1000")
            program.chmod(0o755)
            whole = steps.Steps(pathlib.Path(folder), 60)
            with self.assertRaisesRegex(steps.Cut, "after 1 s"):
                list(whole.findings("program", ["x"], 1))
            self.assertGreater(whole.left(), 50)


class Plans(unittest.TestCase):
    """Which programs a model is measured by."""

    def plans(self, *flags, context=131_072, kv_bytes=57_344, label="7b-F16"):
        with mock.patch("sys.argv", ["run.py", "speed", *flags]):
            arguments = run.parse()
        facts = {"context_tokens": context, "kv_bytes_per_token": kv_bytes}
        found = []
        for side, flags in run.programs(label, facts, arguments):
            named = dict(zip(flags[::2], flags[1::2]))
            found.append((side, named["--measure"], named))
        return found

    def test_long_contexts_have_a_worker_of_their_own(self):
        plans = self.plans()
        self.assertEqual(
            [plan[:2] for plan in plans],
            [("bare", "decode,prompt"), ("served", "decode,prompt"), ("served", "long,mixed"),
             ("served", "structured")],
        )
        self.assertEqual(plans[0][2]["--prompts"], "128,1024,8192")
        self.assertEqual(plans[2][2]["--long"], "1x4096,32x4096,1x32768")

    def test_only_what_is_asked_for_is_planned(self):
        for measure, expected in (
            ("mixed", [("served", "mixed")]),
            ("structured", [("served", "structured")]),
            ("prompt", [("bare", "prompt"), ("served", "prompt")]),
            ("prompt,long", [("bare", "prompt"), ("served", "prompt"), ("served", "long")]),
        ):
            found = [plan[:2] for plan in self.plans("--measure", measure)]
            self.assertEqual(found, expected)
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            self.plans("--measure", "speed")

    def test_what_a_model_has_no_positions_for_is_not_asked(self):
        plans = self.plans("--sides", "served", context=8192)
        self.assertEqual(plans[0][2]["--prompts"], "128,1024")
        self.assertEqual(plans[1][2]["--long"], "1x4096,32x4096")

    def test_what_is_given_replaces_what_is_planned(self):
        plans = self.plans("--flags", "--prompts 64 --long 2x100", "--sides", "served")
        self.assertEqual(plans[0][2]["--prompts"], "64")
        self.assertEqual([plan[2]["--long"] for plan in plans], ["2x100"] * 3)
        with mock.patch("sys.argv", ["run.py", "speed", "--flags", "--prompts 64"]):
            flags = next(run.programs("x", {"context_tokens": 9000}, run.parse()))[1]
        self.assertEqual(flags.count("--prompts"), 1)

    def test_long_contexts_have_room_in_memory(self):
        mib = int(self.plans(kv_bytes=131_072)[2][2]["--kv-cache"])
        self.assertGreater(mib << 20, 32 * (4096 + 256) * 131_072)


class Targets(unittest.TestCase):
    def test_more_is_better_for_rates_and_less_for_times(self):
        rate, time = targets.Target(100, 120), targets.Target(25, 20)
        for target, value, mark in (
            (rate, 99.9, targets.SHORT), (rate, 100, targets.MUST), (rate, 120, targets.AIM),
            (time, 25.1, targets.SHORT), (time, 25, targets.MUST), (time, 20, targets.AIM),
        ):
            self.assertEqual(target.mark(value), mark, (target, value))
        self.assertAlmostEqual(rate.missing(75), 0.25)
        self.assertAlmostEqual(time.missing(50), 1.0)

    def test_every_target_is_of_a_model_that_can_be_made_and_a_figure_that_is_measured(self):
        """A name that no finding has would be told as not measured for ever."""
        for label, wanted in targets.TARGETS.items():
            results = sample_results(label, whole_findings())
            found = {figure.name for figure in table.figures(results["models"][0], results)}
            self.assertLessEqual(set(wanted), found, label)
            shape, _, kind = label.rpartition("-")
            self.assertIn(shape, models.SHAPES)
            self.assertIn(kind, models.TYPES)


class Faults(unittest.TestCase):
    def settings(self, device):
        return argparse.Namespace(
            device=device, kinds=None, deaths=100, fault_chance=0.01, seconds=270, flags="--seed 7"
        )

    def test_a_cpu_is_not_asked_for_what_only_a_gpu_has(self):
        kinds = {}
        for device in ["cuda:0", "cpu"]:
            (_, _, flags), kills = faults.parts(self.settings(device))
            kinds[device] = flags[flags.index("--kinds") + 1]
            self.assertEqual(flags[flags.index("--minutes") + 1], "3.3")
            self.assertIn("--seed", flags)
            self.assertIn("--chase", kills[2])
        self.assertEqual(kinds, {"cuda:0": "device|nan|kill", "cpu": "any"})

    def test_two_reports_become_one(self):
        text = faults.section("Title", "# chaos\n\nwords\n\n## Violations\n\nNone.\n")
        self.assertEqual(text, "## Title\n\nwords\n\n### Violations\n\nNone.\n")


class Tables(unittest.TestCase):
    def lines(self, label, findings):
        """The rows of the table, and the verdict below it."""
        text = table.markdown(sample_results(label, findings))
        rows = [line[2:-2].split(" | ") for line in text.splitlines() if line[:2] == "| "]
        return {row[1]: row for row in rows}, text

    def test_a_share_is_of_the_bytes_that_a_step_must_read(self):
        rows, _ = self.lines("x", [decoded("bare", 8, 15_679.0)])
        # (1e9 + 8 * 256 * 1e4) bytes at 4e12 bytes/s are 255.12 us: 31,358 tok/s for eight.
        self.assertEqual(rows["8 streams"][:5], ["x", "8 streams", "–", "50%", "15,679"])

    def test_experts_that_nobody_chooses_are_not_read(self):
        model = {"bytes_per_token": 1e9, "expert_bytes": 8e9, "expert_share": 1 / 4, "kv_bytes_per_token": 0}
        results = {"bandwidth": [{"median": 1e12}]}
        # One stream reads 1 + 2 of 9 GB, two of them 1 + 8 * 7 / 16.
        self.assertAlmostEqual(table.share_of_floor(model, 1, 0, 100.0, results), 0.3)
        self.assertAlmostEqual(table.share_of_floor(model, 2, 0, 100.0, results), 0.225)

    def test_positions_behind_a_stream_are_bytes_too(self):
        rows, _ = self.lines("x", [lengthy(1, 100_000, 2000.0)])
        # 1e9 + 100,128 * 1e4 bytes at 4e12 bytes/s are 500.3 us.
        self.assertEqual(rows["1 stream behind 100,000 positions"][3], "100%")

    def test_the_table_says_what_failed_and_what_differs(self):
        rows, text = self.lines("x", [{"what": "check", "side": "bare", "equal": False}])
        self.assertEqual(rows["answers equal"][4], "NO")
        self.assertIn("- x: broke", text)
        self.assertIn("4.000 TB/s", text)
        self.assertIn("No figure of these models has a target.", text)

    def test_must_and_aim_stand_beside_a_figure_and_what_is_short_is_told(self):
        findings = [
            decoded("served", 256, 22_500.0), decoded("served", 128, 22_000.0),
            decoded("served", 64, 15_000.0), decoded("bare", 32, 9e9), decoded("served", 1, 200.0),
            {"what": "prompt", "side": "served", "tokens": 1024, "median_ms": 50.0},
        ]
        rows, text = self.lines("7b-F16", findings)
        for name, wanted in (
            ("256 streams", ["30,000", "36,000", "**SHORT** by 25%"]),
            ("128 streams", ["22,000", "26,000", "must"]),
            ("64 streams", ["13,000", "15,000", "aim"]),
            # Bare figures are no client's.
            ("32 streams", ["7,000", "8,000", "not measured"]),
            ("prompt of 1,024 to first token", ["25.00 ms", "20.00 ms", "**SHORT** by 100%"]),
        ):
            self.assertEqual(rows[name][5:], wanted, name)
        self.assertNotIn("not measured", rows["1 stream"])
        self.assertIn("Must is reached by 2 of 13 figures.", text)
        self.assertIn("Short: 7b-F16: 256 streams; 7b-F16: prompt of 1,024 to first token.", text)
        self.assertIn("Not measured: 7b-F16 decode 32; 7b-F16 prompt 8192; 7b-F16 long 1 4096", text)

    def test_a_share_can_be_a_target(self):
        rows, _ = self.lines("7b-Q8_0", [decoded("served", 1, 3_500.0)])
        row = rows["1 stream, share of the floor"]
        self.assertEqual(row[2:], ["88%", "", "–", "80%", "88%", "must"])

    def test_arrivals_are_told_by_both_sides_of_their_ratio(self):
        rows, text = self.lines("7b-F16", [mixed(5.0, 14.0)])
        self.assertIn("- 7b-F16: 2 of 42 prompts were not sent", text)
        name = "between tokens of 32 streams, that p99 over p50 without"
        self.assertEqual(rows[name][2:], ["2.80", "", "–", "3.00", "2.00", "must"])
        name = "between tokens of 32 streams, p99 while prompts of 1,024 arrive every 100 ms"
        self.assertEqual(rows[name][2], "14.00 ms")

    def test_a_schema_may_cost_a_tenth_and_its_neighbours_nothing(self):
        findings = [structured("constrained", 32, 0.95), structured("neighbours", 32, 0.95)]
        rows, _ = self.lines("7b-F16", findings)
        held = rows["32 streams under a schema, over as many without"]
        self.assertEqual((held[2], held[7]), ("0.95", "must"))
        beside = rows["31 beside one under a schema, over beside one without"]
        self.assertEqual((beside[2], beside[7]), ("0.95", "**SHORT** by 4%"))


def decoded(side, streams, rate):
    return {"what": "decode", "side": side, "batch": streams, "tokens_per_second": rate}


def lengthy(streams, positions, rate):
    return {"what": "long", "side": "served", "streams": streams, "positions": positions,
            "tokens_per_second": rate}


def mixed(alone, p99):
    quantiles = {"p50_ms": alone, "p99_ms": p99}
    return {"what": "mixed", "side": "served", "streams": 32, "arriving_tokens": 1024,
            "every_ms": 100, "alone": quantiles, "mixed": quantiles, "first_tokens": quantiles,
            "p99_over_p50_alone": p99 / alone, "answered": 40, "held_back": 2}


def whole_findings():
    """All that bench-gpu finds for a model when run.py asks for everything."""
    return [
        *[decoded("served", streams, 1.0) for streams in (1, 8, 32, 64, 128, 256)],
        *[{"what": "prompt", "side": "served", "tokens": tokens, "median_ms": 1.0}
          for tokens in run.PROMPTS],
        *[lengthy(streams, positions, 1.0) for streams, positions in run.LONG],
        mixed(1.0, 1.0),
        *[structured(figure, streams, 1.0)
          for figure, streams in (("constrained", 1), ("constrained", 32), ("neighbours", 32))],
    ]


def structured(figure, streams, ratio):
    return {"what": "structured", "side": "served", "figure": figure, "streams": streams,
            "with_a_schema": 100 * ratio, "without": 100, "median_of_ratios": ratio}


def sample_results(label, findings):
    return {
        "command": "run.py speed",
        "machine": {"device": "cuda:0", "gpu": "g", "cpu": "c", "date": "d", "commit": "e"},
        "settings": {"prompt_tokens": 128, "tokens": 256},
        "bandwidth": [{"median": 3.9e12, "best": 5e12}, {"median": 4e12, "best": 5e12}],
        "models": [{
            "label": label, "notes": ["broke"], "bytes_per_token": 10**9,
            "kv_bytes_per_token": 10**4, "findings": findings,
        }],
    }


class HostDriver:
    """The driver's memory and `read.ptx`'s loop, on the host."""

    processors = 2

    def __init__(self, cheat=None):
        self.memory, self.used, self.cheat = bytearray(1 << 20), 256, cheat

    def out(self, name, kind, *arguments):
        if name == "cuMemAlloc_v2":
            place = ctypes.c_uint64(self.used)
            self.used += arguments[0].value + 256
            return place
        return ctypes.c_float(1.0) if name == "cuEventElapsedTime" else kind()

    def call(self, name, *arguments):
        if name == "cuMemsetD32_v2":
            at, word, count = (argument.value for argument in arguments)
            self.memory[at : at + 4 * count] = struct.pack("<I", word) * count
        elif name == "cuMemcpyHtoD_v2":
            at, data, count = arguments
            self.memory[at.value : at.value + count.value] = bytes(data)
        elif name == "cuMemcpyDtoH_v2":
            data, at, count = arguments
            ctypes.memmove(data, bytes(self.memory[at.value : at.value + count.value]), count.value)
        elif name == "cuLaunchKernel":
            self.launch(arguments[1] * arguments[4], arguments[9])

    def launch(self, threads, parameters):
        start, vectors, out = (ctypes.c_uint64.from_address(at).value for at in parameters)
        for thread in range(threads):
            place = 0 if self.cheat == "reads one place" else thread
            rows = list(range(vectors // threads))
            if self.cheat == "skips a row":
                rows.pop(3)
            if self.cheat == "reads a row twice":
                rows[3] = rows[2]
            total = sum(
                word
                for row in rows
                for word in struct.unpack_from("<4I", self.memory, start + 16 * (row * threads + place))
            )
            struct.pack_into("<I", self.memory, out + 4 * thread, total & 0xFFFFFFFF)


def half(raw, at):
    return struct.unpack_from("<e", raw, at)[0]


def f32(raw):
    return struct.unpack_from("<f", raw)


def f16(raw):
    return [half(raw, 0)]


def q8_0(raw):
    return [half(raw, 0) * v for v in struct.unpack_from("<32b", raw, 2)]


def q5_0(raw):
    high = struct.unpack_from("<I", raw, 2)[0]
    codes = [b & 15 for b in raw[6:22]] + [b >> 4 for b in raw[6:22]]
    return [half(raw, 0) * ((code | (high >> i & 1) << 4) - 16) for i, code in enumerate(codes)]


def mxfp4(raw):
    """The standard's E2M1: a sign, two bits of exponent, one of fraction."""
    sizes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = [b & 15 for b in raw[1:17]] + [b >> 4 for b in raw[1:17]]
    return [(-1 if code & 8 else 1) * sizes[code & 7] * 2.0 ** (raw[0] - 127) for code in codes]


def q4_k(raw):
    d, dmin, s = half(raw, 0), half(raw, 2), raw[4:16]
    values = []
    for j in range(8):
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4
            least = (s[j + 4] >> 4) | (s[j] >> 6) << 4
        codes = raw[16 + j // 2 * 32 : 48 + j // 2 * 32]
        values += [d * scale * (b >> 4 if j % 2 else b & 15) - dmin * least for b in codes]
    return values


def q6_k(raw):
    d, scales = half(raw, 208), struct.unpack_from("<16b", raw, 192)
    values = []
    for i in range(256):
        chunk, j = divmod(i, 128)
        low = raw[64 * chunk + j % 64]
        low = low >> 4 if j >= 64 else low & 15
        high = raw[128 + 32 * chunk + j % 32] >> j // 32 * 2 & 3
        values.append(d * scales[i // 16] * ((low | high << 4) - 32))
    return values


if __name__ == "__main__":
    sys.exit(unittest.main())
