"""Progress of long work, on standard error."""

from collections.abc import Iterable

from tqdm import tqdm


def counted(count: int, label: str, shown: bool) -> Iterable[int]:
    """The numbers below `count`, with a bar if `shown`."""
    return tqdm(range(count), desc=label, disable=not shown)
