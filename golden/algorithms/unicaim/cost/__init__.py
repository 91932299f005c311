"""UniCAIM's devices, energy and delay as an analytical model (section IV-A, Table II).

``counts``
    What a decode step does: searches, conversions, writes. From a formula or the core's report.
``devices``
    FeFETs and transistors of the array and of each sense line.
``energy``
    Constants, each with its source; energy, delay and their product with the devices.
``published``
    The ratios that the paper's text states.
"""

from golden.algorithms.unicaim.cost.counts import (
    PRUNINGS,
    Pruning,
    StepCounts,
    digital_search_steps,
    sequence_counts,
    step_counts,
)
from golden.algorithms.unicaim.cost.devices import ArrayShape, Devices, array_rows, devices
from golden.algorithms.unicaim.cost.energy import (
    Constants,
    conventional_dynamic,
    delay_ns,
    energy_pj,
    mean_cost,
)

__all__ = [
    "PRUNINGS",
    "ArrayShape",
    "Constants",
    "Devices",
    "Pruning",
    "StepCounts",
    "array_rows",
    "conventional_dynamic",
    "delay_ns",
    "devices",
    "digital_search_steps",
    "energy_pj",
    "mean_cost",
    "sequence_counts",
    "step_counts",
]
