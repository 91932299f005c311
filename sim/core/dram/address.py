"""Where a line lies in a DRAM: channel, bank, row and column of its number."""

import dataclasses

from hw.parameters import require
from sim.core.dram.standards import Standard

FIELDS = ("channel", "rank", "group", "bank", "row", "column")
RULE = (
    "map must name row, bank, column and channel once each, most significant first, and may name "
    "rank and group, as row:bank:column:channel"
)


@dataclasses.dataclass(frozen=True)
class AddressMap:
    """Fields of a line's number, and whether they are hashed.

    fields
        Name, first bit and width of each field, in the order of FIELDS. Bits above all fields are
        ignored: addresses wrap at the capacity.
    hashed
        The bank is XORed with the row, and the channel with row and bank, each folded to its
        width, so that streams whose bases are powers of two apart meet in different banks and
        channels. Lines that share a row still do.
    """

    fields: tuple[tuple[str, int, int], ...]
    hashed: bool

    @classmethod
    def from_text(cls, text: str, standard: Standard, hashed: bool = False) -> "AddressMap":
        """A map as typed, most significant field first; `rank` and `group` default to `bank`'s.

        :raises ParameterError: for an unknown, a missing or a repeated field.
        """
        names = text.split(":")
        require(set(names) <= set(FIELDS) and len({*names}) == len(names), RULE, text)
        require({"row", "bank", "column", "channel"} <= set(names), RULE, text)
        place = names.index("bank")
        if "rank" not in names:
            names.insert(place, "rank")
        if "group" not in names:
            names.insert(names.index("bank") + 1, "group")
        counts = {
            "channel": standard.channels,
            "rank": standard.ranks,
            "group": standard.groups,
            "bank": standard.banks,
            "row": standard.rows,
            "column": standard.columns,
        }
        first, places = 0, {}
        for name in reversed(names):
            width = counts[name].bit_length() - 1
            places[name] = (name, first, width)
            first += width
        return cls(tuple(places[name] for name in FIELDS), hashed)

    def numbers(self) -> list[int]:
        """First bit and width of each field, and whether they are hashed, for the harness."""
        return [n for _, first, width in self.fields for n in (first, width)] + [int(self.hashed)]

    def locate(self, line: int) -> tuple[int, int, int]:
        """Channel, bank among all of the channel's, and row of a line.

        The bank's number has the rank in its top bits, then the group.
        """
        (_, cf, cw), (_, rf, rw), (_, gf, gw), (_, bf, bw), (_, of, ow), _ = self.fields
        channel = line >> cf & (1 << cw) - 1
        rank = line >> rf & (1 << rw) - 1
        group = line >> gf & (1 << gw) - 1
        bank = line >> bf & (1 << bw) - 1
        row = line >> of & (1 << ow) - 1
        bank |= (rank << gw | group) << bw
        if self.hashed:
            channel ^= _fold(row, cw) ^ _fold(bank, cw)
            bank ^= _fold(row, rw + gw + bw)
        return channel, bank, row


def _fold(value: int, width: int) -> int:
    """XOR of the value's parts of `width` bits."""
    folded = 0
    while value and width > 0:
        folded ^= value & (1 << width) - 1
        value >>= width
    return folded
