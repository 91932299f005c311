"""Files of tests that passed, with what they read: a record holds as long as that is the same."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from golden.files import replacing
from sim.core.jobs.reads import digest


@dataclasses.dataclass(frozen=True)
class Passed:
    """Hashes of what a file of tests read and of its tests' names, and which files it read."""

    digest: str
    tests: str
    reads: tuple[str, ...]


@dataclasses.dataclass
class Record:
    """The content of a file of JSON.

    seconds
        Wall-clock time of dear tests, by name.
    passed
        What is known of each file of tests that passed, by its name.
    """

    path: Path
    seconds: dict[str, int] = dataclasses.field(default_factory=dict)
    passed: dict[str, "Passed"] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """The record of a file, empty if the file is missing."""
        if not path.exists():
            return cls(path)
        content = json.loads(path.read_text())
        passed = {
            name: Passed(found, tests, tuple(_names(read)))
            for name, (found, tests, read) in content["passed"].items()
        }
        return cls(path, content["seconds"], passed)

    def holds(self, file: str, tests: Iterable[str], hashes: Mapping[str, str], tools: str) -> bool:
        """Whether the file passed with these tests, and with what it reads as it is now."""
        known = self.passed.get(file)
        return known is not None and (known.digest, known.tests) == (
            digest(known.reads, hashes, tools),
            _hash(tests),
        )

    def add(
        self,
        file: str,
        tests: Iterable[str],
        read: Iterable[str],
        hashes: Mapping[str, str],
        tools: str,
    ) -> None:
        """Note that all tests of a file passed."""
        names = tuple(sorted(read))
        self.passed[file] = Passed(digest(names, hashes, tools), _hash(tests), names)

    def save(self) -> None:
        """Write the file, a line for each file of tests."""
        seconds = dict(sorted(self.seconds.items()))
        passed = [
            f"  {json.dumps(name)}: {json.dumps([of.digest, of.tests, _by_folder(of.reads)])}"
            for name, of in sorted(self.passed.items())
        ]
        lines = [
            *("{", f' "seconds": {json.dumps(seconds, indent=2)},', ' "passed": {'),
            *(f"{line}," for line in passed[:-1]),
            *(*passed[-1:], " }", "}", ""),
        ]
        with replacing(self.path) as file:
            file.write("\n".join(lines).encode())


def _hash(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def _by_folder(names: Iterable[str]) -> dict[str, str]:
    """Names of files by their folder."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(file)
    return {folder: " ".join(files) for folder, files in folders.items()}


def _names(folders: Mapping[str, str]) -> Iterable[str]:
    for folder, files in folders.items():
        yield from (f"{folder}/{file}".lstrip("/") for file in files.split())
