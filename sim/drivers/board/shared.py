"""One board for the sessions of many layers: it holds the state of one of them at a time."""

import dataclasses
import threading

import numpy as np

from sim.core.design import Design
from sim.core.memory import Memory, MemoryTiming, MemoryUse
from sim.core.stimulus import Outcome
from sim.drivers.board.board import Board, BoardWasReset
from sim.drivers.board.session import BoardSession
from sim.drivers.harness.session import Session


@dataclasses.dataclass(frozen=True, eq=False)
class DesignOnBoard(Design):
    """A design whose sessions run on a board."""

    shared: "SharedBoard | None" = None

    @classmethod
    def of(cls, design: Design, board: Board) -> "DesignOnBoard":
        fields = {f.name: getattr(design, f.name) for f in dataclasses.fields(design)}
        return cls(**fields, shared=SharedBoard(board))


class SharedBoard:
    """Gives the board to one session after another."""

    def __init__(self, board: Board):
        self.board = board
        self.owner: LayerSession | None = None
        self.lock = threading.Lock()
        self.replayed = 0
        """Steps that were run again, as another session had used the board since."""


@dataclasses.dataclass(frozen=True)
class _Step:
    """What a session gave the board in one step.

    patches
        Memory, first row and ``uint32[rows, words]``, written before the beats.
    """

    patches: list[tuple[str, int, np.ndarray]]
    inputs: dict[str, np.ndarray]
    expected: dict[str, int]


class LayerSession:
    """A :class:`sim.drivers.harness.session.Session` on a board that others use too.

    State, such as a core's votes, is on the board. After another session's step it is made again:
    reset, then all steps so far, whose outputs were compared when they were first run.

    contents
        Rows of each memory as the host wrote them, by name; changes reach the board in the next
        step, the design's own writes do not reach them.
    """

    def __init__(self, design: DesignOnBoard, memories: dict[str, Memory]):
        assert design.shared is not None
        self._design, self._shared = design, design.shared
        self._memories = memories
        self._steps: list[_Step] = []
        self._session: BoardSession | None = None
        self.contents = {name: np.array(m.contents, np.uint32) for name, m in memories.items()}
        self._written = {name: rows.copy() for name, rows in self.contents.items()}
        self._again: list[tuple[str, int, np.ndarray]] = []

    def step(
        self, inputs: dict[str, np.ndarray], expected: dict[str, int], drain: int = 0
    ) -> Outcome:
        """As a session's; the outcome's cycles are the board's, which waits for the cable.

        A board that is reset meanwhile is taken for one that another session has used.
        """
        step = _Step(self._patches(), inputs, expected)
        with self._shared.lock:
            try:
                outcome = self._after_earlier(step, drain)
            except BoardWasReset:
                self._shared.owner = None
                outcome = self._after_earlier(step, drain)
        self._steps.append(step)
        return outcome

    def write_rows(self, memory: str, first: int, rows: np.ndarray) -> None:
        """As a session's: the rows reach the board though they equal what the host wrote before."""
        part = slice(first, first + len(rows))
        self.contents[memory][part] = self._written[memory][part] = rows
        self._again.append((memory, first, rows.copy()))

    def _after_earlier(self, step: _Step, drain: int) -> Outcome:
        """Run a step, the earlier ones before it if the board has lost them."""
        shared = self._shared
        if self._session is None or shared.owner is not self:
            timeout = self._design.timeout_cycles
            self._session = BoardSession(shared.board, self._memories, timeout)
            shared.owner = self
            for earlier in self._steps:
                self._run(self._session, earlier)
                shared.replayed += 1
        status = self._session.status
        before = status.last if status else 0
        outcome = self._run(self._session, step, drain)
        status = self._session.status
        assert status is not None
        return dataclasses.replace(outcome, cycles=status.last - (before or status.first) + 1)

    @staticmethod
    def _run(session: BoardSession, step: _Step, drain: int = 0) -> Outcome:
        for patch in step.patches:
            session.write_rows(*patch)
        return session.step(step.inputs, step.expected, drain)

    def _patches(self) -> list[tuple[str, int, np.ndarray]]:
        """What changed in `contents` since the last step: from the first such row to the last."""
        patches, self._again = self._again, []
        for name, rows in self.contents.items():
            changed = np.flatnonzero((rows != self._written[name]).any(axis=1))
            if len(changed):
                first, last = changed[0], changed[-1] + 1
                patches.append((name, int(first), rows[first:last].copy()))
                self._written[name][first:last] = rows[first:last]
        return patches

    def uses(self, contents: bool = True) -> dict[str, MemoryUse]:
        """What the memories did; their rows only while the board is still this session's."""
        with self._shared.lock:
            if self._session is None:
                return {}
            return self._session.uses(contents and self._shared.owner is self)

    def close(self) -> None:
        self._session = None


def open_session(
    design: Design, memories: dict[str, Memory], timing: MemoryTiming
) -> Session | LayerSession:
    """A session of a layer, on a board if the design is on one; `timing` is of a simulation."""
    if isinstance(design, DesignOnBoard):
        return LayerSession(design, memories)
    return Session(design, memories, timing)
