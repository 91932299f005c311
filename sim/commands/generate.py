"""`python -m sim generate`: a language model whose attention and products are computed by RTL."""

import argparse
import json
import sys
from pathlib import Path

from golden import InputError
from golden.lm.commands import add_source, check_output
from hw.emit.arguments import add_set
from sim.commands.arguments import add_trust, count
from sim.commands.engines import DEFAULT, NONE, OPTIONS
from sim.commands.run import add_board, dram_sentence, make_choice, refuse_without_board

PROMPT = "Once upon a time, a girl folded a thousand paper cranes."
HERTZ = 1e9
"""Clock at which the accelerator's tokens a second are stated."""


def run_command(arguments) -> int:
    from sim.commands.engines.speak import Speaker

    if arguments.board is not None:
        refuse_with_board(arguments)
    else:
        refuse_without_board(arguments)
        if arguments.multiplier and arguments.verilog:
            raise InputError("--multiplier is of generated Verilog, not of a file")
    if arguments.trace_out is not None:
        check_output(arguments.trace_out)
        if arguments.attention == NONE:
            raise InputError("--trace-out: it needs a block for --attention")
    request = request_of(arguments)
    if request.more:
        from sim.commands.generate_together import continue_together

        return continue_together(request, arguments)
    teller = Teller(quiet=arguments.json)
    with teller:
        speaker = Speaker(request, teller.status)
        teller.begin(speaker)
        story = speaker.speak(teller.piece)
    if arguments.trace_out is not None and story.record is not None:
        meta = {key: story.result[key] for key in ("model", "blocks", "text", "prompt_tokens")}
        story.record.save(arguments.trace_out, meta)
    print(json.dumps(story.result) if arguments.json else f"\n{summary(story.result)}")
    return 0


def refuse_with_board(arguments) -> None:
    """:raises ParameterError: for options that a board does not go with."""
    from hw.parameters import ParameterError

    for name in ("verilog", "trace_out"):
        if getattr(arguments, name):
            raise ParameterError(f"--board and --{name.replace('_', '-')} do not go together")
    if NONE not in (arguments.attention, arguments.linear) and (
        arguments.attention != arguments.linear
    ):
        raise ParameterError("--board holds one block: --attention or --linear must be none")


def request_of(arguments):
    """The request of a command line."""
    from sim.commands.engines.request import Request
    from sim.core.dram.timing import parse_timing
    from sim.core.memory import FASTEST

    board, multiplier = (getattr(arguments, name, None) for name in ("board", "multiplier"))
    timing = None if board else arguments.memory
    texts = [*(arguments.chat or arguments.prompt or [PROMPT])]
    given = [(option.name, vars(arguments)[option.name]) for option in OPTIONS]
    return Request(
        prompt=texts[0],
        more=texts[1:],
        attention=arguments.attention,
        linear=arguments.linear,
        chat=bool(arguments.chat),
        tokens=arguments.tokens,
        capacity=arguments.capacity,
        settings=arguments.set,
        model=arguments.model,
        memory=parse_timing(timing) if timing else FASTEST,
        verilog=arguments.verilog,
        trust=arguments.trust,
        check=arguments.check,
        threads=arguments.threads,
        options={name: value for name, value in given if value is not None},
        board=make_choice(arguments) if board else None,
        multiplier=(None if board else multiplier) or "columns",
    )


class Teller:
    """Prints a text as it comes, and below it, on a terminal, one line of status.

    Without a terminal the status is separate lines on standard error, all before the text, so that
    both can be read where they go to one file. Leaving the ``with`` block ends the text's line.
    """

    def __init__(self, quiet: bool = False):
        self._quiet = quiet
        self._terminal = sys.stderr.isatty() and not quiet
        self._shown, self._tokens, self._cycles, self._bits = "", 0, 0, 0

    def __enter__(self) -> "Teller":
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
        if self._shown:
            print(flush=True)

    def begin(self, speaker) -> None:
        """The prompt, which `speaker` is about to read."""
        if self._terminal:
            self._show(speaker.tokenizer.decode(speaker.prompt))
        self.status(f"prompt of {len(speaker.prompt)} tokens …")

    def piece(self, step, text: str) -> None:
        """One token more; `text` is all there is now."""
        self._show(text)
        self._tokens += 1
        self._cycles += sum(step.cycles)
        self._bits += step.bits
        note = f"{step.note}, " if step.note else ""
        checked = f"RTL = model: {self._bits} bits" if self._bits else "nothing compared"
        self.status(
            f"token {self._tokens}: {step.cycles[-1]} cycles, {self._cycles} in all, "
            f"{step.rows} rows kept, {note}{checked}, {step.wall_s:.1f} s"
        )

    def status(self, text: str) -> None:
        """What is going on."""
        if self._terminal:
            print(f"\0337\n\033[2K{text}\0338", end="", file=sys.stderr, flush=True)
        elif not self._quiet and self._tokens == 0:
            print(text, file=sys.stderr)

    def _clear(self) -> None:
        if self._terminal:
            print("\0337\n\033[2K\0338", end="", file=sys.stderr, flush=True)

    def _show(self, text: str) -> None:
        if self._quiet:
            return
        self._clear()
        # The bytes of a character may come with several tokens.
        whole = text.rstrip("\N{REPLACEMENT CHARACTER}")
        print(whole[len(self._shown) :], end="", flush=True)
        self._shown = whole


def summary(result: dict) -> str:
    """The end of a run for people to read."""
    read = len(result["cycles_per_token"])
    last = result["cycles_per_token"][-1]
    different = result["first_difference"]
    if different is None:
        dense = "Dense attention and products in float32 make the same text."
    else:
        dense = (
            f"Dense attention and products in float32 differ first in token {different + 1}:\n"
            f"  {result['reference_text']!r}"
        )
    blocks = " and ".join(result["blocks"])
    cycles = f"{result['cycles']} cycles of {blocks} for {read} tokens"
    if result["board"]:
        speed = ", the board's, of which most wait for the serial line"
    else:
        kinds = {"attention": "attention", "linear": "the matrix products"}
        what = " and ".join(kinds[name] for name in kinds if result[name] != NONE)
        speed = (
            f", {last} for the last one.\n{HERTZ / last:,.0f} steps of {what} of all layers a "
            f"second at 1 GHz, without the model's other work; memory {result['memory']}"
        )
    if result["dram"]:
        speed += f".\nAll DRAMs, one after another: {dram_sentence(result['dram'])}"
    evicted = sum(map(len, result["evicted"]))
    note = f"{result['note']}.\n" if result["note"] else ""
    return (
        f"{compared(result)}\n"
        f"{cycles}{speed}.\n"
        f"{result['rows_kept']} rows kept in each layer, {evicted} evictions; {moved(result)}.\n"
        f"{note}"
        f"{result['cpu_s'] / read:.2f} CPU seconds a token, {result['wall_s'] / read:.2f} s; "
        f"{result['cycles'] / result['cpu_s']:,.0f} cycles a CPU second; {result['peak_mib']} MiB; "
        "NumPy alone: "
        f"{result['dense_numpy_cpu_s_per_token']} CPU seconds a token.\n{dense}"
    )


def compared(result: dict) -> str:
    """What of a run was compared."""
    if not result["bits_compared"]:
        return "The RTL was compared with nothing."
    checked = (
        f"{result['bits_compared']} output bits of the RTL equal the bit-exact model's, "
        f"{result['mismatches']} differ."
    )
    if result["check"] == "attention" and result["linear"] != NONE:
        checked += " The matrix products were compared with nothing."
    return checked


def moved(result: dict) -> str:
    """Bytes that a run has read and written, by kind."""
    return ", ".join(
        f"{count / 1e6:.1f} MB {kind.replace('_', ' ')}" for kind, count in result["bytes"].items()
    )


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "generate",
        description=(
            "Continue a prompt by a language model whose attention, matrix products or both, of "
            "all layers, are computed by blocks' RTL. Every output bit is compared with the "
            "bit-exact model; the first difference ends the run with exit status 1."
        ),
    )
    add_story(command)
    command.add_argument(
        "--check",
        choices=("all", "attention", "none"),
        default="all",
        help="blocks that have their bit-exact model beside them; without it, what the RTL gives "
        "goes on (default: %(default)s)",
    )
    command.add_argument(
        "--verilog",
        action="append",
        default=[],
        metavar="[BLOCK=]FILE.v",
        help="simulate this file in place of the generated Verilog; it must have the same ports",
    )
    add_trust(command)
    add_board(
        command,
        multiplier="what products and sums are made of, by which no bit differs: columns, gates for"
        " standard cells; dsp or dsp_shifts, operators for an FPGA's, simulated sooner (default:"
        " columns; with --board dsp, as it was made)",
    )
    command.add_argument(
        "--trace-out",
        type=Path,
        metavar="FILE.npz",
        help="write what attention's block saw and did, as a trace for `sim run --trace`",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run_command)


def add_story(command: argparse.ArgumentParser) -> None:
    """The arguments that say what to say, and by which blocks."""
    for kind, what, block in (
        ("attention", "attention", DEFAULT),
        ("linear", "all matrix products, in its own arithmetic", NONE),
    ):
        command.add_argument(
            f"--{kind}",
            default=block,
            metavar="BLOCK",
            help=f"the block that computes {what}, or none: NumPy does (default: %(default)s)",
        )
    begin = command.add_mutually_exclusive_group()
    begin.add_argument(
        "--prompt",
        action="append",
        help=f'text to continue; several are continued together (default: "{PROMPT}")',
    )
    begin.add_argument(
        "--chat",
        action="append",
        metavar="TEXT",
        help="a message to answer, in place of --prompt; several are answered together",
    )
    command.add_argument(
        "--tokens", type=count, default=24, metavar="N", help="to make (default: %(default)s)"
    )
    command.add_argument(
        "--capacity",
        type=count,
        default=64,
        metavar="N",
        help="tokens whose keys and values each layer keeps, where the block evicts any "
        "(default: %(default)s)",
    )
    for option in OPTIONS:
        command.add_argument(
            f"--{option.name.replace('_', '-')}",
            type=option.convert,
            metavar=option.metavar,
            help=f"of {option.block}: {option.words}",
        )
    add_set(command, "[BLOCK.]NAME=VALUE")
    add_source(command)
    command.add_argument(
        "--memory",
        metavar="TIMING",
        help="of all memories, or a board's, as in `sim run` (default: the fastest)",
    )
    command.add_argument(
        "--threads",
        type=count,
        default=2,
        metavar="N",
        help="layers whose RTL is simulated at once (default: %(default)s)",
    )
