"""Testbench of the scoreboard: tokens that come and go. A transaction is a token."""

import numpy as np
from amaranth.hdl import Shape

from golden.topick.scoreboard import Scoreboard
from golden.trace import Trace
from hw.topick.scoreboard import ScoreboardParameters
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.operands import to_fp16, vectors_by_name

MOST = 3  # entries that a token parks


class ScoreboardTestbench:
    def default_vectors(self, parameters: ScoreboardParameters) -> int:
        return 200

    def stimulus(
        self, parameters: ScoreboardParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        return Tokens(parameters, vectors, rng).stimulus(*_entries(parameters, trace, vectors, rng))

    def picture(self, parameters: ScoreboardParameters, trace: Trace, figure) -> str:
        """Which token has which slot, and how long."""
        tokens = Tokens(parameters, 3 * parameters.entries, np.random.default_rng(1))
        ax = figure.subplots()
        for token, (slot, begin, end) in enumerate(tokens.held):
            ax.plot([begin, end], [slot, slot], f"C{token % 10}", lw=2)
        ax.set_xlabel("parking or giving back, in their order")
        ax.set_ylabel("slot")
        return f"Slots of {len(tokens.held)} tokens: each goes to the next token that waits."


testbench = ScoreboardTestbench()


class Tokens:
    """An order in which tokens park, read and give back.

    A token parks 0 to 3 entries. Entries are read after they were parked, before the slot's next
    use, in an order of their own.
    """

    def __init__(self, p: ScoreboardParameters, count: int, rng: np.random.Generator):
        self.parameters = p
        board = Scoreboard(p.entries)
        self.held = []  # slot, first and last write
        self.taken: list[int] = []
        self.writes: list[tuple[int, int]] = []  # slot, whether it parks
        self.reads: list[tuple[int, int]] = []  # slot, number of the entry
        self.owners: list[int] = []  # token of each read
        under_way = []  # token, slot, entries left to park, entry that was parked and not read
        begun = parked = 0
        timeout_cycles = int(rng.integers(1, p.entries + 1))
        while begun < count or under_way:
            if begun < count and board.free and len(under_way) < timeout_cycles:
                slot = board.take()
                self.taken.append(slot)
                self.held.append((slot, len(self.writes), len(self.writes)))
                under_way.append([begun, slot, int(rng.integers(0, MOST + 1)), None])
                begun += 1
                if rng.random() < 0.7:
                    continue
            number = int(rng.integers(len(under_way)))
            token, slot, left, waits = state = under_way[number]
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
                board.give_back(slot)
                self.writes.append((slot, 0))
                self.held[token] = (slot, self.held[token][1], len(self.writes))
                under_way.pop(number)
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
            cycles=self.cycles(),
            notes=notes,
        )

    def cycles(self) -> int:
        """Cycles when nothing stalls: reads, writes and free slots each in their order, one a
        cycle, and each waits for what it needs."""
        p = self.parameters
        full = [False] * p.entries
        given = returned = write = read = cycle = entry = 0
        while given < len(self.offered) or read < len(self.reads) or write < len(self.writes):
            now = list(full)
            waiting = returned - max(0, given - p.entries)  # in the queue of those that came back
            given += given < p.entries or waiting > 0
            if read < len(self.reads) and now[self.reads[read][0]]:
                full[self.reads[read][0]] = False
                read += 1
                entry = cycle + 1
            if write < len(self.writes):
                slot, parks = self.writes[write]
                if parks and not now[slot]:
                    full[slot] = True
                    write += 1
                elif not parks and waiting < p.entries:
                    returned += 1
                    write += 1
            cycle += 1
        return max(cycle, entry + 1)


def _entries(
    p: ScoreboardParameters, trace: Trace | None, count: int, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Bits of entries by field, and what was done to the trace."""
    widths = {"score": p.score_bits, "depth": p.depth_bits, "significand": p.precision}
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
