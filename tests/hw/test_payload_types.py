"""``hw verilog --systemverilog``: structures whose bits and fields are the payloads'."""

import itertools
import re
import subprocess

from hw.catalogue import blocks, find
from hw.emit.keywords import KEYWORDS
from hw.emit.show import describe
from hw.package.payload_types import PAYLOAD, payload_types
from sim.core.tools import verilator


def ports_of(block, preset="first") -> list[dict]:
    parameters = block.parameters_class.preset(preset)
    return describe(block, block.parameters_class.preset_name(preset), parameters)["ports"]


def elements(field: dict):
    """Paths of some elements of a field, the first and last of each array, and their offsets."""
    counts = [of["count"] for of in field.get("arrays", [])]
    for numbers in itertools.product(*({0, count - 1} for count in counts)):
        left, path = iter(numbers), []
        for part in field["name"].split("."):
            name, arrays = re.fullmatch(r"(\w*)((?:\[\])*)", part).groups()
            indices = "".join(f"[{next(left)}]" for _ in range(len(arrays) // 2))
            path.append(f"{name}{'_' * (name in KEYWORDS)}{indices}")
        strides = (of["stride"] for of in field.get("arrays", []))
        offset = field["offset"] + sum(n * s for n, s in zip(numbers, strides, strict=True))
        dot = "" if path[0].startswith("[") else "."
        yield dot + ".".join(path), offset


def checks(module: str, ports: list[dict]) -> list[str]:
    """Statements that fail at elaboration where a bit is not where the sidecar says."""
    lines = []
    for port in ports:
        fields = port.get("fields") or []
        if not (port["name"].endswith(PAYLOAD) or fields):
            continue
        kind, width = f"{module}_pkg::{port['name'].removesuffix(PAYLOAD)}_t", port["width"]
        lines.append(f'if ($bits({kind}) != {width}) $error("{kind} is not {width} bits");')
        for path, offset, size in (
            (path, offset, field["width"]) for field in fields for path, offset in elements(field)
        ):
            for bit, value in {0: 1, size - 1: 1 << (size - 1)}.items():
                name = f"at_{len(lines)}_{module}"
                said = f'$error("{kind}{path}, bit {bit}");'
                lines += [
                    f"localparam {kind} {name} = {kind}'({width}'d1 << {offset + bit});",
                    f"if ({size}'({name}{path}) != {size}'d{value}) {said}",
                ]
    return lines


def lint(folder, text: str) -> subprocess.CompletedProcess:
    file = folder / "types.sv"
    file.write_text(text)
    command = [str(verilator()), "--lint-only", "-Wno-lint", "--top-module", "checks", str(file)]
    return subprocess.run(command, capture_output=True, text=True)


def test_bits_are_where_the_sidecar_says(tmp_path):
    """First presets of all blocks, elaborated by Verilator."""
    packages, lines = [], []
    for block in blocks():
        module = f"{block.folder}_{block.module}"
        ports = ports_of(block)
        packages.append(payload_types(module, ports))
        lines += checks(module, ports)
    assert len(lines) > 3000
    text = "\n".join([*packages, "module checks;", *lines, "endmodule", ""])
    done = lint(tmp_path, text)
    assert done.returncode == 0, done.stderr[:2000]
    # A field that moves is seen.
    wrong = text.replace("logic [3:0][15:0] values;", "logic [3:0][15:0] value_;", 1)
    assert lint(tmp_path, wrong).returncode != 0
    moved = re.sub(r"(    logic last;.*\n)(    logic \[4:0\] k;.*\n)", r"\2\1", text, count=1)
    assert moved != text and "bit 0" in lint(tmp_path, moved).stderr


def test_orizuru():
    text = payload_types("top4", ports_of(find("kllm.orizuru")))
    assert text.startswith("// SPDX-License-Identifier: Apache-2.0\n")
    assert (
        text.partition("package ")[2]
        == """top4_pkg;

  // input i: The vector.
  typedef struct packed {
    logic last;  // flag
    logic [4:0] k;  // count
    logic [3:0] keep;  // mask
    logic [3:0][15:0] values;  // fp16
  } i_t;

  // output o: The pairs.
  typedef struct packed {
    logic last;  // flag
    logic invalid;  // flag
    logic present;  // flag
    struct packed {
      logic [15:0] value;  // fp16
      logic [3:0] index;  // position
    } min;
    struct packed {
      logic [15:0] value;  // fp16
      logic [3:0] index;  // position
    } max;
  } o_t;

endpackage
"""
    )


def test_what_lies_between_fields_has_names():
    """At the top, between two fields, in each element of an array, and below all."""
    fields = [
        {"name": "a", "offset": 2, "width": 3, "signed": True, "format": "signed"},
        {"name": "rows[].x", "offset": 8, "width": 1, "signed": False, "format": "flag"},
        {"name": "rows[].y", "offset": 10, "width": 1, "signed": False, "format": "flag"},
    ]
    for field in fields[1:]:
        field["arrays"] = [{"count": 2, "stride": 4}]
    port = {"name": "o__payload", "direction": "output", "width": 17, "fields": fields}
    members = re.findall(r"^ +(logic .*|struct .*|}.*)$", payload_types("m", [port]), re.M)
    assert [member.partition("  //")[0] for member in members] == [
        "logic [0:0] unused_16;",
        "struct packed {",
        "logic [0:0] unused_3;",
        "logic y;",
        "logic [0:0] unused_1;",
        "logic x;",
        "} [1:0] rows;",
        "logic [2:0] unused_5;",
        "logic signed [2:0] a;",
        "logic [1:0] unused_0;",
        "} o_t;",
    ]
