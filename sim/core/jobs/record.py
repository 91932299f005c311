"""Files of tests that passed, each with what it read: it holds as long as that is the same."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from golden.files import replacing
from sim.core.jobs.reads import digest


@dataclasses.dataclass
class Record:
    """The content of a file of JSON.

    seconds
        Wall-clock time of dear tests, by name.
    passed
        By file of tests the digest of what it read, and the names of that.
    """

    path: Path
    seconds: dict[str, int] = dataclasses.field(default_factory=dict)
    passed: dict[str, tuple[str, list[str]]] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """The record of a file, empty if the file is missing."""
        if not path.exists():
            return cls(path)
        content = json.loads(path.read_text())
        passed = {name: (found, read.split()) for name, (found, read) in content["passed"].items()}
        return cls(path, content["seconds"], passed)

    def holds(self, file: str, hashes: Mapping[str, str], tools: str) -> bool:
        """Whether the file passed with what it reads as it is now."""
        if file not in self.passed:
            return False
        found, read = self.passed[file]
        return digest(read, hashes, tools) == found

    def add(self, file: str, read: Iterable[str], hashes: Mapping[str, str], tools: str) -> None:
        """Note that all tests of a file passed."""
        names = sorted(read)
        self.passed[file] = digest(names, hashes, tools), names

    def save(self) -> None:
        """Write the file, a line for each file of tests."""
        seconds = dict(sorted(self.seconds.items()))
        passed = [
            f"  {json.dumps(name)}: {json.dumps([found, ' '.join(read)])}"
            for name, (found, read) in sorted(self.passed.items())
        ]
        lines = [
            *("{", f' "seconds": {json.dumps(seconds, indent=2)},', ' "passed": {'),
            *(f"{line}," for line in passed[:-1]),
            *(*passed[-1:], " }", "}", ""),
        ]
        with replacing(self.path) as file:
            file.write("\n".join(lines).encode())
