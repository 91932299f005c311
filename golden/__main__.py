"""The command line ``python -m golden``: each part registers its own commands."""

from golden import InputError, interrupt

if __name__ == "__main__":
    interrupt.exit_at_once("python -m golden: interrupted")

import argparse
import sys

from golden.evaluation import commands as evaluation
from golden.evaluation import results
from golden.evaluation.kllm_cost import command as kllm_cost
from golden.evaluation.unicaim_cost import command as unicaim_cost
from golden.lm import commands
from golden.trace import TraceError

REGISTER = (
    commands.register,
    evaluation.register,
    results.register,
    kllm_cost.register,
    unicaim_cost.register,
)
"""Functions that add commands to the parser. A command sets ``run``, called with its arguments."""


def main() -> int:
    """Run one command; returns the exit status, after one sentence on stderr if it is not 0."""
    parser = argparse.ArgumentParser(
        prog="python -m golden",
        description="The NumPy side of the project: run a small language model to get real input"
        " for the accelerators, and measure it.",
        epilog="'python -m golden COMMAND --help' tells a command's options.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for register in REGISTER:
        register(subparsers)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except (InputError, TraceError) as error:
        return _fail(str(error))
    except OSError as error:
        what = error.strerror or str(error)
        return _fail(f"{error.filename}: {what}" if error.filename else what)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _fail(sentence: str, status: int = 1) -> int:
    print(f"python -m golden: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    interrupt.raise_exceptions()
    sys.exit(main())
