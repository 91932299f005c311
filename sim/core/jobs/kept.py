"""Results of long computations, kept in the build folder.

The key of a result is a hash of the function's name, its arguments, the project's sources and the
versions of all tools.
"""

import functools
import hashlib
import importlib.metadata
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden.files import replacing
from sim.core.tools import ROOT, build_folder, versions


def _files(sources: tuple[str, ...]) -> list[Path]:
    found = []
    for path in (ROOT / name for name in sources):
        found += [path] if path.is_file() else sorted(path.rglob("*.*"))
    return [path for path in found if path.suffix != ".pyc" and path.is_file()]


def _stamp(sources: tuple[str, ...]) -> list[tuple]:
    """What changes when a source is edited."""
    return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in _files(sources)]


@functools.cache
def tools() -> str:
    """Versions of all tools and packages.

    Not of this project, whose files are hashed: a checkout in which a wheel was made has one.
    """
    found = {(d.name, d.version) for d in importlib.metadata.distributions()}
    packages = sorted(entry for entry in found if entry[0] != "senbazuru")
    return repr((versions().replace(sys.prefix, ""), packages))


def digest(sources: tuple[str, ...]) -> str:
    """Hash of the versions of all tools and of the repository's files and folders `sources`."""
    content = hashlib.sha256(tools().encode())
    for path in _files(sources):
        content.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


# Computed once: a process keeps the sources that it imported, even if the files change later.
digest_once = functools.cache(digest)


class Results:
    """Results that depend on some sources.

    sources
        Files and folders of the repository.
    digest
        :func:`digest` of them when this process first computed it.
    """

    def __init__(self, sources: tuple[str, ...]) -> None:
        self.sources, self.digest, self._stamp = sources, digest_once(sources), _stamp(sources)

    def load(self, function: Callable, arguments: tuple) -> Any:
        """The result of a call that an earlier run has kept, or None."""
        path = self._path(function, arguments)
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def store(self, function: Callable, arguments: tuple, result: Any) -> None:
        """Keep a call's result, unless the sources were edited since: which it used is unknown."""
        if _stamp(self.sources) == self._stamp:
            path = self._path(function, arguments)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(pickle.dumps(result))

    def _path(self, function: Callable, arguments: tuple) -> Path:
        name = f"{function.__module__}.{function.__qualname__}"
        key = hashlib.sha256(repr((name, arguments, self.digest)).encode()).hexdigest()[:32]
        return build_folder() / "results" / f"{name}_{key}.pickle"
