"""Files of tests that passed, each with what it read: it holds as long as that is the same."""

import dataclasses
import hashlib
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
    reads
        Sets of files and folders, by a hash of the set: files of tests share most of them.
    passed
        By file of tests the set that it read, and the digest of its content.
    """

    path: Path
    seconds: dict[str, int] = dataclasses.field(default_factory=dict)
    reads: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    passed: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """The record of a file, empty if the file is missing."""
        if not path.exists():
            return cls(path)
        content = json.loads(path.read_text())
        reads = {name: files.split() for name, files in content["reads"].items()}
        passed = {name: tuple(of) for name, of in content["passed"].items()}
        return cls(path, content["seconds"], reads, passed)

    def holds(self, file: str, hashes: Mapping[str, str], tools: str) -> bool:
        """Whether the file passed with what it reads as it is now."""
        key, found = self.passed.get(file, ("", ""))
        return key in self.reads and digest(self.reads[key], hashes, tools) == found

    def add(self, file: str, reads: Iterable[str], hashes: Mapping[str, str], tools: str) -> None:
        """Note that all tests of a file passed."""
        names = sorted(reads)
        key = hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]
        self.reads[key] = names
        self.passed[file] = key, digest(names, hashes, tools)

    def save(self) -> None:
        """Write the file; sets that no file of tests has are left out."""
        used = {key for key, _ in self.passed.values()}
        content = {
            "seconds": dict(sorted(self.seconds.items())),
            "reads": {key: " ".join(self.reads[key]) for key in sorted(used)},
            "passed": dict(sorted(self.passed.items())),
        }
        lines = json.dumps(content, indent=1).replace('",\n   "', '", "')
        lines = lines.replace("[\n   ", "[").replace("\n  ]", "]")
        with replacing(self.path) as file:
            file.write(f"{lines}\n".encode())
