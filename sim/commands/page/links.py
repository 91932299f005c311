"""Links from the page to files of the checkout."""

import os
from pathlib import Path

from sim.core.tools import ROOT


class Links:
    """Relative links from a folder, in which the page is, to the checkout's files."""

    def __init__(self, folder: Path):
        self._folder = folder.resolve()

    def to(self, path: str) -> str:
        """A link to a file of the checkout, with or without an anchor, as ``docs/kllm.md#area``.

        :raises FileNotFoundError: if there is no such file.
        """
        name, mark, anchor = path.partition("#")
        (ROOT / name).stat()
        return Path(os.path.relpath(ROOT / name, self._folder)).as_posix() + mark + anchor
