"""How fast this card reads its memory in this run: the driver through ctypes, and `read.ptx`.

Correct before fast: the sums of a buffer whose content is known are checked first, so a kernel
that skips a part, reads one twice, or sends every thread to the same place gets no figure.
"""

import ctypes
import pathlib
import random
import struct

BUFFER_BYTES = 4 << 30
BLOCK_THREADS = 512
BLOCKS_PER_PROCESSOR = 4
VECTORS_IN_FLIGHT = 8
ROUNDS = 21
MULTIPROCESSOR_COUNT = 16
PTX = pathlib.Path(__file__).with_name("read.ptx")


class NoDriver(Exception):
    """There is nothing to measure here."""


class Driver:
    """One context, and every call checked."""

    def __init__(self, ordinal):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise NoDriver("there is no CUDA driver here (libcuda.so.1)") from None
        self.call("cuInit", 0)
        device = self.out("cuDeviceGet", ctypes.c_int, ordinal)
        self.context = self.out("cuDevicePrimaryCtxRetain", ctypes.c_void_p, device)
        self.call("cuCtxSetCurrent", self.context)
        self.device = device
        self.processors = self.out(
            "cuDeviceGetAttribute", ctypes.c_int, MULTIPROCESSOR_COUNT, device
        ).value

    def call(self, name, *arguments):
        error = getattr(self.library, name)(*arguments)
        if error:
            raise RuntimeError(f"{name} failed with CUDA error {error}")

    def out(self, name, kind, *arguments):
        """What the call writes to its first argument."""
        result = kind()
        self.call(name, ctypes.byref(result), *arguments)
        return result

    def release(self):
        self.call("cuDevicePrimaryCtxRelease_v2", self.device)


def measure(ordinal=0, buffer_bytes=BUFFER_BYTES):
    """Bytes per second, of the median and of the best round."""
    driver = Driver(ordinal)
    try:
        return Reading(driver, buffer_bytes).measure()
    finally:
        driver.release()


class Reading:
    def __init__(self, driver, buffer_bytes):
        self.driver = driver
        module = driver.out("cuModuleLoadData", ctypes.c_void_p, PTX.read_bytes() + b"\0")
        self.kernel = driver.out("cuModuleGetFunction", ctypes.c_void_p, module, b"read")
        self.blocks = driver.processors * BLOCKS_PER_PROCESSOR
        self.threads = self.blocks * BLOCK_THREADS
        step = self.threads * VECTORS_IN_FLIGHT * 16
        self.steps = buffer_bytes // step
        self.bytes = self.steps * step
        self.start = self.allocate(self.bytes)
        self.out = self.allocate(self.threads * 4)

    def allocate(self, count):
        return self.driver.out("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(count))

    def launch(self):
        values = [self.start, ctypes.c_uint64(self.bytes // 16), self.out]
        addresses = [ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]
        self.driver.call(
            "cuLaunchKernel", self.kernel, self.blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, None,
            (ctypes.c_void_p * len(values))(*addresses), None,
        )

    def check(self):
        """Each round of loads meets another word, so every thread's sum tells whether all were
        read once; and one vector differs, which exactly one thread may notice."""
        numbers = random.Random(1)
        row_bytes = self.threads * 16
        total = 0
        for row in range(self.steps * VECTORS_IN_FLIGHT):
            word = numbers.getrandbits(32)
            total += 4 * word
            self.driver.call(
                "cuMemsetD32_v2", ctypes.c_uint64(self.start.value + row * row_bytes),
                ctypes.c_uint(word), ctypes.c_size_t(row_bytes // 4),
            )
        # The last thread's vector of the last row.
        odd = (1, 2, 3, 4)
        self.driver.call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(self.start.value + self.bytes - 16),
            struct.pack("<4I", *odd), ctypes.c_size_t(16),
        )
        expected = [total & 0xFFFFFFFF] * self.threads
        expected[-1] = (total - 4 * word + sum(odd)) & 0xFFFFFFFF
        if self.words() != expected:
            raise RuntimeError("the bandwidth kernel did not read every byte once")

    def words(self):
        words = (ctypes.c_uint32 * self.threads)(*([0xDEADBEEF] * self.threads))
        self.driver.call("cuMemcpyHtoD_v2", self.out, words, ctypes.c_size_t(4 * self.threads))
        self.launch()
        self.driver.call("cuMemcpyDtoH_v2", words, self.out, ctypes.c_size_t(4 * self.threads))
        return list(words)

    def measure(self):
        self.check()
        events = [self.driver.out("cuEventCreate", ctypes.c_void_p, 0) for _ in range(2)]
        times = []
        for _ in range(ROUNDS):
            self.driver.call("cuEventRecord", events[0], None)
            self.launch()
            self.driver.call("cuEventRecord", events[1], None)
            self.driver.call("cuEventSynchronize", events[1])
            elapsed = self.driver.out("cuEventElapsedTime", ctypes.c_float, *events)
            times.append(elapsed.value / 1e3)
        times.sort()
        return {"median": self.bytes / times[len(times) // 2], "best": self.bytes / times[0]}


if __name__ == "__main__":
    for name, rate in measure().items():
        print(f"{name}: {rate / 1e12:.3f} TB/s")
