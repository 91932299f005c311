"""The work of VEDA's core, for its formula of cycles."""

from typing import Any, NamedTuple


class StepWork(NamedTuple):
    """The work of a step, for :meth:`VedaCoreParameters.cycles`.

    slots
        Live slots, the new one included.
    heads, group
        Number of query heads, and of those that share a kv head.
    votes, evictions
        Whether the step casts votes, of a block for each token; number of slots evicted at its end.
    context
        Its context.
    """

    slots: int
    heads: int
    group: int
    votes: bool | tuple[bool, ...]
    evictions: int
    context: int = 0

    @property
    def tokens(self) -> int:
        return len(self.votes) if isinstance(self.votes, tuple) else 1

    @property
    def lengths(self) -> range:
        """Number of rows that each token attends to."""
        return range(self.slots - self.tokens + 1, self.slots + 1)


class ProductWork(NamedTuple):
    """The work of a matrix product, for :meth:`VedaCoreParameters.cycles`.

    rows, vectors, blocks
        Elements of a vector, number of vectors, blocks of d columns.
    norm
        Whether the vectors are normalised first.
    """

    rows: int
    vectors: int
    blocks: int
    norm: bool


class MovedWork(NamedTuple):
    """Work before which a context's state is moved.

    work
        A :class:`StepWork`, an :class:`OverflowWork`, or None for another refused command.
    old, stored
        The context whose state is written first, and its slots used; None where no context leaves.
    fetched
        Slots used of the context whose state is read; None if it has none in the memory.
    """

    work: Any
    old: int | None
    stored: int | None
    fetched: int | None


class OverflowWork(NamedTuple):
    """A block that is refused because its ``context`` has too few slots free.

    That is known when the steps of the context have been reported.
    """

    context: int
