"""Progress of long work, on standard error or to a function."""

from collections.abc import Callable, Iterator

from tqdm import tqdm

Progress = bool | Callable[[str], None]
"""Whether to show a bar on standard error, or a function that is called with a word on each step
that begins."""


def counted(count: int, label: str, unit: str, progress: Progress) -> Iterator[int]:
    """The numbers below `count`, of which each is a `unit` of the work that `label` names."""
    if not callable(progress):
        yield from tqdm(range(count), desc=label, unit=unit, disable=not progress)
        return
    for number in range(count):
        progress(f"{label} {unit} {number + 1} of {count}")
        yield number
