"""Sizes of the core that follow from its parameters, and payloads of its streams."""

import dataclasses
import functools

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from hw.layout import FLAG, FixedPoint, Integer, count, index, integer, position
from hw.topick.lane_layouts import sums_layout
from hw.topick.pe_lane import PeLaneParameters


class CoreLayouts:
    """For the parameters of :class:`hw.topick.topick_core.TopickCore`."""

    d: int
    bits: int
    chunk_bits: int
    scale_bits: int
    shift_bits: int
    fraction: int
    threshold_bits: int
    lanes: int
    lanes_per_head: int
    tokens: int
    heads: int
    kv_heads: int
    contexts: int
    block: int

    @property
    def groups(self) -> int:
        """Heads that run side by side."""
        return self.lanes // self.lanes_per_head

    @property
    def rows(self) -> int:
        """Tokens of a head in a lane, at most."""
        return self.tokens // self.lanes_per_head

    @property
    def probability_bits(self) -> int:
        """Fraction bits of a probability: log2(tokens) + 7, or a value's bits if they are more.

        The roundings of all of a head's probabilities then add up to 2^-8 at most.
        """
        return max(self.bits - 1, self.tokens.bit_length() + 6)

    @property
    def row_bits(self) -> int:
        return self.rows.bit_length() - 1

    @property
    def share_bits(self) -> int:
        """Bits of a token's number that name its lane."""
        return self.lanes_per_head.bit_length() - 1

    def group_of(self, kv_head: int, context: int = 0) -> int:
        """Group of lanes that has a kv head's rows and queries.

        A kv head is pruned alike in most texts; so each context has it in another group, that no
        lane has the most work of every command.
        """
        return (kv_head + context) % self.groups

    @property
    def kv_heads_of_lane(self) -> int:
        """Of a context in a lane's memory, at most."""
        return -(-self.kv_heads // self.groups)

    @functools.cached_property
    def lane(self) -> PeLaneParameters:
        names = [f.name for f in dataclasses.fields(PeLaneParameters)]
        same = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return PeLaneParameters(**same, token_bits=self.row_bits, whole=self.block > 1, waits=False)

    @functools.cached_property
    def command_layout(self) -> data.StructLayout:
        """One token of a sequence, or a block of them.

        ``tokens``: of the sequence, the new one included. ``heads``, and how many of them, the
        ``group``, share a kv head. ``threshold``: as in the lane's command. ``block``: how many of
        the tokens are new; with more than 1 the threshold is not looked at. ``context``: whose
        rows, if there are several.
        """
        heads = count(range(self.heads + 1))
        return data.StructLayout(
            {
                "tokens": count(range(self.tokens + 1)),
                "heads": heads,
                "group": heads,
                "threshold": FixedPoint(unsigned(self.threshold_bits), self.fraction),
            }
            | ({"block": count(range(self.block + 1))} if self.block > 1 else {})
            | self.context_field
        )

    @property
    def context_field(self) -> dict:
        """The context of a command, of a query and of what it outputs, if there are several."""
        return {"context": index(range(self.contexts))} if self.contexts > 1 else {}

    @functools.cached_property
    def row_layout(self) -> data.ArrayLayout:
        """Codes of a row of K or V."""
        return data.ArrayLayout(integer(signed(self.bits)), self.d)

    @functools.cached_property
    def query_layout(self) -> data.StructLayout:
        """Codes of a query, and its scale, see :mod:`hw.topick.scores`."""
        return data.StructLayout(
            {
                "q": self.row_layout,
                "mantissa": integer(self.scale_bits),
                "shift": integer(self.shift_bits),
            }
        )

    @property
    def head_index(self) -> Integer:
        """Number of a query head; a bit at least, as Verilog has no wires of zero width."""
        return index(range(max(2, self.heads)))

    @property
    def kv_head_index(self) -> Integer:
        """Number of a kv head in its lane, of all contexts' there."""
        return index(range(max(2, self.contexts * self.kv_heads_of_lane)))

    @functools.cached_property
    def head_layout(self) -> data.StructLayout:
        """A query with its margins; ``head``, ``kv_head`` of the lane, of a block the query's
        ``token``, and where there are contexts its own and its command's numbers."""
        command = {name: field.shape for name, field in self.lane.command_layout}
        names = "q", "mantissa", "shift", "most", "least"
        return data.StructLayout(
            {
                "head": self.head_index,
                "kv_head": self.kv_head_index,
                **{name: command[name] for name in names},
                **self.token_field,
                **self.command_fields,
            }
        )

    @property
    def command_fields(self) -> dict:
        """What a query brings along where queries of several commands wait at the same time."""
        command = {name: field.shape for name, field in self.command_layout}
        names = ("tokens", "threshold", "context") if self.contexts > 1 else ()
        return {name: command[name] for name in names}

    @property
    def token_field(self) -> dict:
        """The token of a query, if a command may have several."""
        return {"token": position(range(self.tokens))} if self.block > 1 else {}

    @functools.cached_property
    def label_layout(self) -> data.StructLayout:
        """Whose query it is: its ``head``, and its ``token`` and ``context`` if they vary."""
        return data.StructLayout({"head": self.head_index} | self.token_field | self.context_field)

    @functools.cached_property
    def sum_layout(self) -> data.StructLayout:
        """Sums of all lanes of a head."""
        return sums_layout(self.probability_bits, self.bits, self.d, self.share_bits)

    @functools.cached_property
    def head_output_layout(self) -> data.StructLayout:
        """A ``head``'s sums, in units of 2^-probability_bits: ``o`` of p times V's codes, ``total``
        of p. Attention is o / total. ``token`` of the query, if a command may have several, and its
        ``context``."""
        fields = {name: field.shape for name, field in self.sum_layout}
        label = {name: field.shape for name, field in self.label_layout}
        return data.StructLayout(fields | label)

    @functools.cached_property
    def output_layout(self) -> data.StructLayout:
        """The same, and ``last`` of the command."""
        fields = {name: field.shape for name, field in self.head_output_layout}
        return data.StructLayout(fields | {"last": FLAG})

    @functools.cached_property
    def report_layout(self) -> data.StructLayout:
        """A token's last decision.

        ``head``; ``token``; ``chunk``: the last one of its key that was read; ``kept``: otherwise
        it is pruned; ``last`` of the head in this lane. ``error``: no decision, but a command was
        refused; lane 0 reports it, with 0 in all other fields. ``context``, if there are several.
        """
        return data.StructLayout(
            {
                "head": self.head_index,
                "token": position(range(self.tokens)),
                "chunk": index(range(self.lane.chunks)),
                "kept": FLAG,
                "last": FLAG,
                "error": FLAG,
            }
            | self.context_field
        )
