"""The cost model at points of a sweep over lengths of input and output."""

import dataclasses

import numpy as np

from golden.algorithms.unicaim.cost import (
    PRUNINGS,
    ArrayShape,
    Constants,
    StepCounts,
    array_rows,
    conventional_dynamic,
    delay_ns,
    devices,
    energy_pj,
    mean_cost,
    sequence_counts,
)
from golden.algorithms.unicaim.cost.published import GENERATED, KEPT, LONG_PROMPT, PROMPT

INPUTS = (512, 1024, 2048, 4096, 8192)
OUTPUTS = (64, 256, 512, 1024, 2048, 4096, 8192)
LONGEST = 1 << 15
"""Generated tokens up to which a ratio is searched for."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a point of a sweep has in common with the others.

    prompt, generated
        Lengths of input and output where no other is given.
    long_prompt
        Length of the input while the output's is swept.
    kept
        Percent of the rows in use that dynamic pruning selects.
    heads
        Query heads that share the array.
    search_steps
        Steps of one head's search.
    """

    shape: ArrayShape = dataclasses.field(default_factory=ArrayShape)
    constants: Constants = dataclasses.field(default_factory=Constants)
    prompt: int = PROMPT
    generated: int = GENERATED
    long_prompt: int = LONG_PROMPT
    kept: int = KEPT
    heads: int = 1
    search_steps: int = 1

    def one_bit_cells(self) -> "Setting":
        """The same keys in cells of one bit."""
        return dataclasses.replace(self, shape=dataclasses.replace(self.shape, cell_bits=1))

    def counts(
        self, name: str, prompt: int | None = None, generated: int | None = None
    ) -> StepCounts:
        """Counts of each step, with the pruning `name`."""
        return sequence_counts(
            PRUNINGS[name],
            self.prompt if prompt is None else prompt,
            self.generated if generated is None else generated,
            heavy=self.shape.heavy,
            reserved=self.shape.reserved,
            kept=self.kept,
            heads=self.heads,
            search_steps=self.search_steps,
        )


@dataclasses.dataclass(frozen=True)
class Cost:
    """Devices of an array of `rows`; conversions, energy and delay of a step, mean over all."""

    rows: int
    devices: int
    conversions: float
    energy_pj: float
    delay_ns: float

    @property
    def aedp(self) -> float:
        """Product of devices, energy and delay: the devices are a measure of the area."""
        return self.devices * self.energy_pj * self.delay_ns


def cost(
    setting: Setting, name: str, prompt: int | None = None, generated: int | None = None
) -> Cost:
    """Cost of decoding `generated` tokens after `prompt` ones, with the pruning `name`."""
    prompt = setting.prompt if prompt is None else prompt
    generated = setting.generated if generated is None else generated
    counts = setting.counts(name, prompt, generated)
    rows = array_rows(setting.shape, PRUNINGS[name], prompt, generated)
    energy, delay = mean_cost(counts, setting.shape, setting.constants)
    return Cost(
        rows=rows,
        devices=devices(setting.shape, PRUNINGS[name], rows).total,
        conversions=float(np.mean(counts.conversions)) * setting.shape.slices,
        energy_pj=energy,
        delay_ns=delay,
    )


def conventional(setting: Setting) -> tuple[float, float]:
    """Energy and delay of a step, means, with conventional dynamic pruning (Figs. 11a and 12a).

    All rows are converted approximately and sorted; the selected ones are converted exactly.
    """
    energy, delay = conventional_dynamic(setting.counts("dense"), setting.shape, setting.constants)
    # The exact part is UniCAIM's dynamic pruning without the search.
    exact = dataclasses.replace(setting.counts("dynamic"), search_steps=0)
    exact_energy, exact_delay = mean_cost(exact, setting.shape, setting.constants)
    return float(np.mean(energy)) + exact_energy, float(np.mean(delay)) + exact_delay


def generated_for(setting: Setting, quantity: str, ratio: float) -> int | None:
    """Tokens after a prompt of `long_prompt` at which dense over both reaches `ratio`.

    quantity
        "energy" or "delay", of all steps so far. None if `LONGEST` tokens do not reach it.
    """
    of = {"energy": energy_pj, "delay": delay_ns}[quantity]
    dense, both = (
        np.cumsum(
            of(
                setting.counts(name, setting.long_prompt, LONGEST),
                setting.shape,
                setting.constants,
            )
        )
        for name in ("dense", "both")
    )
    reached = dense / both >= ratio
    return int(np.argmax(reached)) + 1 if reached.any() else None


def lengths(setting: Setting) -> dict[str, list[tuple[int, int]]]:
    """Lengths of input and output of both sweeps."""
    return {
        "input": [(prompt, setting.generated) for prompt in INPUTS],
        "output": [(setting.long_prompt, generated) for generated in OUTPUTS],
    }
