"""`python -m sim generate`: a language model whose attention is computed by RTL."""

import dataclasses
import json
import resource
import sys
from pathlib import Path

from hw.arguments import add_set
from sim.commands.arguments import add_verilog, count

PROMPT = "A thousand paper cranes"
HERTZ = 1e9
"""Clock at which the accelerator's tokens a second are stated."""


def run_command(arguments) -> int:
    from golden.lm.commands import open_model
    from golden.lm.model import generate as generate_dense
    from hw.catalogue import find
    from hw.parameters import require
    from sim.commands.engines import attention_engine
    from sim.commands.engines.generation import cpu_seconds, in_memory
    from sim.commands.engines.generation import generate as generate_in_rtl
    from sim.commands.run import show_progress
    from sim.core.design import from_file, generate
    from sim.core.memory import FASTEST, MemoryTiming

    engine = attention_engine(arguments.attention)
    timing = MemoryTiming.from_text(arguments.memory) if arguments.memory else FASTEST
    model, tokenizer, about = open_model(arguments.gguf)
    config = model.config
    prompt = tokenizer.encode(arguments.prompt)
    require(bool(prompt), "prompt must have at least one token", arguments.prompt)
    total = len(prompt) + arguments.tokens
    rule = f"prompt and tokens must be at most the model's context, {config.context}"
    require(total <= config.context, rule, total)
    block = find(arguments.attention)
    parameters = engine.parameters(config, arguments.capacity).replace_from_text(arguments.set)
    engine.require_fit(parameters, config, arguments.capacity)
    if not arguments.json:
        show_progress()
    say = _silent if arguments.json else _status
    say(f"compiling {block.name} …")
    if arguments.verilog is None:
        design = generate(block, parameters)
    else:
        design = from_file(block, parameters, arguments.verilog, trust=arguments.trust)
    attentions = engine.attentions(design, config.layers, arguments.capacity, timing)
    say("reading the model …")
    model = in_memory(model)

    steps, shown = [], ""
    cpu = cpu_seconds()
    say(f"prompt of {len(prompt)} tokens …")
    for step in generate_in_rtl(model, prompt, arguments.tokens, attentions):
        steps.append(step)
        text = tokenizer.decode(prompt + [s.token for s in steps])
        if not arguments.json:
            # The bytes of a character may come with several tokens.
            whole = text.rstrip("\N{REPLACEMENT CHARACTER}")
            _clear_status()
            print(whole[len(shown) :], end="", flush=True)
            shown = whole
            say(status_line(steps))
    cpu = cpu_seconds() - cpu
    tokens = [step.token for step in steps]
    seconds = cpu_seconds()
    reference = generate_dense(model, prompt, arguments.tokens)
    seconds = (cpu_seconds() - seconds) / (total - 1)
    moved = [attention.bytes_moved() for attention in attentions]
    cycles = [n for step in steps for n in step.cycles]
    result = {
        "text": tokenizer.decode(tokens),
        "prompt_tokens": len(prompt),
        "tokens": tokens,
        "mismatches": 0,
        "bits_compared": sum(step.bits for step in steps),
        "cycles": sum(cycles),
        "cycles_per_token": cycles,
        "rows_kept": steps[-1].rows[0],
        "evicted": [attention.evicted for attention in attentions],
        "bytes": {kind: sum(of[kind] for of in moved) for kind in moved[0]},
        "reference_text": tokenizer.decode(reference),
        "first_difference": next(
            (n for n, pair in enumerate(zip(tokens, reference, strict=True)) if len({*pair}) > 1),
            None,
        ),
        "cpu_s": round(cpu, 2),
        "wall_s": round(sum(step.wall_s for step in steps), 2),
        "dense_numpy_cpu_s_per_token": round(seconds, 3),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "model": about["model"],
        "blocks": {block.name: dataclasses.asdict(parameters)},
    }
    for attention in attentions:
        attention.close()
    if arguments.json:
        print(json.dumps(result))
    else:
        _clear_status()
        print("\n")
        print(summary(result, total - 1))
    return 0


def status_line(steps: list) -> str:
    """Of the latest token: cycles, rows kept, bits compared, seconds."""
    step = steps[-1]
    cycles = sum(sum(s.cycles) for s in steps)
    return (
        f"token {len(steps)}: {step.cycles[-1]} cycles, {cycles} in all, {step.rows[0]} rows kept, "
        f"RTL = model: {step.bits} bits, {step.cpu_s:.1f} s"
    )


def summary(result: dict, tokens: int) -> str:
    """The end of a run for people to read, of `tokens` tokens that the model read."""
    last = result["cycles_per_token"][-1]
    different = result["first_difference"]
    dense = (
        "Dense attention in float32 makes the same text."
        if different is None
        else f"Dense attention in float32 differs first in token {different + 1}:\n"
        f"  {result['reference_text']!r}"
    )
    read, written = (result["bytes"][kind] / 1e6 for kind in ("kv_read", "kv_written"))
    evicted = sum(map(len, result["evicted"]))
    return (
        f"{result['bits_compared']} output bits of the RTL equal the bit-exact model's, "
        f"{result['mismatches']} differ.\n"
        f"{result['cycles']} cycles for {tokens} tokens, {last} for the last one: "
        f"{HERTZ / last:.0f} tokens a second at 1 GHz (attention alone, ideal memory).\n"
        f"{result['rows_kept']} rows kept in each layer, {evicted} evictions; "
        f"{read:.1f} MB of the cache read, {written:.1f} MB written.\n"
        f"{result['cpu_s'] / tokens:.2f} CPU seconds a token, {result['peak_mib']} MiB; dense "
        f"NumPy: {result['dense_numpy_cpu_s_per_token']} CPU seconds a token.\n{dense}"
    )


def _silent(text: str) -> None:
    """In place of :func:`_status`, where the output is for programs."""


def _status(text: str) -> None:
    """A line below the text, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\0337\n\033[2K{text}\0338", end="", file=sys.stderr, flush=True)


def _clear_status() -> None:
    if sys.stderr.isatty():
        print("\0337\n\033[2K\0338", end="", file=sys.stderr, flush=True)


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "generate",
        description=(
            "Continue a prompt by a language model whose attention, of all layers, is computed by "
            "a block's RTL. Every output bit is compared with the bit-exact model; the first "
            "difference ends the run with exit status 1."
        ),
    )
    command.add_argument(
        "--attention",
        default="veda.veda_core",
        metavar="BLOCK",
        help="the block that computes attention (default: %(default)s)",
    )
    command.add_argument("--prompt", default=PROMPT, help='default: "%(default)s"')
    command.add_argument(
        "--tokens", type=count, default=24, metavar="N", help="to make (default: %(default)s)"
    )
    command.add_argument(
        "--capacity",
        type=count,
        default=64,
        metavar="N",
        help="tokens whose keys and values each layer keeps (default: %(default)s)",
    )
    add_set(command)
    command.add_argument(
        "--gguf",
        type=Path,
        metavar="FILE",
        help="a Llama-family model of your own (default: SmolLM2-135M-Instruct, fetched once)",
    )
    command.add_argument(
        "--memory", metavar="TIMING", help="of the cache, as in `sim run` (default: the fastest)"
    )
    add_verilog(command)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run_command)
