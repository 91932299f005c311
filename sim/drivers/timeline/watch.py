"""Watched streams of a design: which there are, and a run of Icarus that notes their flags."""

import dataclasses
import pickle
import re
import tempfile
from pathlib import Path

import numpy as np

from sim.core import processes
from sim.core.design import Design
from sim.core.memory import FASTEST
from sim.core.stimulus import Stimulus
from sim.core.tools import ToolError
from sim.core.user_verilog import generated_ports
from sim.drivers.cocotb.runner import CocotbSimulation, reasons_of

INPUT, INSIDE, OUTPUT = "input", "inside", "output"


@dataclasses.dataclass(frozen=True)
class WatchedStream:
    """A stream and the cycles of its flags, from the end of the reset on.

    name
        As in the Verilog: of a sub-block, its instance's name comes first, as in ``queue.o``.
    kind
        INPUT or OUTPUT of the design, or the output of a sub-block, INSIDE.
    beats, waits
        ``int64[n]``: the cycles in which a beat moved, and in which one was offered and not taken.
    """

    name: str
    kind: str
    beats: np.ndarray
    waits: np.ndarray


def streams_of(design: Design, depth: int = 1) -> dict[str, str]:
    """Kinds of the streams by name: of the design, and outputs of sub-blocks `depth` levels down.

    Inputs come first, then what is inside in the order of the Verilog, then outputs.
    """
    found = dict(_streams(design.verilog, design.module))
    inside = _inside(design, design.module, "", depth)
    inputs = {name: kind for name, kind in found.items() if kind == INPUT}
    outputs = {name: kind for name, kind in found.items() if kind == OUTPUT}
    return {**inputs, **dict.fromkeys(inside, INSIDE), **outputs}


def _streams(verilog: str, module: str) -> list[tuple[str, str]]:
    ports = generated_ports(verilog, module)
    return [
        (name.removesuffix("__valid"), direction)
        for name, (direction, _) in ports.items()
        if name.endswith("__valid") and f"{name.removesuffix('__valid')}__ready" in ports
    ]


def _inside(design: Design, module: str, path: str, depth: int) -> list[str]:
    """Output streams of the sub-blocks of a module, each behind its own sub-blocks' streams."""
    if not depth:
        return []
    verilog, known = design.verilog, set(design.modules)
    body = verilog[re.search(rf"^module {re.escape(module)}\(", verilog, re.M).start() :]  # type: ignore[union-attr]
    found = []
    for kind, instance in re.findall(r"^  (\w+) (\w+) \($", body.partition("\nendmodule")[0], re.M):
        if kind in known:
            below = f"{path}{instance}."
            found += _inside(design, kind, below, depth - 1)
            streams = _streams(verilog, kind)
            found += [below + name for name, direction in streams if direction == OUTPUT]
    return found


class TimelineSimulation(CocotbSimulation):
    """A design compiled for Icarus, whose streams are watched."""

    testbench = f"{__package__}.testbench"

    def __init__(self, design: Design):
        super().__init__(design, "icarus")

    def watch(
        self,
        stimulus: Stimulus,
        stall: str,
        seed: int,
        kinds: dict[str, str],
        timing=FASTEST,
    ) -> list[WatchedStream]:
        """Run a stimulus from reset, and note the flags of these streams of :func:`streams_of`.

        :raises ToolError: if the run does not end.
        """
        description = self._describe(stimulus, stall, seed, timing) | {"watched": list(kinds)}
        with tempfile.TemporaryDirectory(prefix="senbazuru_") as temporary:
            scratch = Path(temporary)
            try:
                self._run(scratch, [description], seed)
            except processes.Stuck:
                raise ToolError("the simulation stands still") from None
            (reason,) = reasons_of(scratch / "results.xml", 1, scratch / "run.log")
            if reason is not None:
                raise ToolError(reason)
            outcome = pickle.loads((scratch / "outcome_0").read_bytes())
            if outcome["failure"]:
                raise ToolError(outcome["failure"])
            noted = pickle.loads((scratch / "watched").read_bytes())
        return [
            WatchedStream(name, kind, *(np.array(of, np.int64) for of in noted[name]))
            for name, kind in kinds.items()
        ]
