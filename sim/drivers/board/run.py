"""Run a block's testbench on a board, or on its simulation, through the serial line."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from golden import trace as traces
from hw.boards.design import BoardDesign, BoardParameters, board_design
from hw.catalogue import Block
from hw.parameters import Parameters
from sim.core.result import RunResult, add, configuration_name, settings_of
from sim.core.stimulus import Mismatch, Outcome, Stimulus, compare, compare_memories
from sim.drivers.board.board import Board, BoardWasReset
from sim.drivers.board.serial_port import BAUD, SerialPort
from sim.drivers.board.session import BoardSession
from sim.drivers.board.simulated import DIVISOR, SimulatedBoard
from sim.drivers.run import load_testbench, load_trace, stimuli_of

SIMULATED = "simulated"
"""In place of a port: a simulation of the board."""


@dataclasses.dataclass(frozen=True)
class BoardChoice:
    """Which board.

    port
        Port of this machine, or "simulated".
    baud
        Bits a second of the line.
    divisor
        Clock cycles a bit, as the board was built.
    memory_rows, multiplier, memory, period
        As of :class:`hw.boards.design.BoardParameters`.
    """

    port: str = SIMULATED
    baud: int = BAUD
    divisor: int = 25
    memory_rows: int = -1
    multiplier: str = "dsp"
    memory: str = "block"
    period: int = 0

    def design(self, block: Block, parameters: Parameters) -> BoardDesign:
        divisor = DIVISOR if self.port == SIMULATED else self.divisor
        board = BoardParameters(
            divisor=divisor,
            memory_rows=self.memory_rows,
            multiplier=self.multiplier,
            memory=self.memory,
            period=self.period if self.memory == "sdram" else 0,
        )
        return board_design(block, parameters, board)

    @contextlib.contextmanager
    def open(self, design: BoardDesign) -> Iterator[Board]:
        """A conversation with the board.

        :raises BoardError: with one sentence.
        """
        with contextlib.ExitStack() as stack:
            if self.port == SIMULATED:
                simulated = SimulatedBoard(design)
                stack.callback(simulated.close)
                transport = simulated.transport()
            else:
                transport = SerialPort(self.port, self.baud)
            stack.callback(transport.close)
            yield Board(design, transport)


def run_stimulus(board: Board, stimulus: Stimulus, timeout: int, drain: int) -> Outcome:
    """Run a stimulus from reset; once more if the board is reset in the middle of it."""
    for attempt in (1, 2):
        try:
            session = BoardSession(board, stimulus.memories, timeout, drain)
            bound = {m.response for m in stimulus.memories.values()}
            inputs = {name: b for name, b in stimulus.inputs.items() if name not in bound}
            expected = {name: len(beats) for name, beats in stimulus.outputs.items()}
            outcome = session.step(inputs, expected)
            outcome.memories = session.uses()
            return outcome
        except BoardWasReset:
            if attempt == 2:
                raise
    raise AssertionError("a run ends or raises")


def run_on_board(
    block: Block,
    preset: str,
    parameters: Parameters,
    choice: BoardChoice,
    *,
    trace: Path | None = None,
    vectors: int | None = None,
    seed: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """Run the block's testbench, real data and random data, and count mismatches.

    progress
        Called with what is going on.
    :raises ParameterError, TraceError, ToolError: with one sentence for the user.
    """
    data = load_trace(trace)
    design = choice.design(block, parameters)
    testbench = load_testbench(block)
    vectors = vectors or testbench.default_vectors(parameters)
    stimuli = stimuli_of(block, parameters, data, vectors, seed)
    result = RunResult(
        *(block.name, preset, "board", choice.port, seed, "none"),
        configuration=configuration_name(preset, settings_of(block, preset, parameters)),
        parameters=dataclasses.asdict(parameters),
        trace=str(trace or traces.shipped()[0].name),
        vectors=vectors,
        notes=list(stimuli[0].notes),
    )
    check = getattr(testbench, "compare", compare)
    timeout, drain = 2000 + 10 * parameters.idle_bound, 64 + 2 * parameters.latency
    started = time.monotonic()
    with choice.open(design) as board:
        for number, stimulus in enumerate(stimuli, 1):
            progress(f"stimulus {number} of {len(stimuli)}")
            stimulus.stall = "none"
            outcome = run_stimulus(board, stimulus, timeout, drain)
            found: list[Mismatch] = check(
                stimulus, outcome.outputs, design.outputs, outcome.cycles_of
            )
            if outcome.failure is None and not found:
                found = compare_memories(stimulus, outcome)
            # The cable decides when a beat leaves, so its cycle says nothing.
            found = [dataclasses.replace(mismatch, cycle=None) for mismatch in found]
            add(result, stimulus, "none", outcome, found, formula=False)
        repairs = board.link.repairs
        if repairs.resent or repairs.damaged:
            result.notes.append(
                f"The line: {repairs.resent} requests sent again, {repairs.damaged} frames from "
                "the board damaged; all made good."
            )
    result.wall_s = round(time.monotonic() - started, 3)
    return result
