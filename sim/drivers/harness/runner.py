"""The compiled harness: C++ around the Verilated design runs a whole stimulus in one call."""

import ctypes
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from amaranth.hdl import Shape

from sim.core import payload
from sim.core.design import Design
from sim.core.dram.timing import DramTiming, DramUse
from sim.core.memory import FASTEST, Memory, MemoryPort, MemoryTiming, MemoryUse, fault, timing_of
from sim.core.stalls import SHORTEST_GAP, SHORTEST_STALL, Stall, longest_stall
from sim.core.stimulus import Outcome, Stimulus
from sim.drivers.harness.verilated import compile_engine, compile_harness

EXTRA_BEATS = 16  # room for unexpected beats
# Cycles in which only memories transfer before the design counts as hung, per row and at least: far
# more than reading every row once takes.
MEMORY_ONLY_PER_ROW, MEMORY_ONLY = 64, 1 << 20

_FINISHED, _HUNG, _VALID_DROPPED, _PAYLOAD_CHANGED, _OUT_OF_RANGE, _MEMORY_ONLY = range(6)
_RULES = {_VALID_DROPPED: "valid was withdrawn", _PAYLOAD_CHANGED: "the payload changed"}


class Harness:
    """A compiled design that runs stimuli. Compiled once for a Verilog text, then cached."""

    def __init__(self, design: Design):
        self._design = design
        self._library = _engine()
        self._table = _load(compile_harness(design))
        self._model: ctypes.c_void_p | None = None
        self._memories: dict[str, tuple[Memory, MemoryPort, np.ndarray, MemoryTiming]] = {}
        self._seed = 0
        self.reset()

    def reset(self, **constants: int) -> None:
        """A fresh model, its constant inputs set (0 where not given), reset for four cycles."""
        self.close()
        self._model = ctypes.c_void_p(self._library.harness_new(self._table))
        for number, name in enumerate(self._design.constants):
            self._library.harness_constant(self._model, number, constants.get(name, 0))
        self._library.harness_reset(self._model)

    def observed(self) -> dict[str, int]:
        """Present values of the design's observed ports, by name."""
        value, found = (ctypes.c_uint32 * 2)(), {}
        for number, name in enumerate(self._design.observed):
            self._library.harness_observe(self._model, number, value)
            found[name] = value[0] | value[1] << 32
        return found

    def close(self) -> None:
        if self._model is not None:
            self._library.harness_delete(self._model)
            self._model = None

    def run(
        self,
        stimulus: Stimulus,
        stall: Stall,
        seed: int,
        timing: MemoryTiming | Mapping[str, MemoryTiming] = FASTEST,
    ) -> Outcome:
        """Reset during random traffic, drive all input beats, collect the output beats.

        After the last expected beat the run goes on for a while, to catch beats too many.

        timing
            Timing of all memories, or of each by its name.
        """
        library, design = self._library, self._design
        bound = self._streams_of_memories(stimulus)
        self.seed(seed, stall)
        library.harness_forget_memories(self._model)
        inputs = []  # held while the model reads them
        for name, shape in design.inputs.items():
            if name in bound:  # its memory drives it
                beats = np.zeros((0, payload.words(shape)), np.uint32)
            else:
                beats = np.ascontiguousarray(stimulus.inputs[name], np.uint32)
            inputs.append(beats)
            self.source(name, beats, stall)
        outputs, cycles_of = {}, {}
        for name, shape in design.outputs.items():
            expected = 0 if name in bound else len(stimulus.outputs[name])
            room = max(expected, stimulus.room.get(name, 0)) + EXTRA_BEATS
            outputs[name] = np.zeros((room, payload.words(shape)), np.uint32)
            cycles_of[name] = np.zeros(room, np.int64)
            self.sink(name, outputs[name], cycles_of[name], expected, stall)
        timings = {name: timing_of(timing, name) for name in stimulus.memories}
        contents = {n: np.array(m.contents, np.uint32) for n, m in stimulus.memories.items()}
        if stimulus.serves:
            scratch = {name: rows.copy() for name, rows in contents.items()}
            self.bind(stimulus.memories, scratch, timings)
        library.harness_disturb(self._model)
        self.unbind()
        self.bind(stimulus.memories, contents, timings)
        outcome = self._outcome(library.harness_run, [], self.limits(contents, timings))
        if outcome.failure is None:
            outcome.failure = self._accepted_stray(stimulus)
        outcome.memories = self.uses()
        received = {name: self.received(name) for name in design.outputs if name not in bound}
        outcome.outputs = {name: outputs[name][:count] for name, count in received.items()}
        outcome.cycles_of = {name: cycles_of[name][:count] for name, count in received.items()}
        return outcome

    def _accepted_stray(self, stimulus: Stimulus) -> str | None:
        """The first of the beats that may not be accepted after the run which is."""
        for name, beats in stimulus.strays.items():
            number = list(self._design.inputs).index(name)
            for stray in np.ascontiguousarray(beats, np.uint32):
                if self._library.harness_takes(self._model, number, _address(stray)):
                    return f"stream {name}: a beat that must wait is accepted after the run"
        return None

    def go_on(self, first: int, limits: np.ndarray) -> Outcome:
        """Run on from where the last run ended, at cycle `first`, to the last expected beat."""
        return self._outcome(self._library.harness_continue, [first], limits)

    def seed(self, seed: int, stall: Stall) -> None:
        """Begin a stall pattern."""
        self._seed = seed
        self._library.harness_seed(self._model, seed)
        longest = longest_stall(self._design.timeout_cycles) if stall.long else 0
        self._library.harness_turns(self._model, SHORTEST_STALL, SHORTEST_GAP, longest)

    def source(self, name: str, beats: np.ndarray, stall: Stall) -> None:
        """Beats for an input stream, ``uint32[beats, words]``, which the caller keeps alive."""
        number = list(self._design.inputs).index(name)
        chances = stall.chances(stall.valid, f"{self._seed}{name}")
        bits = Shape.cast(self._design.inputs[name]).width
        self._library.harness_source(
            self._model, number, _address(beats), len(beats), bits, *chances
        )

    def sink(
        self, name: str, beats: np.ndarray, cycles: np.ndarray, expected: int, stall: Stall
    ) -> None:
        """Room for the beats of an output stream, and how many of them end a run."""
        number = list(self._design.outputs).index(name)
        chances = stall.chances(stall.ready, f"{self._seed}{name}")
        addresses = _address(beats), _address(cycles)
        self._library.harness_sink(
            self._model, number, *addresses, expected, len(beats), stall.late, *chances
        )

    def received(self, name: str) -> int:
        """Beats of an output stream in the latest run."""
        return self._library.harness_received(self._model, list(self._design.outputs).index(name))

    def bind(
        self,
        memories: Mapping[str, Memory],
        contents: Mapping[str, np.ndarray],
        timings: Mapping[str, MemoryTiming],
    ) -> None:
        """Put memories behind their streams; `contents` are read and written in place."""
        self._memories = {
            name: (
                m,
                m.port(self._design.outputs, self._design.inputs),
                contents[name],
                timings[name],
            )
            for name, m in memories.items()
        }
        for bound in self._memories.values():
            self._bind(*bound)

    def unbind(self) -> None:
        """Take all memories away."""
        self._library.harness_forget_memories(self._model)
        self._memories = {}

    def uses(self) -> dict[str, MemoryUse]:
        """What each memory did since it was bound, by name."""
        return {
            name: self._use(number, contents, port, timing)[0]
            for number, (name, (_, port, contents, timing)) in enumerate(self._memories.items())
        }

    def _outcome(self, run: Callable, arguments: list[int], limits: np.ndarray) -> Outcome:
        """Run the model; the outcome still lacks what streams and memories hold."""
        result = np.zeros(5, np.int64)
        run(self._model, _address(limits), *arguments, _address(result))
        status, stream, cycle, cycles, simulated = (int(value) for value in result)
        failure = self._failure(status, stream, cycle, limits)
        if status == _OUT_OF_RANGE:
            for number, (name, bound) in enumerate(self._memories.items()):
                memory, port, contents, timing = bound
                if list(self._design.outputs)[stream] == memory.request:
                    use, (address, write) = self._use(number, contents, port, timing)
                    latest, rows = len(use.accepted) - 1, len(contents)
                    failure = fault(name, latest, bool(write), address, rows, cycle)
        return Outcome({}, {}, cycles, simulated, failure)

    def _streams_of_memories(self, stimulus: Stimulus) -> set[str]:
        bound = [s for m in stimulus.memories.values() for s in (m.request, m.response)]
        for stream in bound:
            if bound.count(stream) > 1 or stream in stimulus.inputs or stream in stimulus.outputs:
                raise ValueError(f"stream {stream} must belong to one memory alone")
        return set(bound)

    def limits(
        self, contents: Mapping, timings: Mapping[str, MemoryTiming], drain: int | None = None
    ) -> np.ndarray:
        """``Limits`` of harness.cpp: cycles of a hang, of draining, of memory traffic alone.

        drain
            Cycles to go on after the last expected beat; by default the design's.
        """
        slowest = max((t.latency[1] + t.interval for t in timings.values()), default=0)
        rows = sum(len(beats) * timings[name].interval for name, beats in contents.items())
        return np.array(
            [
                self._design.timeout_cycles + slowest,
                self._design.drain_cycles + slowest if drain is None else drain,
                MEMORY_ONLY + MEMORY_ONLY_PER_ROW * rows,
            ],
            np.int64,
        )

    def _bind(self, memory: Memory, port: MemoryPort, contents, timing: MemoryTiming) -> None:
        inputs, outputs = self._design.inputs, self._design.outputs
        parts = [port.address, port.request_tag, port.write, port.write_data]
        parts += [port.response_tag, port.data]
        fields = [value for bits in parts for value in (bits.offset, bits.width)]
        layout = np.array([*fields, payload.words(inputs[memory.response])], np.int64)
        numbers = np.array(
            [*timing.latency, timing.interval, int(timing.reorder), timing.seed], np.uint64
        )
        dram = timing.dram_numbers(port.data.width)
        self._library.harness_memory(
            self._model,
            list(outputs).index(memory.request),
            list(inputs).index(memory.response),
            _address(contents),
            *contents.shape,
            _address(layout),
            _address(numbers),
            _address(dram) if len(dram) else None,
        )

    def _use(
        self, number: int, contents, port: MemoryPort, timing: MemoryTiming
    ) -> tuple[MemoryUse, tuple[int, int]]:
        """Accesses to a memory; address of its latest request and whether that was a write."""
        requests = self._library.harness_memory_requests(self._model, number)
        accepted, offered, rows = np.zeros((3, requests), np.int64)
        counts = np.zeros(4, np.uint64)
        self._library.harness_memory_use(
            self._model, number, *map(_address, (accepted, offered, rows, counts))
        )
        rows_read, rows_written, address, write = (int(value) for value in counts)
        use = MemoryUse(contents, port.data.width, rows_read, rows_written, accepted, offered, rows)
        if isinstance(timing, DramTiming):
            figures = np.zeros(8, np.int64)
            self._library.harness_memory_dram(self._model, number, _address(figures))
            use.dram = DramUse.of_figures(timing.standard, figures.tolist())
        return use, (address, write)

    def _failure(self, status: int, stream: int, cycle: int, limits: np.ndarray) -> str | None:
        if status == _HUNG:
            return f"no transfer for {limits[0]} cycles before cycle {cycle}"
        if status == _MEMORY_ONLY:
            return f"only memories transferred for {limits[2]} cycles before cycle {cycle}"
        if status in _RULES:
            name = list(self._design.outputs)[stream]
            what = _RULES[status]
            return f"stream {name}: {what} in cycle {cycle} while the consumer was not ready"
        return None


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


def _load(path: Path) -> int:
    """Address of the table of a compiled design, which remains loaded."""
    table = ctypes.CDLL(str(path)).design_table
    table.restype = ctypes.c_void_p
    return table()


@functools.cache
def _engine() -> ctypes.CDLL:
    """The harness and Verilator's run-time library, whose symbols all designs share."""
    library = ctypes.CDLL(str(compile_engine()), ctypes.RTLD_GLOBAL)
    pointer, i64, f64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    bind = [pointer, ctypes.c_int, ctypes.c_int, pointer, i64, i64, *[pointer] * 3]
    signatures = {
        "harness_new": ([pointer], pointer),
        "harness_delete": ([pointer], None),
        "harness_constant": ([pointer, ctypes.c_int, ctypes.c_uint32], None),
        "harness_observe": ([pointer, ctypes.c_int, ctypes.POINTER(ctypes.c_uint32)], None),
        "harness_reset": ([pointer], None),
        "harness_disturb": ([pointer], None),
        "harness_seed": ([pointer, ctypes.c_uint64], None),
        "harness_turns": ([pointer, i64, i64, i64], None),
        "harness_source": ([pointer, ctypes.c_int, pointer, i64, i64, f64, f64], None),
        "harness_sink": (
            [pointer, ctypes.c_int, pointer, pointer, i64, i64, ctypes.c_int, f64, f64],
            None,
        ),
        "harness_takes": ([pointer, ctypes.c_int, pointer], ctypes.c_int),
        "harness_received": ([pointer, ctypes.c_int], i64),
        "harness_run": ([pointer, pointer, pointer], None),
        "harness_continue": ([pointer, pointer, i64, pointer], None),
        "harness_forget_memories": ([pointer], None),
        "harness_memory": (bind, None),
        "harness_memory_requests": ([pointer, ctypes.c_int], i64),
        "harness_memory_dram": ([pointer, ctypes.c_int, pointer], None),
        "harness_memory_use": ([pointer, ctypes.c_int, *[pointer] * 4], None),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
