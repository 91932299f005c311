"""`python -m sim exhaustive`: all pairs of FP16 operands against arithmetic of the processor.

The combinational unit is compiled by Verilator together with ``exhaustive.cpp``, which holds the
reference, written without any of this project's models.
"""

import ctypes
import dataclasses
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from hw.catalogue import Block, find
from hw.export import export
from hw.parameters import ParameterError, require
from sim.arguments import count, seed
from sim.design import Design
from sim.exhaustive_library import compile_library

SOURCE = Path(__file__).with_name("exhaustive.cpp")
OPERATIONS = {
    "arith.float_add": "#define ADDITION 1\n",
    "arith.float_multiply": "#define ADDITION 0\n",
}
SETTINGS = ["OPT_FAST=-O3", "OPT_SLOW=-O1", "OPT_GLOBAL=-O2"]
VALUES = 1 << 16
CHUNK = 32  # values of the first operand that a thread takes at a time: about 0.1 s


@dataclasses.dataclass(frozen=True)
class Difference:
    """One wrong result, all as bits."""

    a: int
    b: int
    subtract: int
    expected: int
    got: int

    def __str__(self) -> str:
        subtract = ", subtract" if self.subtract else ""
        return (
            f"a 0x{self.a:04x}, b 0x{self.b:04x}{subtract}: "
            f"expected 0x{self.expected:04x}, got 0x{self.got:04x}"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How many operations were compared, and the first difference found."""

    compared: int
    difference: Difference | None
    seconds: float


class Exhaustive:
    """A compiled FP16 unit with the reference beside it.

    verilog
        Text to use in place of the generated one: a mutant's, for one.
    """

    def __init__(self, block: Block, verilog: str | None = None):
        parameters = block.parameters_class(format="fp16")
        exported = export(block, parameters)
        text = exported.verilog if verilog is None else verilog
        design = Design(block, parameters, exported.name, text, {}, {}, clocked=False)
        sources = {SOURCE.name: SOURCE.read_text(), "operation.h": OPERATIONS[block.name]}
        library = compile_library(design, "exhaustive", sources, SETTINGS)
        self.name = block.name
        self._library = ctypes.CDLL(str(library))
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        pairs, reference = self._library.exhaustive_pairs, self._library.exhaustive_reference
        pairs.argtypes, pairs.restype = [pointer, number, pointer, number, pointer], number
        integer = ctypes.c_int
        reference.argtypes = [pointer, pointer, number, integer, integer, pointer]
        reference.restype = None

    def pairs(self, a: np.ndarray, b: np.ndarray) -> tuple[int, Difference | None]:
        """Compare every `a` with every `b` up to the first difference; operations compared."""
        a, b = np.ascontiguousarray(a, np.uint16), np.ascontiguousarray(b, np.uint16)
        found = np.zeros(6, np.uint16)
        arrays = (a.ctypes.data, len(a), b.ctypes.data, len(b), found.ctypes.data)
        compared = self._library.exhaustive_pairs(*arrays)
        return compared, Difference(*found[1:].tolist()) if found[0] else None

    def reference(self, a, b, *, subtract: bool = False, portably: bool = False) -> np.ndarray:
        """The reference's results; `portably` without the processor's conversion instruction."""
        a, b = np.ascontiguousarray(a, np.uint16), np.ascontiguousarray(b, np.uint16)
        results = np.zeros(len(a), np.uint16)
        self._library.exhaustive_reference(
            a.ctypes.data, b.ctypes.data, len(a), subtract, portably, results.ctypes.data
        )
        return results

    def run(
        self,
        tasks: Iterable[tuple[np.ndarray, np.ndarray]],
        threads: int,
        label: str | None = None,
    ) -> Outcome:
        """Compare the pairs of all tasks, in `threads` threads, up to the first difference.

        label
            What to call the progress bar; none without.
        """
        started, compared, first = time.monotonic(), 0, None
        tasks = list(tasks)
        # Each task has a model of its own, and Python's lock is free while C++ runs.
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


def exhaust(
    block: Block, first: int = 0, number: int = VALUES, threads: int | None = None
) -> Outcome:
    """`number` values of the first operand from bits `first` on, with every second operand.

    A unit with a subtract input plays each pair twice.
    """
    require(0 <= first < VALUES, f"--first must be below {VALUES}", first)
    most = VALUES - first
    require(1 <= number <= most, f"--count must be between 1 and {most}", number)
    every = np.arange(VALUES)
    starts = range(first, first + number, CHUNK)
    tasks = [(every[n : min(n + CHUNK, first + number)], every) for n in starts]
    return Exhaustive(block).run(tasks, threads or os.cpu_count() or 1, block.name)


def exhaustive_command(arguments) -> int:
    names = list(OPERATIONS) if arguments.block == "all" else [arguments.block]
    passed = True
    for name in names:
        if name not in OPERATIONS:
            raise ParameterError(f"block must be all or one of {', '.join(OPERATIONS)}")
        rest = max(1, VALUES - arguments.first)  # a first operand too large is refused below
        number = rest if arguments.count is None else arguments.count
        outcome = exhaust(find(name), arguments.first, number, arguments.threads)
        print(describe(name, outcome), flush=True)
        passed &= outcome.difference is None
    return 0 if passed else 1


def describe(name: str, outcome: Outcome) -> str:
    rate = outcome.compared / max(outcome.seconds, 1e-9)
    verdict = "all equal" if outcome.difference is None else f"FAIL: {outcome.difference}"
    return (
        f"{name}: {outcome.compared} operations compared in {outcome.seconds:.1f} s "
        f"({rate:.2g} a second), {verdict}"
    )


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "exhaustive",
        help="all pairs of FP16 operands against the processor's arithmetic",
        description=(
            "Compare all 2^32 pairs of FP16 operands, through the combinational unit compiled by "
            "Verilator, with the same operation in float, rounded to FP16 by the processor. Takes "
            "minutes. Exits 1 at the first difference, and shows it."
        ),
    )
    command.add_argument("block", nargs="?", default="all", help=f"{', '.join(OPERATIONS)} or all")
    command.add_argument(
        "--first", type=seed, default=0, metavar="A", help="first operand's bits to begin with"
    )
    command.add_argument(
        "--count", type=count, metavar="N", help="how many first operands (default: all)"
    )
    command.add_argument("--threads", type=count, help="default: one for each processor core")
    command.set_defaults(run=exhaustive_command)
