"""All files of a package, from one description, written together."""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from hw.bus.device import DeviceDesign
from hw.bus.device_map import descriptor
from hw.emit.header import versions
from hw.package.c_header import c_header
from hw.package.description import Description
from hw.package.fusesoc import fusesoc
from hw.package.ip_xact import ip_xact
from hw.package.litex import litex
from hw.package.page import page
from hw.package.python_driver import python_driver
from hw.package.system_rdl import system_rdl

SCHEMA = 1
"""Version of the package's sidecar's keys."""


def package(design: DeviceDesign) -> dict[str, str]:
    """Name and text of each file. The same design always gives the same text."""
    description = Description(design)
    module = description.module
    sidecar = json.dumps(_sidecar(description), indent=2) + "\n"
    return {
        f"{module}.v": description.design.verilog,
        f"{module}.json": sidecar,
        f"{module}.h": c_header(description),
        f"{module}.py": python_driver(description),
        f"{module}.rdl": system_rdl(description),
        f"{module}.xml": ip_xact(description),
        f"{module}.core": fusesoc(description),
        f"{module}_litex.py": litex(description),
        "README.md": page(description),
    }


def _sidecar(description: Description) -> dict:
    """What a program may want to know of the device, as JSON."""
    design = description.design
    block, parameters = design.block, design.parameters
    registers = [
        {
            "name": register.name,
            "offset": register.offset,
            "bits": register.bits,
            "description": register.words,
            "fields": [
                {
                    "name": field.name,
                    "low": field.low,
                    "width": field.width,
                    "access": field.access,
                    "reset": field.reset,
                    "description": field.words,
                }
                for field in register.fields
            ],
        }
        for register in description.registers.registers
    ]
    channels = [
        {
            "name": beat.channel.channel,
            "bytes": beat.channel.bytes,
            "width": beat.width,
            "fields": [member.field.as_json() for member in beat.members],
        }
        for beat in description.beats
    ]
    return {
        "schema": SCHEMA,
        "module": description.module,
        "block": block.name,
        "source": block.source,
        "parameters": dataclasses.asdict(parameters),
        "latency": parameters.latency,
        "bus": dataclasses.asdict(design.bus),
        "build": f"{design.device.build:016x}",
        "ports": [
            {"name": name, "direction": direction, "width": width}
            for name, direction, width in description.ports
        ],
        "registers": registers,
        "channels": channels,
        "descriptor": [dataclasses.asdict(entry) for entry in descriptor(design.device)],
        "sha256": hashlib.sha256(design.verilog.encode()).hexdigest(),
        "tools": versions(),
    }


def write_package(files: dict[str, str], folder: Path) -> list[Path]:
    """Write all files, or none: a folder beside them is filled first, then each is moved.

    :raises OSError: naming the path at fault.
    """
    folder.mkdir(parents=True, exist_ok=True)
    blocked = next((folder / name for name in files if (folder / name).is_dir()), None)
    if blocked is not None:
        raise IsADirectoryError(21, os.strerror(21), str(blocked))
    scratch = Path(tempfile.mkdtemp(prefix=".package_", dir=folder))
    try:
        for name, text in files.items():
            (scratch / name).write_text(text)
        for name in files:
            os.replace(scratch / name, folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [folder / name for name in files]
