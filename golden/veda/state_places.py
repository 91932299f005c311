"""Which contexts' state is in VEDA's core, and its words in the memory (VEDA, section V)."""

from typing import NamedTuple

import numpy as np


class Move(NamedTuple):
    """State that is moved before a command.

    old
        The context that leaves its place, or None.
    stored
        The one that comes has state in the memory.
    """

    old: int | None
    stored: bool


class StatePlaces:
    """Contexts in `places`: each in turn gives its context away, but the one of the last command.

    ``stored`` are the contexts with state in the memory.
    """

    def __init__(self, places: int) -> None:
        self._held: list[int | None] = [None] * places
        self._turn = self._latest = 0
        self.stored: set[int] = set()

    def command(self, context: int) -> Move | None:
        """Give the `context` of the next command a place; None if it has one."""
        if context in self._held:
            self._latest = self._held.index(context)
            return None
        place = self._turn
        if place == self._latest:
            place = (place + 1) % len(self._held)
        old, self._held[place] = self._held[place], context
        self._turn, self._latest = (place + 1) % len(self._held), place
        if old is not None:
            self.stored.add(old)
        return Move(old, context in self.stored)


def state_words(
    sequence: tuple[int, int],
    slots: tuple[list[int], np.ndarray, np.ndarray],
    widths: tuple[int, int, int],
    row_bits: int,
) -> np.ndarray:
    """``uint16[rows, row_bits / 16]``: the rows that are written for a context.

    sequence
        Live slots, and the next token.
    slots
        Memory's row of each slot used; count and position of each live slot.
    widths
        Bits of a row's number, of a count, of a position; the number of slots used and live has one
        more than the first.
    """
    length, token = sequence
    rows, counts, positions = slots
    row_width, count_width, position_width = widths
    head = length | len(rows) << row_width + 1 | token << 2 * (row_width + 1)
    words, width = [head], sum(widths)
    per_row = row_bits // width
    for first in range(0, len(rows), per_row):
        word = 0
        for lane, slot in enumerate(range(first, min(first + per_row, len(rows)))):
            value = int(rows[slot])
            if slot < length:
                votes, position = int(counts[slot]), int(positions[slot])
                value |= (votes | position % (1 << position_width) << count_width) << row_width
            word |= value << lane * width
        words.append(word)
    data = b"".join(word.to_bytes(row_bits // 8, "little") for word in words)
    return np.frombuffer(data, np.uint16).reshape(len(words), -1)
