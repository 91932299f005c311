"""Bit-exact model of the row manager: rows in use, and rows to evict."""


class RowManager:
    """The rows of one context; ``used``, how many are in use, is for reading."""

    def __init__(self, rows: int) -> None:
        self.rows, self.used = rows, 0

    @property
    def full(self) -> bool:
        """All rows are in use: the next call consumes a row to evict."""
        return self.used == self.rows

    def take(self, evict: int | None = None) -> tuple[int, bool, bool]:
        """The row for a new token, whether it was in use, and :attr:`full`.

        evict
            The row to evict, if `full`.
        """
        if self.full:
            assert evict is not None, "no row to evict is known"
            return evict, True, True
        self.used += 1
        return self.used - 1, False, self.full

    def clear(self) -> None:
        self.used = 0
