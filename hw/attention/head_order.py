"""The order of a step's query heads, which share kv heads in groups."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from hw.component import Component
from hw.layout import FLAG, count, index
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class HeadOrderParameters(Parameters):
    """
    heads
        Number of query heads of a step, at most.
    kv_heads
        Number of kv heads of a step, at most.
    parallel
        Number of query heads of a kv head that are computed at the same time, at most.
    ahead
        Number of query heads whose rows of K are read before rows of V, at most, though of one
        batch at least.
    tokens
        Number of tokens of a step, at most: a block of a prompt, which each head attends to in one
        batch.
    """

    heads: int = 9
    kv_heads: int = 3
    parallel: int = 1
    ahead: int = 0
    tokens: int = 1

    def __post_init__(self):
        require(self.heads >= 1, "heads must be at least 1", self.heads)
        require(1 <= self.kv_heads <= self.heads, "kv_heads must be 1 to heads", self.kv_heads)
        require(1 <= self.parallel <= self.heads, "parallel must be 1 to heads", self.parallel)
        require(0 <= self.ahead <= self.heads, "ahead must be 0 to heads", self.ahead)
        require(self.tokens >= 1, "tokens must be at least 1", self.tokens)

    @property
    def head_bits(self) -> int:
        """Width of a kv head's index."""
        return max(1, (self.kv_heads - 1).bit_length())

    @cached_property
    def step_layout(self) -> data.StructLayout:
        """``heads`` of a step, ``group`` of them on each kv head, the last one perhaps fewer; the
        step's ``tokens`` if there may be several."""
        number = count(range(self.heads + 1))
        return data.StructLayout({"heads": number, "group": number} | self.tokens_field)

    @property
    def tokens_field(self) -> dict:
        """The field ``tokens``, if there may be several."""
        return {"tokens": count(range(self.tokens + 1))} if self.tokens > 1 else {}

    @cached_property
    def batch_layout(self) -> data.StructLayout:
        """``heads`` of a `kv_head` at the same time, ``final`` of it, ``last`` of the step."""
        fields = {"kv_head": index(self.head_bits), "heads": count(range(self.parallel + 1))}
        return data.StructLayout(fields | {"final": FLAG, "last": FLAG})

    def fits(self, heads: int, group: int, tokens: int = 1) -> bool:
        """Whether a step has at least one head and one token, and no more heads, kv heads or tokens
        than there are."""
        return 1 <= heads <= min(self.heads, self.kv_heads * group) and 1 <= tokens <= self.tokens

    def misfits(self, command) -> Value:
        """The same in hardware: whether fields of a command do not fit."""
        heads, group = command.heads, command.group
        # Rows of more kv heads than there are would be beyond the memory.
        misfits = (heads == 0) | (heads > self.heads) | (heads > group * self.kv_heads)
        if self.tokens > 1:
            misfits |= (command.tokens == 0) | (command.tokens > self.tokens)
        return misfits

    def batches(self, heads: int, group: int) -> list[int]:
        """Heads of each batch of a step, in order."""
        found = []
        for first in range(0, heads, group):
            remaining = min(group, heads - first)
            found += [min(self.parallel, remaining - n) for n in range(0, remaining, self.parallel)]
        return found

    def turns(self, heads: int, group: int) -> list[int]:
        """Heads whose K is read before their V, in order of a step's turns from K to V."""
        found: list[int] = []
        for batch in self.batches(heads, group):
            if found and found[-1] + batch <= self.ahead:
                found[-1] += batch
            else:
                found.append(batch)
        return found


class HeadOrder(Component[HeadOrderParameters]):
    """Go through the kv heads of a step, and through the batches of query heads of each.

    A batch is up to `parallel` heads of one kv head. With ``whole`` it is all heads of a kv head,
    whose number is then not stated.

    Latency: 1 cycle from a step to its first batch. Throughput: a batch a cycle; the next step is
    accepted with the last batch.
    """

    def ports(self) -> Ports:
        p = self.parameters
        number = count(range(p.heads + 1))
        step = {"heads": number, "group": number, "whole": FLAG}
        return {
            "i": stream_in(
                data.StructLayout(step), "Steps, which fit (:meth:`HeadOrderParameters.fits`)."
            ),
            "o": stream_out(p.batch_layout, "Batches."),
        }

    def elaborate(self, platform):
        m = Module()
        p, step, batch = self.parameters, self.i.payload, self.o.payload
        group = Signal(range(p.heads + 1), reset_less=True)
        # Registers of the step, counted down: no division by the group's size is needed.
        whole = Signal(reset_less=True)
        remaining = Signal(range(p.heads + 1), reset_less=True)  # heads of the step
        of_group = Signal(range(p.heads + 1), reset_less=True)  # heads of the kv head, or more
        kv_head = Signal(p.head_bits, reset_less=True)
        shared = Signal.like(remaining)
        taken = Signal.like(remaining)
        m.d.comb += [
            # The last kv head's group may be smaller than the others.
            shared.eq(Mux(of_group < remaining, of_group, remaining)),
            # A batch has the heads that share a kv head's rows, as many as there are lanes for.
            taken.eq(Mux(whole | (shared < p.parallel), shared, p.parallel)),
            batch.kv_head.eq(kv_head),
            batch.heads.eq(taken),
            batch.final.eq(taken == shared),
            batch.last.eq(taken == remaining),
            self.i.ready.eq(~self.o.valid | (self.o.ready & batch.last)),
        ]
        # Count down the heads of the step and of the kv head.
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [
                self.o.valid.eq(~batch.last),
                remaining.eq(remaining - taken),
                of_group.eq(of_group - taken),
            ]
            # The next kv head's group begins.
            with m.If(batch.final):
                m.d.sync += [of_group.eq(group), kv_head.eq(kv_head + 1)]
        # A step may be accepted in the cycle in which the last batch leaves: no cycle is lost
        # between steps. This comes last, as its assignments override the counting above.
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                self.o.valid.eq(1),
                whole.eq(step.whole),
                group.eq(step.group),
                of_group.eq(step.group),
                remaining.eq(step.heads),
                kv_head.eq(0),
            ]
        return m
