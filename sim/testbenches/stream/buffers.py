"""Testbench of the in-order buffers: the queue and the skid buffer."""

from typing import TYPE_CHECKING

import numpy as np

from golden.stream import buffer
from sim.core.stimulus import Stimulus
from sim.testbenches.stream.beats import beats, bursts

if TYPE_CHECKING:
    from golden.trace import Trace
    from hw.stream.queue import QueueParameters
    from hw.stream.skid_buffer import SkidBufferParameters

    BufferParameters = QueueParameters | SkidBufferParameters

_CYCLES_SHOWN = 96


class BufferTestbench:
    """Output beats must equal the input beats, in order; a transaction is one beat.

    Parameters
    ----------
    name : str
        The component's name in the picture.
    depth : callable
        Function from the parameters to the number of beats that the component holds.
    """

    def default_vectors(self, parameters: "BufferParameters") -> int:
        return 256

    def __init__(self, name: str, depth):
        self._name, self._depth = name, depth

    def stimulus(
        self, parameters: "BufferParameters", trace: "Trace | None", vectors: int, seed: int
    ) -> Stimulus:
        words, notes = beats(trace, parameters.width, vectors, seed)
        return Stimulus(
            inputs={"i": words},
            outputs={"o": words},
            transaction_of={"o": np.arange(vectors)},
            transactions=vectors,
            cycles=parameters.cycles(vectors),
            notes=notes,
        )

    def picture(self, parameters: "BufferParameters", trace: "Trace | None", figure) -> str:
        """The cycles that each beat stays inside, and the number of beats inside."""
        depth = self._depth(parameters)
        arrivals, takes = bursts(_CYCLES_SHOWN, 2, seed=1)
        activity = buffer.simulate(depth, arrivals, takes)
        entered, left = np.flatnonzero(activity.accepted), np.flatnonzero(activity.output)
        inside = len(entered) - len(left)
        until = np.concatenate([left, np.full(inside, _CYCLES_SHOWN)])
        words, _ = beats(trace, parameters.width, len(entered), seed=1)
        bits = min(parameters.width, 16)
        payloads = words[:, 0] & ((1 << bits) - 1)

        stay, level = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        bars = stay.hlines(np.arange(len(entered)), entered, until, lw=3)
        bars.set_array(payloads)
        figure.colorbar(bars, ax=stay, label=f"payload, low {bits} bits")
        stay.set_ylabel("beat")
        level.fill_between(np.arange(_CYCLES_SHOWN), activity.held, step="post", alpha=0.5)
        level.axhline(depth, color="black", lw=0.8, ls="--")
        level.set_ylabel("beats held")
        level.set_xlabel("cycle")
        source = "random payloads" if trace is None else "payloads from the trace"
        return (
            f"{self._name}, {depth} entries, {source}; beats arrive and are taken in bursts "
            f"(cycle-level model, {_CYCLES_SHOWN} cycles). Each bar is a beat from acceptance to "
            f"delivery: {len(entered)} accepted, {len(left)} output, "
            f"at most {activity.held.max()} held."
        )
