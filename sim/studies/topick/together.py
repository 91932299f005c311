"""Sequences of several texts as contexts of Token-Picker's core: one after another, and at once."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from golden.studies.study import Table
from golden.trace import Trace
from sim.studies.topick.rtl import Core, Traces, core

COUNTS = 2, 3, 6
"""Texts at once, of those that there are."""


@dataclasses.dataclass(frozen=True)
class Together:
    """A token of each of several texts, of one layer after another.

    sources
        Model, layers and text of each trace.
    tokens
        Number of tokens of each sequence, the new one included.
    alone
        By layer, cycles of each text's command alone.
    together
        By layer, cycles of all texts' commands, offered at once.
    chunks
        By layer, chunks that each lane's memory reads for all of them.
    """

    sources: list[str]
    pruning: bool
    tokens: int
    threshold: float
    memory: int
    alone: list[list[int]]
    together: list[int]
    chunks: list[list[int]]

    @property
    def texts(self) -> int:
        return len(self.sources)

    @property
    def in_turn(self) -> int:
        """Cycles of all commands one after another."""
        return sum(map(sum, self.alone))

    @property
    def cycles(self) -> int:
        """Cycles of all commands where a layer's overlap."""
        return sum(self.together)

    @property
    def use(self) -> float:
        """Chunks read in each cycle of a lane."""
        return sum(map(sum, self.chunks)) / self.cycles / len(self.chunks[0])


def measure_together(
    first: Traces,
    beside: Sequence[Trace],
    tokens: Sequence[int],
    threshold: float,
    memory: int,
) -> Iterator[Together]:
    """The first trace's text and those `beside` it, on a core that prunes and on one that does not,
    a lane a head; each number of texts in :data:`COUNTS` that there are traces for."""
    texts = [first, *(Traces(trace, None) for trace in beside)]
    for pruning in (False, True):
        sizes: dict[str, Any] = {"pruning": pruning, "contexts": len(texts)}
        compiled = Core(core(first.trace, 1, max(tokens), **sizes))
        for n in tokens:
            jobs = [text.jobs(n, doubled=False) for text in texts]
            alone = [
                [compiled.together([job], threshold, memory)[0] for job in of_layer]
                for of_layer in zip(*jobs, strict=True)
            ]
            for count in sorted({*COUNTS, len(texts)}):
                if 1 < count <= len(texts):
                    ran = [
                        compiled.together(of_layer[:count], threshold, memory)
                        for of_layer in zip(*jobs, strict=True)
                    ]
                    yield Together(
                        [text.source(n) for text in texts[:count]],
                        pruning,
                        n,
                        threshold,
                        memory,
                        [cycles[:count] for cycles in alone],
                        [cycles for cycles, _ in ran],
                        [chunks for _, chunks in ran],
                    )


def read_together(path: Path) -> list[Together]:
    """Measurements of a result's file."""
    return [Together(**row) for row in json.loads(path.read_text(encoding="utf-8"))["together"]]


def lines(together: Sequence[Together]) -> str:
    """JSON with a measurement in each line."""
    return "[\n" + ",\n".join(json.dumps(dataclasses.asdict(made)) for made in together) + "\n]"


def pairs(together: Sequence[Together]) -> list[tuple[Together, Together]]:
    """Of the core without pruning, and of the core, of the same texts and tokens."""
    every = {(m.pruning, m.tokens, m.texts): m for m in together}
    return [
        (every[False, m.tokens, m.texts], m)
        for m in sorted(together, key=lambda m: (m.tokens, m.texts))
        if m.pruning
    ]


def together_table(together: Sequence[Together]) -> Table:
    """Commands in turn and overlapped."""
    most = max((m.sources for m in together), key=len)
    texts = ", ".join(source.split(", ")[-1] for source in most)
    return Table.of(
        f"Several texts as contexts of a core, 1 lane a head, memory {together[0].memory} cycles,"
        f" threshold {together[0].threshold:g}, texts: {texts}. Each text's"
        " command is a token of a layer; commands of a layer overlap, commands of different"
        " layers do not. A text has each kv head in the lane beside the one of the text before."
        " *In turn*: cycles of all commands one after another, as the core of one context takes"
        " them; *gain*: how many times fewer where they overlap. Speed-ups are over the core"
        " without pruning in the same way; *use*: chunks read in a cycle of a lane",
        pairs(together),
        ("texts", "{0[1].texts}"),
        ("tokens", "{0[1].tokens}"),
        ("baseline, in turn", "{0[0].in_turn}"),
        ("overlapped", "{0[0].cycles}"),
        ("core, in turn", "{0[1].in_turn}"),
        ("overlapped", "{0[1].cycles}"),
        ("gain", lambda pair: f"{pair[1].in_turn / pair[1].cycles:.3f}"),
        ("speed-up, in turn", lambda pair: f"{pair[0].in_turn / pair[1].in_turn:.2f}"),
        ("overlapped", lambda pair: f"{pair[0].cycles / pair[1].cycles:.2f}"),
        ("use", "{0[1].use:.2f}"),
    )


def summary_together(m: Together) -> str:
    """A line for the terminal."""
    what = "the core" if m.pruning else "without pruning"
    return (
        f"  {m.texts} texts of {m.tokens} tokens, {what}: {m.in_turn} cycles in turn,"
        f" {m.cycles} overlapped"
    )
