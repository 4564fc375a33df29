"""What can be known of the bundle without a GPU: `python3 bench/gpu/test_bundle.py`."""

import argparse
import ctypes
import pathlib
import struct
import sys
import tempfile
import unittest
from dataclasses import replace

import bandwidth
import blocks
import faults
import gguf_file
import models
import steps
import table
import vocabulary

TINY = replace(models.SHAPES["0.5b"], layers=1, vocabulary=1000)


class Weights(unittest.TestCase):
    def test_every_type_has_weights_near_three_hundredths(self):
        decoders = {"F16": f16, "Q8_0": q8_0, "Q5_0": q5_0, "Q4_K": q4_k, "Q6_K": q6_k}
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

    def test_true_shapes_have_true_sizes(self):
        """Bytes that a token reads, as performance models of these shapes have them."""
        for shape, kind, gigabytes in (("0.5b", "F16", 0.988), ("7b", "F16", 14.14)):
            shape = models.SHAPES[shape]
            matrices = [t for t in models.tensors(shape, kind) if len(t.dims) == 2]
            total = sum(t.nbytes for t in matrices if shape.tied or t.name != "token_embd.weight")
            self.assertAlmostEqual(total / 1e9, gigabytes, delta=0.01)


class Files(unittest.TestCase):
    def test_what_is_written_is_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.gguf")
            made = models.generate(TINY, "Q8_0", path)
            self.assertEqual(made["file_bytes"], path.stat().st_size)
            self.assertEqual(made["kv_bytes_per_token"], 2 * 2 * 1 * 2 * 64)
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

    def test_a_vocabulary_has_its_size_and_no_token_twice(self):
        for size in (1000, 151_936):
            made = vocabulary.metadata(size)
            tokens = made["tokenizer.ggml.tokens"]
            self.assertEqual((len(tokens), len(set(tokens))), (size, size))
            self.assertEqual(len(made["tokenizer.ggml.token_type"]), size)
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
    def test_a_share_is_of_the_bytes_that_a_step_must_read(self):
        results = sample_results()
        cell = table.decode(results["models"][0], "bare", 8, results)
        # (1e9 + 8 * 256 * 1e4) bytes at 4e12 bytes/s are 255.12 us: 31,358 tok/s for eight.
        self.assertEqual(cell, "15,679 (50%)")
        self.assertEqual(table.decode(results["models"][0], "served", 8, results), "–")

    def test_the_table_says_what_failed_and_what_differs(self):
        text = table.markdown(sample_results())
        self.assertIn("| x | bare | NO |", text)
        self.assertIn("- x: broke", text)
        self.assertIn("4.000 TB/s", text)


def sample_results():
    return {
        "command": "run.py speed",
        "machine": {"device": "cuda:0", "gpu": "g", "cpu": "c", "date": "d", "commit": "e"},
        "settings": {"prompt_tokens": 128, "tokens": 256},
        "bandwidth": [{"median": 3.9e12, "best": 5e12}, {"median": 4e12, "best": 5e12}],
        "models": [{
            "label": "x", "failed": "broke", "bytes_per_token": 10**9, "kv_bytes_per_token": 10**4,
            "findings": [
                {"what": "check", "side": "bare", "equal": False},
                {"what": "decode", "side": "bare", "batch": 8, "tokens_per_second": 15_679.0},
            ],
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


def f16(raw):
    return [half(raw, 0)]


def q8_0(raw):
    return [half(raw, 0) * v for v in struct.unpack_from("<32b", raw, 2)]


def q5_0(raw):
    high = struct.unpack_from("<I", raw, 2)[0]
    codes = [b & 15 for b in raw[6:22]] + [b >> 4 for b in raw[6:22]]
    return [half(raw, 0) * ((code | (high >> i & 1) << 4) - 16) for i, code in enumerate(codes)]


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
