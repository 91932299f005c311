"""``python -m sim lint``: Verilator's lint and Yosys' checks of generated Verilog."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from hw.catalogue import Block, find, select
from hw.emit.verilog import WAIVERS, unwaived
from hw.parameters import Parameters
from sim.commands.arguments import add_execution, execution
from sim.core import processes, yosys
from sim.core.design import MODULE, Design, generate
from sim.core.jobs import executor
from sim.core.tools import ToolError, environment, verilator

VAST = 500
"""Instances from which on Verilator, which checks each, takes minutes and many gigabytes."""


def lint(block: Block, parameters: Parameters) -> None:
    """Check one configuration.

    :raises ToolError: with the first complaint.
    """
    check(generate(block, parameters))


def check(design: Design) -> None:
    """Check one design, as ``lint`` does."""
    check_with_verilator(design)
    check_with_yosys(design)


def check_with_verilator(design: Design) -> None:
    """All warnings but the waived ones are errors.

    The modules of a vast design are checked one by one, which misses faults across modules, such as
    a combinational loop.
    """
    with tempfile.TemporaryDirectory(prefix="senbazuru_") as scratch:
        source = Path(scratch) / f"{design.module}.v"
        waivers = Path(scratch) / "waivers.vlt"
        stubs = Path(scratch) / "stubs.v"
        rules = [f'lint_off -rule {rule} -file "*" -match "{text}"' for rule, text, _ in WAIVERS]
        rules.append(f'lint_off -file "*{stubs.name}"')
        waivers.write_text("\n".join(["`verilator_config", *rules, ""]))
        verilog = unwaived(design.verilog)
        command = [str(verilator()), "--lint-only", "-Wall", str(waivers), str(source)]
        if design.instances < VAST:
            source.write_text(verilog)
            _check(command, "Verilator", design)
        else:
            for name, text, parts in modules_apart(verilog):
                source.write_text(text)
                stubs.write_text(parts)
                _check([*command, str(stubs), "--top-module", name], "Verilator", design)


def check_with_yosys(design: Design) -> None:
    """No latches, no black boxes, nothing undriven or driven twice."""
    with tempfile.TemporaryDirectory(prefix="senbazuru_") as scratch:
        source = Path(scratch) / f"{design.module}.v"
        source.write_text(unwaived(design.verilog))
        script = "; ".join(
            [
                f"read_verilog {source.name}",
                f"hierarchy -check -top {design.module}",
                "proc",
                # No latch was inferred, nothing is a black box, undriven or driven twice.
                "select -assert-none t:$dlatch t:$adlatch t:$dlatchsr",
                "check -assert",
            ]
        )
        _check(yosys.command(yosys.YOSYS, "-q", "-p", script), "Yosys", design, scratch)


def modules_apart(verilog: str) -> Iterator[tuple[str, str, str]]:
    """Each module's name and text, with stubs of the modules it uses, which have only ports."""
    texts = re.findall(r"^module \\?.*?^endmodule$", verilog, re.M | re.S)
    modules = {match[1]: text for text in texts if (match := MODULE.match(text))}
    stubs = {name: text[: text.index(");\n") + 2] + "\nendmodule" for name, text in modules.items()}
    names = "|".join(map(re.escape, modules))
    for name, text in modules.items():
        used = dict.fromkeys(re.findall(rf"^  \\?({names}) +\S+ +\(", text, re.M))
        yield name, text + "\n", "\n".join([*(stubs[part] for part in used), ""])


def _check(command: list[str], tool: str, design, folder: str | None = None) -> None:
    run = processes.run(command, cwd=folder, env=environment())
    if run.returncode:
        lines = [line for line in (run.stderr + run.stdout).splitlines() if line.strip()]
        complaints = [line for line in lines if "%Warning" in line or "rror" in line] or lines
        raise ToolError(f"{tool} on {design.module}: {complaints[0] if complaints else 'failed'}")


def lint_preset(name: str, preset: str) -> None:
    """One task of a long job: :func:`lint` of a block's preset."""
    block = find(name)
    lint(block, block.parameters_class.preset(preset))


def lint_command(arguments) -> int:
    tasks = [
        executor.Task(f"{block.name} {preset}", lint_preset, (block.name, preset))
        for block in select(arguments.block)
        for preset in block.parameters_class.presets()
    ]
    for outcome in executor.execute(tasks, **execution(arguments)):
        outcome.result()
        tqdm.write(f"{outcome.task.name}: clean")
    return 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "lint",
        description=(
            "Check every preset's Verilog with Verilator -Wall (less the waivers listed in "
            "hw/emit/verilog.py, each with its reason) and with Yosys: no latches, no black "
            "boxes, nothing undriven or driven twice."
        ),
    )
    command.add_argument("block", help="block name as in `python -m hw list`, or all")
    add_execution(command)
    command.set_defaults(run=lint_command)
