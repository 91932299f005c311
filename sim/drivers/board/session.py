"""Steps of a design on a board: beats to its inputs, beats from its outputs, memories served."""

import dataclasses

import numpy as np

from hw.boards.protocol import Operation
from hw.parameters import ParameterError
from sim.core import payload
from sim.core.memory import FASTEST, Memory, MemoryModel, MemoryPort, MemoryUse
from sim.core.stimulus import Outcome
from sim.drivers.board.board import NO_BOARD, Board, Status
from sim.drivers.board.link import BoardError

STATUS, RESET, START = (bytes([op]) for op in (Operation.STATUS, Operation.RESET, Operation.START))


@dataclasses.dataclass
class _Served:
    """A memory whose requests and responses go over the cable."""

    name: str
    memory: Memory
    port: MemoryPort
    model: MemoryModel
    cycle: int = 0

    def answer(self, beats: np.ndarray, response) -> np.ndarray:
        """Responses to packed requests."""
        found = []
        for beat in payload.to_ints(beats):
            tag, address, data = self.port.request(beat)
            self.model.request(self.cycle, tag, address, data)
            self.cycle += 1
            while (due := self.model.response(self.cycle)) is not None:
                found.append(self.port.response(*due))
        return payload.from_ints(found, response)


class BoardSession:
    """A design on a board, reset once, then driven step by step.

    timeout, drain
        Cycles without a transfer after which the block counts as hung, and cycles after the last
        expected beat in which no other may come.

    :raises ParameterError: for a memory of more rows than the board's has.
    """

    def __init__(self, board: Board, memories: dict[str, Memory], timeout: int, drain: int = 0):
        self._board, self._memories = board, memories
        self._timeout, self._drain = timeout, drain
        design = board.design
        self._on_board = {name: m for name, m in memories.items() if m.request in design.memories}
        self._served = {}
        for name, m in memories.items():
            if name not in self._on_board:
                port = m.port(design.outputs, design.inputs)
                model = MemoryModel(m.contents, FASTEST, port.data.width, name)
                self._served[m.request] = _Served(name, m, port, model)
        for name, m in self._on_board.items():
            rows, needed = design.memories[m.request].rows, len(m.contents)
            if needed > rows:
                raise ParameterError(
                    f"{name} has {rows} rows on the board and needs {needed}: --memory-rows "
                    f"{needed}, there and in `python -m hw fpga`, or 0"
                )
        board.do(RESET)
        for m in self._on_board.values():
            board.load(m.request, m.contents)
        board.do(START)
        self.status: Status | None = None

    def step(
        self, inputs: dict[str, np.ndarray], expected: dict[str, int], drain: int | None = None
    ) -> Outcome:
        """Write all beats, ``uint32[beats, words]`` by name, and read until the last expected one.

        Streams left out have none. Cycles of the outcome are the board's, from START on.
        """
        board, design = self._board, self._board.design
        left = {name: inputs.get(name, np.zeros((0, 1), np.uint32)) for name in design.inputs}
        got: dict[str, list[np.ndarray]] = {name: [] for name in design.outputs}
        status = board.status(board.do(STATUS))
        quiet_since, failure = status.cycles, None
        drain = self._drain if drain is None else drain
        while True:
            writes, left = self._writes(status, left)
            reads = self._reads(status)
            reader = board.do(*writes, *(board.read(*read) for read in reads), STATUS)
            for stream, _ in reads:
                beats = board.beats(stream, reader)
                if stream in self._served:
                    served = self._served[stream]
                    response = served.memory.response
                    more = served.answer(beats, design.inputs[response])
                    left[response] = _joined(left[response], more)
                else:
                    got[stream].append(beats)
            before, status = status, board.status(reader)
            if status.cycles <= before.cycles:
                name = board.link.transport.name
                raise BoardError(f"{name}: the board's count of cycles stands still: {NO_BOARD}")
            moved = bool(writes or reads)
            quiet_since = status.cycles if moved else max(quiet_since, status.last)
            counts = {name: sum(map(len, parts)) for name, parts in got.items()}
            waits = any(counts.get(name, 0) < count for name, count in expected.items())
            waits |= any(map(len, left.values()))
            waits |= any(level for level, _ in status.outputs.values())
            quiet = status.cycles - quiet_since
            if not waits and quiet >= drain:
                break
            # What waits in a queue has only not been carried yet.
            idle = not self._reads(status) and not self._writes(status, left)[0]
            if waits and idle and quiet > self._timeout:
                failure = f"no transfer for {quiet} cycles before cycle {status.cycles}"
                break
        if status.fault:
            failure = "a request went beyond the rows of a memory"
        self.status = status
        outputs = {
            name: np.concatenate([np.zeros((0, payload.words(shape)), np.uint32), *got[name]])
            for name, shape in design.outputs.items()
            if name not in self._served
        }
        cycles_of = {name: np.zeros(len(beats), np.int64) for name, beats in outputs.items()}
        cycles = status.last - status.first + 1 if status.first else 0
        return Outcome(outputs, cycles_of, cycles, status.cycles, failure)

    def write_rows(self, memory: str, first: int, rows: np.ndarray) -> None:
        """Write ``uint32[rows, words]`` to a memory, from row `first` on, between two steps."""
        request = self._memories[memory].request
        if memory in self._on_board:
            self._board.load(request, rows, first)
        else:
            self._served[request].model.store(first, rows)

    def _writes(self, status: Status, left: dict) -> tuple[list[bytes], dict]:
        """Operations for as many beats as packet and credits allow, and the beats that remain."""
        board = self._board
        room, operations, remain = board.room - 64, [], dict(left)
        for name, beats in left.items():
            credit = status.inputs[name][0]
            count = min(len(beats), credit, (room - 4) // board.beat_bytes[name])
            if count > 0:
                operations.append(board.write(name, beats[:count]))
                room -= len(operations[-1])
                remain[name] = beats[count:]
        return operations, remain

    def _reads(self, status: Status) -> list[tuple[str, int]]:
        """Outputs to read, and beats that a reply has room for."""
        board = self._board
        room, reads = board.room - board.status_bytes, []
        for name, (level, _) in status.outputs.items():
            count = min(level, (room - 2) // board.beat_bytes[name])
            if count > 0:
                reads.append((name, count))
                room -= 2 + count * board.beat_bytes[name]
        return reads[: 64 // 4]

    def uses(self, contents: bool = True) -> dict[str, MemoryUse]:
        """What each memory did so far, by name; no cycles of its requests are known.

        contents
            Whether to read the rows from the board; none otherwise.
        """
        found, none = {}, np.zeros(0, np.int64)
        for name, m in self._on_board.items():
            bits = self._board.design.memories[m.request].row_bits
            reads, writes = (0, 0) if self.status is None else self.status.memories[m.request]
            rows = np.zeros((0, payload.words(bits)), np.uint32)
            if contents:
                rows = self._board.dump(m.request, len(m.contents))
            found[name] = MemoryUse(rows, bits, reads, writes, none, none)
        return found | {served.name: served.model.use for served in self._served.values()}


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.concatenate([one, other]) if len(one) else other
