"""`python -m sim`: simulate blocks against their golden models."""

import importlib
import os
import sys

from golden.mistakes import Parser, status_of

# The threads of NumPy's matrix products go on spinning after each, on cores that simulators need.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Command and a line for the list. Its module is imported only for that command.
COMMANDS = {
    "run": "simulate a block against its golden model",
    "timeline": "when the beats of a block's streams move, as a table or a picture",
    "generate": "continue a text by a language model whose attention is RTL",
    "demo": "a text and the papers' blocks through the RTL, and a page about them",
    "report": "run every block in every simulator and write a page about it",
    "mutate": "inject faults into a block and see whether its testbench fails",
    "exhaustive": "compare all pairs of 16-bit operands of six units with the processor",
    "synth": "area and delay of blocks, mapped to a cell library or an FPGA",
    "energy": "what a block's logic costs, by its testbench on the mapped netlist",
    "layout": "place a block's cells in rows, and what their wires cost",
    "results": "repeat each paper's main result on the language model",
    "campaign": "run the tests that are too long for the suite",
    "lint": "lint generated Verilog of every preset",
    "bench": "measure how fast designs simulate",
    "dram": "what a DRAM makes of a list of addresses",
    "compare": "designs on equal terms: a decode step of each, at one shape, on one memory",
    "ablation": "measure cycles of VEDA's attention without array or scheduling",
    "pruning": "measure cycles of Token-Picker's core with pruning and without",
    "locality": "measure cycles of LAD's tile beside dense attention",
    "counting": "measure area and energy of KLLM's counting and of multiplication",
    "areas": "put areas of cores by unit beside the papers' tables",
    "tables": "write the tables of README.md and docs",
    "clean": "remove compiled designs that were not used lately",
}

STUDIES = {
    "results": "results",
    "ablation": "veda",
    "pruning": "topick",
    "locality": "lad",
    "counting": "kllm",
    "areas": "areas.command",
    "compare": "compare.command",
}
"""Modules in sim.studies; another command is a module in sim.commands."""


def parser(chosen: str | None = None) -> Parser:
    """All commands, with the arguments of the `chosen` one; of all of them if that is None."""
    top = Parser(
        prog="python -m sim",
        description="Simulate blocks against their golden models, bit for bit.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        if chosen in (None, name):
            module = f"studies.{STUDIES[name]}" if name in STUDIES else f"commands.{name}"
            importlib.import_module(f"{__package__}.{module}").register(commands)
        else:
            commands.add_parser(name, help=summary)
    return top


def main() -> int:
    try:
        from sim.core import processes

        with processes.clean_exit():
            words = (word for word in sys.argv[1:] if not word.startswith("-"))
            arguments = parser(next(words, "")).parse_args()
            return arguments.run(arguments)
    except KeyboardInterrupt as interrupt:
        print(f"error: interrupted {interrupt}".rstrip(), file=sys.stderr)
        return getattr(interrupt, "status", 130)
    except Exception as error:
        said = sentence(error)
        if said is None:
            raise
        text, status = said
        print(f"error: {text}", file=sys.stderr)
        return status


def sentence(error: Exception) -> tuple[str, int] | None:
    """What to print for an error, and the exit status; None for a fault of this program."""
    from golden import FailedError, InputError
    from golden.trace import TraceError
    from hw.emit.export import ExportError
    from hw.parameters import ParameterError
    from sim.commands.engines.difference import Difference
    from sim.core.tools import ToolError, UnusableFile

    mistakes = (ParameterError, TraceError, InputError, UnusableFile)
    status = status_of(error, mistakes, failures=(FailedError,))
    if isinstance(error, (*mistakes, ExportError, ToolError, Difference)):
        return str(error), status
    if isinstance(error, OSError):
        return f"{error.filename or 'writing'}: {error.strerror or error}", status
    if isinstance(error, MemoryError):
        return "out of memory: try fewer vectors or a smaller configuration", status
    return None


if __name__ == "__main__":
    sys.exit(main())
