"""Addresses of tables in a memory of rows."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Region:
    """Rows of a table in the memory, one part for each head or kv head.

    base
        Address of the first part.
    rows
        Number of rows of each part.
    parts
        Heads or kv heads.
    """

    base: int
    rows: int
    parts: int

    @property
    def stride_bits(self) -> int:
        """Parts are 2^stride_bits rows apart."""
        return (self.rows - 1).bit_length()

    @property
    def end(self) -> int:
        return self.base + (self.parts << self.stride_bits)

    def address_of(self, part, row):
        """Address of a row, of integers or of hardware values."""
        return self.base + (part << self.stride_bits) + row


def place_regions(sizes: dict[str, tuple[int, int]]) -> dict[str, Region]:
    """Tables one after another, of their numbers of rows and of parts."""
    found: dict[str, Region] = {}
    end = 0
    for name, (rows, parts) in sizes.items():
        found[name] = Region(end, rows, parts)
        end = found[name].end
    return found
