"""The cache of generated and compiled designs.

Each use sets an entry's time. An entry that was not used for a month is removed; if the rest is
larger than the limit, the least recently used entries are removed first. An entry used within the
last day is always kept, because another process may be using it.
"""

import dataclasses
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sim.core.tools import ToolError, build_folder, compiled_folder

DAY_S = 86_400
KEPT_S, FORGOTTEN_S = DAY_S, 30 * DAY_S
BETWEEN_S = 3600  # from one automatic pruning to the next
LIMIT = "2G"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A folder or file of the cache.

    used
        When it was last used, in seconds since the epoch.
    size
        Bytes.
    """

    path: Path
    used: float
    size: int


def limit() -> int:
    """Bytes that the cache may keep: ``$SENBAZURU_BUILD_LIMIT``.

    :raises ToolError: if that is no size.
    """
    text = os.environ.get("SENBAZURU_BUILD_LIMIT", LIMIT)
    size = re.fullmatch(r"(\d+)([KMG]?)", text)
    if size is None:
        raise ToolError(f"SENBAZURU_BUILD_LIMIT must be a size such as 500M or 2G, not {text!r}")
    return int(size[1]) * UNITS[size[2]]


def use(entry: Path) -> None:
    """Note that an entry is in use now."""
    os.utime(entry)


def entries() -> Iterator[Entry]:
    """Everything in the cache, including folders that a killed process left unfinished."""
    for folder in (compiled_folder(), build_folder() / "generated"):
        for path in folder.iterdir() if folder.exists() else ():
            try:
                yield Entry(path, path.stat().st_mtime, _size(path))
            except FileNotFoundError:  # another process was faster
                continue


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def prune(most: int, kept_s: float = KEPT_S) -> list[Entry]:
    """Remove old entries, then the least recently used down to `most` bytes; returns them.

    kept_s
        Entries used within this number of seconds are kept in any case.
    """
    found = sorted(entries(), key=lambda entry: entry.used)
    total, now, removed = sum(entry.size for entry in found), time.time(), []
    for entry in found:
        unused = now - entry.used
        if unused > kept_s and (unused > FORGOTTEN_S or total > most) and _remove(entry):
            removed.append(entry)
            total -= entry.size
    return removed


def _remove(entry: Entry) -> bool:
    """Remove an entry in one step, unless another process has used it since."""
    aside = entry.path.with_name(f".removing_{entry.path.name}_{os.getpid()}")
    try:
        if entry.path.stat().st_mtime != entry.used:
            return False
        entry.path.rename(aside)
    except FileNotFoundError:
        return False
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()
    return True


def prune_now_and_then() -> None:
    """Prune, at most once in BETWEEN_S seconds; call it after adding an entry."""
    most, stamp = limit(), compiled_folder() / ".pruned"
    if not stamp.exists() or time.time() - stamp.stat().st_mtime > BETWEEN_S:
        stamp.touch()
        prune(most)
