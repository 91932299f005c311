"""Stimuli on a mapped netlist: every output compared with the model's, and what the run costs.

Runs go side by side, one in each bit of a word (:class:`sim.synth.activity.Activity`). Nothing
stalls, and a memory answers in the next cycle. Toggles between settled values count from the first
cycle in which inputs are offered to the last beat of the slowest run; glitches are counted in
every SAMPLE-th cycle, as they take ten times as long, and are estimated for the others by the
share that they add there.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from sim.core import payload
from sim.core.design import Design
from sim.core.memory import Bits
from sim.core.stimulus import Stimulus, compare
from sim.core.tools import ToolError
from sim.drivers.run import load_testbench
from sim.synth.activity import RUNS, Activity
from sim.synth.liberty import Library
from sim.synth.netlist import Netlist
from sim.synth.power import Energies

RESET = 2
SAMPLE = 7
"""No divisor of most blocks' periods."""
SLOWEST = 4
"""Times the cycles of the formula that a run may take."""


@dataclasses.dataclass(frozen=True)
class GateEnergy:
    """What a run costs, the mean over all runs.

    cycles
        The slowest run's.
    settled
        fJ of toggles between settled values, all cycles together.
    glitches
        fJ that toggles in between add, estimated.
    clock
        fJ of a cycle's clock pins.
    leakage
        µW.
    answers
        Answers of memories by the stream of their responses.
    """

    cycles: int
    settled: float
    glitches: float
    clock: float
    leakage: float
    answers: dict[str, float]


class _Input:
    """Beats that are offered to a stream, of all runs."""

    def __init__(self, name: str, shape, beats: Sequence[np.ndarray]):
        self.name = name
        self.sizes = np.array([len(of) for of in beats])
        self.at = np.zeros(len(beats), int)
        most, width = self.sizes.max(initial=0), payload.width(shape)
        self._bits = np.zeros((len(beats), most + 1, width), bool)
        for run, of in enumerate(beats):
            self._bits[run, : len(of)] = bits_of(of, width)

    def offer(self) -> tuple[np.ndarray, np.ndarray]:
        """``bool[runs]`` valid, and ``bool[runs, bits]``."""
        runs = np.arange(len(self.at))
        return self.at < self.sizes, self._bits[runs, self.at]

    def accept(self, taken: np.ndarray) -> None:
        self.at += taken


class _Memory:
    """A memory that answers in the next cycle, of all runs."""

    def __init__(self, design: Design, memories: Sequence):
        self.memory = memories[0]
        self.port = self.memory.port(design.outputs, design.inputs)
        self.width = payload.width(design.inputs[self.memory.response])
        rows = [bits_of(of.contents, self.port.data.width) for of in memories]
        self._rows = np.stack(rows)
        self._answers: list[deque] = [deque() for _ in memories]
        self.answered = 0

    def offer(self) -> tuple[np.ndarray, np.ndarray]:
        valid = np.array([bool(answers) for answers in self._answers])
        bits = np.zeros((len(valid), self.width), bool)
        for run in np.flatnonzero(valid):
            bits[run] = self._answers[run][0]
        return valid, bits

    def accept(self, taken: np.ndarray) -> None:
        for run in np.flatnonzero(taken):
            self._answers[run].popleft()
            self.answered += 1

    def request(self, valid: np.ndarray, bits: np.ndarray) -> None:
        """Requests that are accepted in this cycle, ``bool[runs, bits]``."""
        port = self.port
        address = _number(bits, port.address)
        for run in np.flatnonzero(valid):
            at = int(address[run])
            if port.write.width and bits[run, port.write.offset]:
                self._rows[run, at] = _part(bits[run], port.write_data)
                continue
            answer = np.zeros(self.width, bool)
            _part(answer, port.data)[:] = self._rows[run, at]
            _part(answer, port.response_tag)[:] = _part(bits[run], port.request_tag)
            self._answers[run].append(answer)


class GateRun:
    """A netlist that was mapped from a design.

    costs
        Of :func:`sim.synth.power.energies`.
    """

    def __init__(self, design: Design, netlist: Netlist, library: Library, costs: Energies):
        self._design, self._netlist, self._library, self._costs = design, netlist, library, costs

    def run(self, stimuli: Sequence[Stimulus]) -> GateEnergy:
        """Run stimuli of the design; RUNS at most, repeated where there are fewer.

        :raises ToolError: if an output differs from the model's, or a run does not end.
        """
        design, names = self._design, stimuli[0].memories
        memories = [_Memory(design, [s.memories[name] for s in stimuli]) for name in names]
        served = {m.memory.response: m for m in memories}
        asked = {m.memory.request: m for m in memories}
        inputs: dict[str, _Input | _Memory] = {
            name: served.get(name) or _Input(name, shape, [s.inputs[name] for s in stimuli])
            for name, shape in design.inputs.items()
        }
        activity = Activity(self._netlist, self._library)
        found: dict[str, list[list]] = {
            name: [[] for _ in stimuli] for name in design.outputs if name not in asked
        }
        self._reset(activity, inputs)
        tally = _Tally(activity, self._costs)
        waiting = sum(len(beats) for s in stimuli for beats in s.outputs.values())
        cycle, longest = 0, SLOWEST * max(stimulus.cycles for stimulus in stimuli)
        while waiting > 0:
            if cycle == longest:
                raise ToolError(f"{design.block.name}: the netlist does not end")
            offers = {name: source.offer() for name, source in inputs.items()}
            tally.cycle(self._ports(offers))
            for name, (valid, _) in offers.items():
                inputs[name].accept(valid & self._flags(activity, f"{name}__ready", len(valid)))
            for name in design.outputs:
                valid = self._flags(activity, f"{name}__valid", len(stimuli))
                if not valid.any():
                    continue
                bits = activity.output(f"{name}__payload")[: len(stimuli)]
                if name in asked:
                    asked[name].request(valid, bits)
                    continue
                for number in np.flatnonzero(valid):
                    found[name][number].append((cycle, bits[number]))
                    waiting -= 1
            cycle += 1
        for run, stimulus in enumerate(stimuli):
            self._compare(stimulus, {name: beats[run] for name, beats in found.items()})
        answers = {name: memory.answered / len(stimuli) for name, memory in served.items()}
        return GateEnergy(cycle, *tally.energy(), self._costs.cycle, self._costs.leakage, answers)

    def _reset(self, activity: Activity, inputs: dict) -> None:
        offers = {name: source.offer() for name, source in inputs.items()}
        idle = {name: (valid & False, bits) for name, (valid, bits) in offers.items()}
        for _ in range(RESET):
            activity.cycle(self._ports(idle, reset=True), counted=False)

    def _ports(self, offers: dict, reset: bool = False) -> dict[str, np.ndarray]:
        """Values of all input ports in a cycle."""
        ports = {f"{name}__ready": np.ones((1, 1), bool) for name in self._design.outputs}
        ports["rst"] = np.full((1, 1), reset)
        for name, (valid, bits) in offers.items():
            ports[f"{name}__valid"] = valid[:, None]
            ports[f"{name}__payload"] = bits
        return {
            name: np.resize(bits, (RUNS, bits.shape[1]))
            for name, bits in ports.items()
            if name in self._netlist.inputs and bits.shape[1]
        }

    def _flags(self, activity: Activity, port: str, runs: int) -> np.ndarray:
        return activity.output(port)[:runs, 0]

    def _compare(self, stimulus: Stimulus, beats: dict[str, list]) -> None:
        design = self._design
        outputs, cycles = {}, {}
        for name, shape in design.outputs.items():
            if name in beats:
                of = beats[name]
                ints = [_integer(bits) for _, bits in of]
                outputs[name] = payload.from_ints(ints, shape)
                cycles[name] = np.array([cycle for cycle, _ in of], np.int64)
        check = getattr(load_testbench(design.block), "compare", compare)
        wrong = check(stimulus, outputs, design.outputs, cycles)
        if wrong:
            raise ToolError(f"{design.block.name}, mapped: {wrong[0]}")


class _Tally:
    """Energy of the cycles so far."""

    def __init__(self, activity: Activity, costs: Energies):
        self._activity, self._cycles = activity, 0
        self._each = np.append([costs.net.get(net, 0.0) for net in activity.row], [0.0, 0.0])
        self._sampled = 0.0

    def cycle(self, ports: dict[str, np.ndarray]) -> None:
        sampled = self._cycles % SAMPLE == SAMPLE - 1
        before = self._activity.settled.copy() if sampled else None
        self._activity.cycle(ports, glitches=sampled)
        if before is not None:
            self._sampled += float((self._activity.settled - before) @ self._each)
        self._cycles += 1

    def energy(self) -> tuple[float, float]:
        """fJ of a run: settled toggles, glitches."""
        settled = float(self._activity.settled @ self._each) / RUNS
        toggles = float(self._activity.toggles @ self._each)
        share = toggles / self._sampled if self._sampled else 1.0
        return settled, settled * (share - 1)


def bits_of(words: np.ndarray, width: int) -> np.ndarray:
    """``bool[rows, width]`` of ``uint32[rows, words]``, lowest bit first."""
    raw = np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(len(words), -1)
    return np.unpackbits(raw, axis=1, bitorder="little")[:, :width].astype(bool)


def _part(bits: np.ndarray, field: Bits) -> np.ndarray:
    return bits[..., field.offset : field.offset + field.width]


def _number(bits: np.ndarray, field: Bits) -> np.ndarray:
    return _part(bits, field) @ (1 << np.arange(field.width, dtype=np.int64))


def _integer(bits: np.ndarray) -> int:
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
