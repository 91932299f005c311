"""Testbench of the scoreboard: tokens take slots and return them. A transaction is a token."""

import numpy as np
from amaranth.hdl import Shape

from golden.topick.cycles import scoreboard_cycles
from golden.topick.scoreboard import Scoreboard
from golden.trace import Trace
from hw.topick.scoreboard import ScoreboardParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.operands import to_fp16, vectors_by_name
from sim.testbenches.strategies import sometimes

MOST = 3  # entries that a token parks


class ScoreboardTestbench:
    def default_vectors(self, parameters: ScoreboardParameters) -> int:
        return 200

    def stimulus(
        self, parameters: ScoreboardParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        return Tokens(parameters, vectors, rng).stimulus(*_entries(parameters, trace, vectors, rng))


testbench = ScoreboardTestbench()


class Tokens:
    """A random interleaving of tokens that park and read entries and return their slots.

    A token parks 0 to 3 entries. Each entry is read after it was parked and before the slot's next
    write; reads of different slots are in any order.
    """

    def __init__(self, p: ScoreboardParameters, count: int, rng: np.random.Generator):
        self.parameters = p
        board = Scoreboard(p.entries)
        self.held = []  # slot, first and last write
        self.taken: list[int] = []
        self.writes: list[tuple[int, int]] = []  # slot, whether it parks
        self.reads: list[tuple[int, int]] = []  # slot, number of the entry
        self.owners: list[int] = []  # token of each read
        # Token, slot, entries left to park, entry parked and not yet read.
        in_flight: list[list] = []
        begun = parked = 0
        most_in_flight = int(rng.integers(1, p.entries + 1))
        while begun < count or in_flight:
            if begun < count and board.free and len(in_flight) < most_in_flight:
                slot = board.take()
                self.taken.append(slot)
                self.held.append((slot, len(self.writes), len(self.writes)))
                in_flight.append([begun, slot, int(rng.integers(0, MOST + 1)), None])
                begun += 1
                if sometimes(rng, 0.7):
                    continue
            number = int(rng.integers(len(in_flight)))
            token, slot, left, waits = state = in_flight[number]
            if waits is not None:
                board.read(slot)
                self.reads.append((slot, waits))
                self.owners.append(token)
                state[3] = None
            elif left:
                board.park(slot, None)
                self.writes.append((slot, 1))
                state[2:] = left - 1, parked
                parked += 1
            else:
                board.free_slot(slot)
                self.writes.append((slot, 0))
                self.held[token] = (slot, self.held[token][1], len(self.writes))
                in_flight.pop(number)
        self.entries = parked
        # All slots are offered again in the end.
        self.offered = self.taken + [board.take() for _ in range(p.entries)]

    def stimulus(self, entries: dict[str, np.ndarray], notes: list[str]) -> Stimulus:
        p = self.parameters
        writes, reads = np.array(self.writes), np.array(self.reads).reshape(-1, 2)
        parked = np.cumsum(writes[:, 1]) - 1
        parts = {
            f"entry.{name}": np.where(
                writes[:, 1] == 1, np.resize(values, self.entries + 1)[parked], 0
            )
            for name, values in entries.items()
        }
        fields = {"slot": writes[:, 0], "park": writes[:, 1]}
        found = {name: np.resize(v, self.entries + 1)[reads[:, 1]] for name, v in entries.items()}
        slot = Shape.cast(p.slot)
        return Stimulus(
            inputs={
                "read": payload.pack(slot, {"payload": reads[:, 0]}),
                "write": payload.pack(p.write_layout, fields | parts),
            },
            outputs={
                "free": payload.pack(slot, {"payload": np.array(self.offered)}),
                "entry": payload.pack(p.entry_layout, found),
            },
            transaction_of={
                "free": np.minimum(np.arange(len(self.offered)), len(self.taken) - 1),
                "entry": np.array(self.owners, np.int64),
            },
            transactions=len(self.taken),
            cycles=scoreboard_cycles(
                self.writes,
                [slot for slot, _ in self.reads],
                len(self.offered),
                entries=p.entries,
            ),
            notes=notes,
        )


def _entries(
    p: ScoreboardParameters, trace: Trace | None, count: int, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Bits of entries by field, and notes on what was done to the trace."""
    widths = {"score": p.score_bits, "shift": p.shift_bits, "significand": p.precision}
    if trace is None:
        found = {
            name: rng.integers(0, 1 << bits, MOST * count + 1) for name, bits in widths.items()
        }
        return found, []
    arrays = vectors_by_name(trace)
    name = next(iter(arrays))
    half, _ = to_fp16("", arrays[name][: count + 1])
    bits = np.ascontiguousarray(half).view(np.uint16).ravel().astype(np.int64)
    found = {
        field: np.roll(bits, number) & ((1 << width) - 1)
        for number, (field, width) in enumerate(widths.items())
    }
    return found, [f"Entries are bits of {name} as FP16, cut, repeated where there are too few."]
