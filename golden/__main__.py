"""The command line ``python -m golden``: each part registers its own commands."""

from golden import FailedError, InputError, interrupt

if __name__ == "__main__":
    interrupt.exit_at_once("error: interrupted")

import sys

from golden.arguments import FAILED, INTERRUPTED, MISTAKE, Parser, fail, fail_on_file
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
    except FailedError as error:
        return fail(str(error), FAILED)
    except (InputError, TraceError) as error:
        return fail(str(error), MISTAKE)
    except OSError as error:
        return fail_on_file(error)
    except MemoryError:
        return fail("out of memory: try fewer tokens", FAILED)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    return 0


if __name__ == "__main__":
    interrupt.raise_exceptions()
    sys.exit(main())
