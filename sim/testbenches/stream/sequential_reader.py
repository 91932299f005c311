"""Testbench of :mod:`hw.stream.sequential_reader`; a transaction is a command."""

import numpy as np

from golden.stream.sequential_reader import addresses
from golden.trace import Trace
from hw.stream.sequential_reader import SequentialReaderParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.memory import memory_of
from sim.testbenches.strategies import mixture
from sim.testbenches.stream.beats import beats, pack, unpack

_ROWS = 256


class SequentialReaderTestbench:
    """Commands on a memory that holds the trace, or corner words and random ones."""

    def default_vectors(self, parameters: SequentialReaderParameters) -> int:
        return 64

    def stimulus(
        self, parameters: SequentialReaderParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        p = parameters
        rows = min(_ROWS, 1 << p.address_width)
        contents, notes = beats(trace, p.data_width, rows, seed)
        start, words = _commands(p, rows, vectors, np.random.default_rng(seed))
        return build(p, contents, start, words, notes)


testbench = SequentialReaderTestbench()


def _commands(p: SequentialReaderParameters, rows: int, vectors: int, rng: np.random.Generator):
    """Start addresses and numbers of words: none, few, any number, the longest command."""
    longest = min(p.longest, rows)
    kinds = {
        "none": (0.1, 0),
        "few": (0.45, rng.integers(1, min(longest, 6) + 1, vectors)),
        "any number": (0.45, rng.integers(0, min(longest, 40) + 1, vectors)),
    }
    words = mixture(rng, vectors, kinds)
    words[: vectors // 16] = longest
    start = rng.integers(0, rows, vectors)
    if 1 << p.address_width > rows:  # no command may reach beyond the memory's last row
        start = np.minimum(start, rows - words)
    words[-1:] = np.maximum(words[-1:], 1)
    start[-1:] = np.minimum(start[-1:], rows - 1)
    return start, words


def build(
    parameters: SequentialReaderParameters,
    contents: np.ndarray,
    start: np.ndarray,
    words: np.ndarray,
    notes: list[str],
) -> Stimulus:
    """The stimulus of commands on a memory of `contents`, ``uint32[rows, words of 32 bits]``."""
    p = parameters
    read, command, last = addresses(start, words, p.address_width)
    bits = unpack(contents[read], p.data_width)
    flags = last[:, None].astype(np.uint8)
    return Stimulus(
        inputs={"command": payload.pack(p.command_layout, {"address": start, "words": words})},
        outputs={"o": pack(np.concatenate([bits, flags], axis=1))},
        transaction_of={"o": command},
        transactions=len(start),
        cycles=p.cycles(words.tolist()),
        notes=notes,
        memories={"memory": memory_of(contents, written=False)},
    )
