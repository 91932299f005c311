"""A package's C header as functions of Python."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from hw.bus.device import DeviceDesign
from hw.package.description import Beat, Description
from hw.package.package import package

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
TYPES = {
    (8, False): ctypes.c_uint8,
    (16, False): ctypes.c_uint16,
    (32, False): ctypes.c_uint32,
    (64, False): ctypes.c_uint64,
    (8, True): ctypes.c_int8,
    (16, True): ctypes.c_int16,
    (32, True): ctypes.c_int32,
    (64, True): ctypes.c_int64,
}


class Header:
    """The header of a device, compiled without a warning.

    folder
        Where its package and the library are written.
    """

    def __init__(self, design: DeviceDesign, folder: Path):
        self.description = Description(design)
        self.files = package(design)
        header = f"{design.module}.h"
        lines = [f'#include "{header}"']
        for name in map(self._name, self.description.beats):
            arguments = f"uint32_t *beat, struct {name} *fields"
            for does, order in (("pack", "beat, fields"), ("unpack", "fields, beat")):
                lines += [
                    f"void c_{name}_{does}({arguments});",
                    f"void c_{name}_{does}({arguments}) {{ {name}_{does}({order}); }}",
                ]
        for name, text in {**self.files, "library.c": "\n".join([*lines, ""])}.items():
            (folder / name).write_text(text)
        library = folder / "library.so"
        command = ["gcc", *STRICT, "-O1", "-shared", "-fPIC", str(folder / "library.c")]
        run = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        self._library = ctypes.CDLL(str(library))

    def _name(self, beat: Beat) -> str:
        return f"{self.description.name}_{beat.channel.channel}"

    def unpack(self, beat: Beat, words: list[int]) -> tuple[dict, list[int]]:
        """The members of a beat, arrays as nested lists, and the beat that they pack to."""
        packed = (ctypes.c_uint32 * beat.words)(*words)
        again = (ctypes.c_uint32 * beat.words)(*[0xFFFFFFFF] * beat.words)
        fields = self._structure(beat)()
        getattr(self._library, f"c_{self._name(beat)}_unpack")(packed, ctypes.byref(fields))
        getattr(self._library, f"c_{self._name(beat)}_pack")(again, ctypes.byref(fields))
        values = {m.name: _plain(getattr(fields, m.name)) for m in beat.members}
        for member in beat.members:
            if member.field.width > 64 and not member.counts:
                words = values[member.name]
                values[member.name] = sum(word << 32 * n for n, word in enumerate(words))
        return values, list(again)

    def _structure(self, beat: Beat) -> type[ctypes.Structure]:
        """The structure, as C lays it out."""
        fields = []
        for member in beat.members:
            width = member.field.width
            size = next((bits for bits in (8, 16, 32, 64) if width <= bits), None)
            wide = ctypes.c_uint32 * -(-width // 32)
            kind: Any = wide if size is None else TYPES[size, member.field.signed]
            for count in reversed(member.counts):
                kind = kind * count
            fields.append((member.name, kind))
        return type("Fields", (ctypes.Structure,), {"_fields_": fields})


def _plain(value):
    return list(map(_plain, value)) if isinstance(value, ctypes.Array) else value
