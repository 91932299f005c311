"""The core file of a device for FuseSoC, in its format CAPI2."""

from hw.emit.header import LICENCE, versions
from hw.package.description import Description


def fusesoc(description: Description) -> str:
    """The text of the ``.core`` file."""
    module = description.module
    version = versions()["senbazuru"]
    summary = description.summary.replace('"', "'")
    return f"""\
CAPI=2:
# SPDX-License-Identifier: {LICENCE}
name: "senbazuru:{description.design.block.folder}:{module}:{version}"
description: "{summary}"

filesets:
  rtl:
    files:
      - {module}.v: {{file_type: verilogSource}}
  software:
    files:
      - {module}.h: {{file_type: user}}
      - {module}.py: {{file_type: user}}
  registers:
    files:
      - {module}.rdl: {{file_type: systemRDLSource}}
      - {module}.xml: {{file_type: user}}

targets:
  default:
    filesets: [rtl]
    toplevel: {module}
  lint:
    default_tool: verilator
    filesets: [rtl]
    toplevel: {module}
    tools:
      verilator:
        mode: lint-only
        verilator_options: [-Wall]
"""
