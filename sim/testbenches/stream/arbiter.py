"""Testbench of :mod:`hw.stream.arbiter`."""

from typing import TYPE_CHECKING

import numpy as np

from golden.stream import arbiter
from sim.core.stimulus import Mismatch, Stimulus, compare
from sim.testbenches.stream.beats import beats, pack, unpack

if TYPE_CHECKING:
    from golden.trace import Trace
    from hw.stream.arbiter import ArbiterParameters


class ArbiterTestbench:
    """Beats are dealt to the inputs unevenly; a transaction is one beat of the merged stream.

    The expected order comes from an unstalled run. Stalls change when beats arrive and so the
    order of the merge, but never the order within one source.
    """

    def default_vectors(self, parameters: "ArbiterParameters") -> int:
        return 256

    def stimulus(
        self, parameters: "ArbiterParameters", trace: "Trace | None", vectors: int, seed: int
    ) -> Stimulus:
        inputs = parameters.inputs
        words, notes = beats(trace, parameters.width, vectors, seed)
        dealt = np.random.default_rng(seed).integers(0, inputs, vectors)
        # Every input has a beat if there are enough of them.
        dealt[:inputs] = np.arange(inputs)[:vectors]
        sent = [np.flatnonzero(dealt == s) for s in range(inputs)]

        order = arbiter.merge([len(places) for places in sent])
        merged = np.zeros(vectors, int)
        for s, places in enumerate(sent):
            merged[order == s] = places
        return Stimulus(
            inputs={f"i__{s}": words[places] for s, places in enumerate(sent)},
            outputs={"o": _with_source(parameters, words[merged], order)},
            transaction_of={"o": np.arange(vectors)},
            transactions=vectors,
            cycles=parameters.cycles(vectors),
            notes=notes,
        )

    def compare(
        self, stimulus: Stimulus, got: dict[str, np.ndarray], layouts: dict, cycles_of: dict
    ) -> list[Mismatch]:
        """Exactly, or for a run with stalls source by source, beats counted within the source."""
        if stimulus.stall == "none":
            return compare(stimulus, got, layouts, cycles_of)
        data_bits = layouts["o"]["data"].width
        by_source = {}
        for side, packed in (("expected", stimulus.outputs["o"]), ("got", got["o"])):
            by_source[side] = _source(packed, data_bits)
        found = []
        for s in np.union1d(by_source["expected"], by_source["got"]):
            places = {side: np.flatnonzero(sources == s) for side, sources in by_source.items()}
            part = Stimulus(
                inputs={},
                outputs={"o": stimulus.outputs["o"][places["expected"]]},
                transaction_of={"o": places["expected"]},
                transactions=stimulus.transactions,
                cycles=stimulus.cycles,
            )
            received = {"o": got["o"][places["got"]]}
            cycles = {"o": np.asarray(cycles_of["o"])[places["got"]]}
            found += compare(part, received, layouts, cycles)
        return found


def _with_source(
    parameters: "ArbiterParameters", words: np.ndarray, sources: np.ndarray
) -> np.ndarray:
    """Packed output beats; the source is above the data, which may be wider than 64 bits."""
    source_bits = parameters.output_layout()["source"].width
    source = (sources[:, None] >> np.arange(source_bits)) & 1
    data = unpack(words, parameters.width)
    return pack(np.concatenate([data, source.astype(np.uint8)], axis=1))


def _source(packed: np.ndarray, data_bits: int) -> np.ndarray:
    bits = unpack(packed, packed.shape[1] * 32)[:, data_bits:].astype(int)
    return (bits << np.arange(bits.shape[1])).sum(axis=1)


testbench = ArbiterTestbench()
