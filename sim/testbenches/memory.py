"""The memory behind a block's port of :class:`hw.stream.memory_port.MemoryPort`."""

import numpy as np

from sim.core.memory import Memory

NAME = "memory"
"""Name of a block's memory."""


def memory_of(
    contents: np.ndarray,
    after: np.ndarray | None = None,
    *,
    written: bool = True,
    number: int | None = None,
    in_order: bool = False,
) -> Memory:
    """The memory of the ports ``request`` and ``response``.

    contents, after, in_order
        As :class:`sim.core.memory.Memory`'s.
    written
        The block's requests may write.
    number
        Number of the port, where there are several.
    """
    suffix = "" if number is None else f"__{number}"
    return Memory(
        contents,
        f"request{suffix}",
        f"response{suffix}",
        write="write" if written else None,
        write_data="data" if written else None,
        in_order=in_order,
        after=after,
    )
