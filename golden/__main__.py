"""The command line ``python -m golden``: each part registers its own commands."""

from golden import FailedError, InputError, interrupt

if __name__ == "__main__":
    interrupt.exit_at_once("error: interrupted")

import sys

from golden.evaluation import commands as evaluation
from golden.evaluation import list_texts
from golden.lm import commands
from golden.mistakes import FAILED, Parser, status_of
from golden.studies import results
from golden.studies.kllm_cost import command as kllm_cost
from golden.studies.unicaim_circuit import command as unicaim_circuit
from golden.studies.unicaim_cost import command as unicaim_cost
from golden.trace import TraceError

REGISTER = (
    commands.register,
    list_texts.register,
    evaluation.register,
    results.register,
    kllm_cost.register,
    unicaim_cost.register,
    unicaim_circuit.register,
)
"""Functions that add commands to the parser. A command sets ``run``, called with its arguments."""

MISTAKES = (InputError, TraceError, FileExistsError)
FAILURES = (FailedError,)
"""Those among them that are of the work."""


def main() -> int:
    """Run one command; returns the exit status, after one sentence on stderr if it is not 0."""
    parser = Parser(
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
    except (*MISTAKES, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        file = getattr(error, "filename", None)
        return _fail(f"{file}: {reason}" if file else reason, status_of(error, MISTAKES, FAILURES))
    except MemoryError:
        return _fail("out of memory: try fewer tokens or smaller parameters", FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _fail(sentence: str, status: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    interrupt.raise_exceptions()
    sys.exit(main())
