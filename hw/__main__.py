"""`python -m hw`: list the blocks, write their Verilog, synthesize them, build them for boards."""

from golden import interrupt
from golden.mistakes import FAILED, Parser, status_of

if __name__ == "__main__":
    interrupt.exit_at_once("error: interrupted")

import importlib
import json
import sys
from pathlib import Path

from hw import HOME
from hw.catalogue import blocks, configurations, find, select
from hw.component import MULTIPLIERS
from hw.emit import show
from hw.emit.arguments import add_configuration
from hw.emit.export import (
    ExportError,
    check_writable,
    export,
    require_module_name,
    write_whole,
)
from hw.emit.progress import Progress
from hw.package import command as package
from hw.package.payload_types import payload_types
from hw.parameters import ParameterError, require
from sim.core.tools import ToolError, UnusableFile

MISTAKES = (ParameterError, UnusableFile)

OTHERS = {
    "synth": "area and delay of blocks, mapped to a cell library or an FPGA",
    "fpga": "a bitstream of a block behind a serial link, for a board",
}
"""Commands of `sim`, imported when they are called: they need more packages than Verilog does."""


def list_blocks(arguments) -> None:
    if arguments.names:
        print("\n".join(block.name for block in blocks()))
        return
    # All presets are made even for a listing, as a preset that cannot be built must not be listed.
    slugs = {
        block: {name: p.slug() for name, p in block.parameters_class.presets().items()}
        for block in blocks()
    }
    if arguments.json:
        entries = [
            {
                "block": block.name,
                "presets": presets,
                "summary": block.summary,
                "source": block.source,
            }
            for block, presets in slugs.items()
        ]
        print(json.dumps(entries, indent=2))
        return
    width = max(len(block.name) for block in slugs)
    for block, presets in slugs.items():
        print(f"{block.name:{width}} {block.summary} ({block.source})")
        longest = max(map(len, presets))
        for name, slug in presets.items():
            print(f"{'':{width}}   {name:{longest}} {slug}")


def show_block(arguments) -> None:
    block = find(arguments.block, parts=True)
    preset = block.parameters_class.preset_name(arguments.preset)
    parameters = block.parameters_class.preset(preset).replace_from_text(arguments.set)
    entry = show.describe(block, preset, parameters)
    if arguments.json:
        print(json.dumps(entry, indent=2))
    else:
        print(show.markdown(entry) if arguments.markdown else show.text(entry))


def write_verilog(arguments) -> None:
    presets = [arguments.preset]
    if arguments.preset == "all":
        blocks = select(arguments.block, parts=True)
        presets = list(dict.fromkeys(p for b in blocks for p in b.parameters_class.presets()))
    # Every setting is checked before the first file is written.
    designs = [
        (block, block.parameters_class.preset(preset).replace_from_text(arguments.set))
        for block, preset in configurations(arguments.block, presets, parts=True)
    ]
    if arguments.name is not None:
        require(len(designs) == 1, "--name needs a single configuration", len(designs))
        require_module_name(arguments.name)
    check_writable(arguments.output)
    with Progress(len(designs)) as progress:
        for block, parameters in designs:

            def step(text: str, block=block) -> None:
                progress.step(f"{block.name}: {text}")

            exported = export(block, parameters, step, arguments.multiplier, arguments.name)
            paths = exported.write(arguments.output)
            if arguments.systemverilog:
                text = payload_types(exported.name, exported.sidecar["ports"])
                paths.append(write_whole(arguments.output / f"{exported.name}_pkg.sv", text))
            for path in paths:
                progress.print(str(path))
            progress.done()


def parser(chosen: str | None = None) -> Parser:
    """All commands, with the arguments of the `chosen` one; of all of them if that is None."""
    top = Parser(
        prog="python -m hw",
        description="Generate Verilog of LLM-decoding accelerators and their parts.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="every block, its presets and its source")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.add_argument("--names", action="store_true", help="print the names alone")
    listing.set_defaults(run=list_blocks)

    showing = commands.add_parser(
        "show",
        help="one block's parameters, ports, payload fields and latency",
        description="Print what a block is, its parameters with their ranges and presets, its"
        " latency, and its ports with the fields of their payloads.",
    )
    showing.add_argument("block", help="block name as in `python -m hw list`")
    add_configuration(showing)
    form = showing.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print a page of Markdown")
    showing.set_defaults(run=show_block)

    verilog = commands.add_parser(
        "verilog",
        help="write one .v and one .json file for each configuration",
        description="Write a block's Verilog and a JSON sidecar (parameters,"
        " latency, ports and the fields of their payloads).",
    )
    verilog.add_argument("block", help="block name as in `python -m hw list`, or all")
    add_configuration(verilog, "preset name, or all")
    verilog.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("build/verilog"),
        metavar="DIR",
        help="folder for the files (default: %(default)s)",
    )
    verilog.add_argument(
        "--name",
        metavar="MODULE",
        help="name of the top module and of both files (default: FOLDER_BLOCK_PRESET)",
    )
    verilog.add_argument(
        "--multiplier",
        choices=MULTIPLIERS,
        default="columns",
        help="products of significands as columns for standard cells, or as an FPGA's multipliers, "
        "with dsp_shifts shifts too; no bit differs (default: %(default)s, as areas in the docs)",
    )
    verilog.add_argument(
        "--systemverilog",
        action="store_true",
        help="also write NAME_pkg.sv, a package with a packed structure for each payload",
    )
    verilog.set_defaults(run=write_verilog)

    package.register(commands)
    for name, summary in OTHERS.items():
        if chosen in (None, name):
            importlib.import_module(f"{HOME}sim.commands.{name}").register(commands)
        else:
            commands.add_parser(name, help=summary)
    return top


def main() -> int:
    """Run one command; returns the exit status, after one sentence on stderr for an error."""
    words = (word for word in sys.argv[1:] if not word.startswith("-"))
    arguments = parser(next(words, "")).parse_args()
    try:
        return arguments.run(arguments) or 0
    except (*MISTAKES, ExportError, ToolError) as error:
        return _fail(str(error), status_of(error, MISTAKES))
    except OSError as error:
        reason = f"{error.filename or 'writing'}: {error.strerror or error}"
        return _fail(reason, status_of(error, MISTAKES))
    except MemoryError:
        return _fail("out of memory: try a smaller configuration", FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def _fail(sentence: str, status: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    interrupt.raise_exceptions()
    sys.exit(main())
