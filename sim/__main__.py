"""`python -m sim`: simulate blocks against their golden models."""

import argparse
import importlib
import sys

# Command to the module that has it, imported only for that command, and a line for the list.
COMMANDS = {
    "run": ("commands.run", "simulate a block against its golden model"),
    "report": ("commands.report", "run every block in every simulator and write a page about it"),
    "mutate": ("commands.mutate", "inject faults into a block and see whether its testbench fails"),
    "exhaustive": ("checks.exhaustive.exhaustive", "all pairs of 16-bit operands of six units"),
    "synth": ("commands.synth", "area and delay of every preset"),
    "results": ("commands.results", "each paper's main result on the language model"),
    "campaign": ("commands.campaign", "the tests that are too long for the suite"),
    "lint": ("commands.lint", "lint generated Verilog of every preset"),
    "bench": ("commands.bench", "measure how fast designs simulate"),
    "ablation": ("commands.ablation", "cycles of VEDA's attention without array or scheduling"),
    "clean": ("core.cache", "remove compiled designs that nobody used lately"),
}


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """All commands, with the arguments of the one that is `chosen` or, without, of all."""
    top = argparse.ArgumentParser(
        prog="python -m sim",
        description="Simulate blocks against their golden models, bit for bit.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        if chosen in (None, name):
            importlib.import_module(f"sim.{module}").register(commands)
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
        print(f"error: {said}", file=sys.stderr)
        return 1


def sentence(error: Exception) -> str | None:
    """What to tell the user; None if it is a fault of this program."""
    from golden.trace import TraceError
    from hw.export import ExportError
    from hw.parameters import ParameterError
    from sim.core.tools import ToolError

    if isinstance(error, (ParameterError, ExportError, TraceError, ToolError)):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'writing'}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory: try fewer vectors or a smaller configuration"
    return None


if __name__ == "__main__":
    sys.exit(main())
