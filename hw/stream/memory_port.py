"""A memory's port, in the same words for every block: rows requested, and the rows read."""

import dataclasses
from functools import cached_property
from typing import Any

from amaranth.lib import data

from hw.layout import FLAG, address
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryPort:
    """Payloads of a memory's port.

    A write is complete when its request is accepted, and has no response. Its tag has no meaning.

    tag
        Shape of a request's tag, which returns with the row read.
    address_width
        Width of a row's address.
    row
        Shape of a row.
    """

    tag: Any
    address_width: int
    row: Any

    @cached_property
    def read_layout(self) -> data.StructLayout:
        """``tag`` and ``address`` of a row to read."""
        return data.StructLayout({"tag": self.tag, "address": address(self.address_width)})

    @cached_property
    def request_layout(self) -> data.StructLayout:
        """``tag`` and ``address`` of a row to read, or to ``write`` with ``data``."""
        fields = {name: field.shape for name, field in self.read_layout}
        return data.StructLayout(fields | {"write": FLAG, "data": self.row})

    @cached_property
    def response_layout(self) -> data.StructLayout:
        """``tag`` of the request and the row's ``data``."""
        return data.StructLayout({"tag": self.tag, "data": self.row})

    def ports(self, reads_only: bool = False) -> Ports:
        """``request`` and ``response`` of a block with this memory."""
        words = "" if reads_only else " A write is complete when the request is accepted."
        layout = self.read_layout if reads_only else self.request_layout
        return {
            "request": stream_out(layout, f"To the memory.{words}"),
            "response": stream_in(self.response_layout, "Rows read, in any order."),
        }
