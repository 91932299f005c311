"""Output: a file whole or not at all, and JSON that every reader takes."""

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that takes its place when the block ends well.

    Readers of ``path`` see the old file or the new one, never a part. When the block raises, even
    by an interrupt or a full disk, the temporary is removed and ``path`` stays as it was. Raises
    ``OSError``, naming ``path``, when the folder is missing or full or cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        # Writes name no file, and the temporary's name would tell the reader nothing.
        if isinstance(error, OSError) and error.filename in (None, name):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise


def check_writable(path: str | os.PathLike) -> None:
    """Raise ``OSError``, naming the path at fault, if a file or folder could not be made there.

    Found out before work whose result it shall hold; nothing is created.
    """
    path = Path(path)
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if there != path and not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    folder = there if there.is_dir() else there.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def json_text(value, **options) -> str:
    """JSON in which a number that is infinite or no number is null: JSON has neither."""
    return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _umask() -> int:
    """The process's file mode mask; the system only tells it by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
