"""All pairs of 16-bit operands, compared with the processor's own arithmetic.

The combinational unit is reduced to gates and computed for 512 operations at once. The reference
in ``exhaustive.cpp`` uses none of this project's models.
"""

import ctypes
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
from tqdm import tqdm

from hw.arith.datapath import Datapath
from hw.catalogue import find
from sim.checks.exhaustive.bit_slices import compile_source, compile_unit

SOURCE = Path(__file__).with_name("exhaustive.cpp")
# Operations by unit, as exhaustive.cpp numbers them. A conversion is of FP32, whose upper and lower
# half are the two operands.
OPERATIONS = {
    "arith.float_add": {"a + b": 0, "a - b": 1},
    "arith.float_multiply": {"a * b": 2},
    "arith.float_compare": {"a : b": 3},
    "arith.float_max": {"max(a, b)": 4},
    "arith.float_min": {"min(a, b)": 5},
    "arith.float_convert": {"a b to": 6},
}
FORMATS = ("fp16", "bf16")
VALUES = 1 << 16
CHUNK = 512  # values of the first operand that a thread takes at a time: about 30 ms


@dataclasses.dataclass(frozen=True)
class Difference:
    """One wrong result, all as bits; a comparison's are less, equal, unordered from the lowest."""

    a: int
    b: int
    expected: int
    got: int
    operation: str = ""

    def __str__(self) -> str:
        return (
            f"{self.operation}, a 0x{self.a:04x}, b 0x{self.b:04x}: "
            f"expected 0x{self.expected:04x}, got 0x{self.got:04x}"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How many operations were compared, and the first difference found."""

    compared: int
    difference: Difference | None
    seconds: float


class Exhaustive:
    """A compiled unit of 16-bit operands with the reference beside it.

    unit
        In place of the generated one: a wrong one, for instance, with the same ports.
    multiplier
        One of :data:`hw.component.MULTIPLIERS`.
    """

    def __init__(
        self,
        name: str,
        format: str,
        flush: bool = False,
        unit: Datapath | None = None,
        multiplier: str = "columns",
    ):
        if unit is None:
            block = find(name)
            settings = [f"format={format}", f"flush_subnormals={flush}"]
            unit = cast(
                Datapath, block.create(block.parameters_class().replace_from_text(settings))
            )
        self.label = f"{name} {format}{', subnormals flushed' if flush else ''}"
        self._operations = OPERATIONS[name]
        self._bf16, self._flush = FORMATS.index(format), flush
        inputs = {"b": 0, "a": 16, "subtract": 32} if "b" in unit.operands else {"a": 0}
        outputs, offset = {}, 0
        for port in unit.results:
            outputs[port] = offset
            offset += len(getattr(unit, port))
        inputs = {port: inputs[port] for port in unit.operands}
        library = compile_unit(unit, inputs, outputs, multiplier)
        self._unit = ctypes.CDLL(str(library)).unit
        self._library = _library()

    def pairs(self, operation: str, firsts: np.ndarray) -> tuple[int, Difference | None]:
        """Compare each of `firsts` with every second operand, up to the first difference.

        Returns the number of operations compared, and the difference.
        """
        firsts = np.ascontiguousarray(firsts, np.uint16)
        found = np.zeros(5, np.uint16)
        which = (self._operations[operation], self._bf16, self._flush)
        unit = ctypes.cast(self._unit, ctypes.c_void_p)
        arrays = (firsts.ctypes.data, len(firsts), found.ctypes.data)
        compared = self._library.exhaustive_pairs(unit, *which, *arrays)
        different, a, b, expected, got = found.tolist()
        return compared, Difference(a, b, expected, got, operation) if different else None

    def run(
        self, firsts: np.ndarray | None = None, threads: int = 1, label: str | None = None
    ) -> Outcome:
        """Compare all operations of the unit, in `threads` threads, up to the first difference.

        firsts
            First operands, each of which meets every second one; all of them by default.
        label
            What to call the progress bar; none without.
        """
        firsts = np.arange(VALUES) if firsts is None else np.asarray(firsts)
        chunks = np.array_split(firsts, -(-len(firsts) // CHUNK))
        tasks = [(operation, chunk) for operation in self._operations for chunk in chunks]
        started, compared, first = time.monotonic(), 0, None
        # Python's lock is free while C++ runs.
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(self.pairs, *task) for task in tasks]
            bar = tqdm(futures, desc=label, unit="chunk", disable=label is None)
            try:
                for future in bar:
                    operations, first = future.result()
                    compared += operations
                    if first is not None:
                        break
            finally:  # also when interrupted
                pool.shutdown(cancel_futures=True)
        return Outcome(compared, first, time.monotonic() - started)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compile_source(SOURCE)))
    pointer, number, integer = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
    which = [integer, integer, integer]  # operation, whether BF16, whether subnormals are flushed
    library.exhaustive_pairs.argtypes = [pointer, *which, pointer, number, pointer]
    library.exhaustive_pairs.restype = number
    library.exhaustive_reference.argtypes = [*which, pointer, pointer, number, pointer]
    library.exhaustive_reference.restype = None
    library.exhaustive_portable_fp16.argtypes = [pointer, number, pointer]
    library.exhaustive_portable_fp16.restype = None
    return library


def reference(name: str, operation: str, format: str, a, b, flush: bool = False) -> np.ndarray:
    """The reference's results for pairs of bits."""
    a, b = np.ascontiguousarray(a, np.uint16), np.ascontiguousarray(b, np.uint16)
    results = np.zeros(len(a), np.uint16)
    which = (OPERATIONS[name][operation], FORMATS.index(format), flush)
    arrays = (a.ctypes.data, b.ctypes.data, len(a), results.ctypes.data)
    _library().exhaustive_reference(*which, *arrays)
    return results


def portable_fp16(values) -> np.ndarray:
    """The reference's rounding of float to FP16 where the processor has no instruction for it."""
    values = np.ascontiguousarray(values, np.float32)
    results = np.zeros(len(values), np.uint16)
    _library().exhaustive_portable_fp16(values.ctypes.data, len(values), results.ctypes.data)
    return results
