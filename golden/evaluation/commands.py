"""The command ``eval`` of ``python -m golden``."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from golden import FailedError, InputError
from golden.algorithms.kllm.calibration import calibration_samples, tuning_samples
from golden.algorithms.tsuru import constant_samples, kept_key_constants
from golden.evaluation.context_command import (
    CONTEXT_OPTIONS,
    add_context,
    check_policies,
    run_context,
    setting_of,
)
from golden.evaluation.measure import Measurement, measure, measure_trace
from golden.evaluation.plots import FORMATS, scatter
from golden.evaluation.policies import POLICIES, Policy, describe, parse
from golden.files import json_text, replacing
from golden.lm.commands import add_model, at_least, check_output, open_model
from golden.lm.perplexity import CONTEXT
from golden.lm.text import first_tokens, read_text, read_texts
from golden.trace import TraceError, load

TOKENS = 1024
DEFAULTS = (
    "streaming:capacity=128",
    "h2o:capacity=128",
    "voting:capacity=128",
    "blocks:capacity=128",
    "topick:threshold=0.001",
    "lad",
    "spatten",
    "kv:bits=4",
    "tsuru",
    "kllm",
    "rtn",
    "smoothquant",
)
AFTER_PROMPT = (
    "snapkv:capacity=128",
    "unicaim:heavy=96,reserved=32,top_k=32",
    "unicaim_core:heavy=96,reserved=32,top_k=32",
)

KLLM = """\
KLLM's whole format, weights, activations, norms and attention at four bits, on a text of
your own (fitting takes minutes, once for a model, and is kept in the cache folder;
head=true quantises the output matrix too, tuned=false saves half of the minutes):
  python -m golden eval --text FILE --tokens 512 --policy dense \\
    --policy kllm:norms=fused,attention=quantised,outlier_share=0.08,tuned=true"""


def register(commands: argparse._SubParsersAction) -> None:
    """Add the commands to the parser's."""
    names = "\n".join(f"  {describe(name)}" for name in POLICIES)
    command = commands.add_parser(
        "eval",
        help="quality and traffic of each algorithm",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run the language model with each algorithm in its attention (or, for rtn and\n"
        "kllm, in its matrix products) and print perplexity, output error against dense\n"
        "attention on the same inputs, reads of K and V, and the size of the cache.",
        epilog=f"policies and their parameters (tuples as 1/2/3):\n{names}\n\n{KLLM}",
    )
    add_model(command, tokens=TOKENS, texts="+")
    command.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="run on a trace's q, k and v instead of a model: no perplexity, no download",
    )
    command.add_argument(
        "--prompt",
        type=at_least(1),
        default=1,
        metavar="N",
        help="length of the prompt at the start, where nothing is counted; some policies treat it"
        " differently (default: %(default)s)",
    )
    command.add_argument(
        "--policy",
        action="append",
        metavar="NAME[:PARAM=VALUE,...]",
        help="an algorithm, once for each (default: dense and one of each kind)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    add_context(command)
    command.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help=f"draw quality against traffic ({', '.join(FORMATS)}, by the name's ending)",
    )
    command.set_defaults(run=run_eval)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # refused by the result
def run_eval(arguments: argparse.Namespace) -> None:
    """Print a table or JSON. Raises ``InputError``, ``TraceError`` or ``OSError``."""
    if arguments.plot is not None:
        check_output(arguments.plot)
        if arguments.plot.suffix.lstrip(".") not in FORMATS:
            raise InputError(f"--plot: the name must end in {' or '.join(FORMATS)}")
    if arguments.trace is not None and (arguments.text or arguments.model):
        raise InputError("--trace: a trace takes the place of a text and a model; give one of them")
    if arguments.context is not None:
        _at_context(arguments)
        return
    for name in CONTEXT_OPTIONS:
        if getattr(arguments, name) is not None:
            raise InputError(f"--{name}: it is for a fixed context, which --context gives")
    prompt = arguments.prompt
    chosen = arguments.policy or ["dense", *DEFAULTS, *(AFTER_PROMPT if prompt > 1 else ())]
    # The first token, which is always given, is no prompt.
    given = {"prompt": prompt} if prompt > 1 else {}
    policies = [parse(text, **given) for text in chosen]
    if arguments.trace is None:
        measured, about = _on_model(arguments, policies)
    else:
        products = [policy.text for policy in policies if policy.quantises_products]
        if arguments.policy and products:
            raise InputError(f"policy {products[0]}: it has no attention to run on a trace")
        if not arguments.policy:
            policies = [policy for policy in policies if not policy.needs_model]
        measured, about = _on_trace(arguments, policies)
    if arguments.plot is not None:
        with replacing(arguments.plot) as file:
            scatter(measured, about["input"]).savefig(file, format=arguments.plot.suffix[1:])
    if arguments.json:
        print(json_text(about | {"policies": [m.as_json() for m in measured]}))
    else:
        # A file or a pipe has no width.
        console = Console(width=None if sys.stdout.isatty() else 110)
        console.print(table(measured, f"{about['input']}, {about['counted']} tokens counted"))
        for m in measured:
            if m.idle:
                print(f"{m.policy}: {m.idle}")
        for m in measured:
            if m.figures:
                listed = ", ".join(f"{name} {value:.4g}" for name, value in m.figures.items())
                print(f"{m.policy}: {listed}")
        if arguments.plot is not None:
            print(f"wrote {arguments.plot}")


def _at_context(arguments: argparse.Namespace) -> None:
    for name, default in (("trace", None), ("plot", None), ("prompt", 1), ("tokens", TOKENS)):
        if getattr(arguments, name) != default:
            raise InputError(f"--{name}: with --context it has no meaning")
    policies = check_policies(arguments.policy or ["dense", *DEFAULTS, *AFTER_PROMPT], arguments)
    texts, judge = (
        read_texts(sources)
        for sources in (arguments.text or [None], arguments.judge or arguments.text or [None])
    )
    setting = setting_of(arguments, *open_model(arguments.model))
    run_context(setting, policies, arguments.kl or (), texts, judge, json=arguments.json)


def _on_model(
    arguments: argparse.Namespace, policies: list[Policy]
) -> tuple[list[Measurement], dict]:
    tokens, prompt = arguments.tokens, arguments.prompt
    if tokens <= prompt:
        raise InputError(f"--tokens: it must be more than the prompt's {prompt}, not {tokens}")
    texts = arguments.text or [None]
    if len(texts) > 1:
        raise InputError("--text: several texts are for windows of a fixed --context")
    text, source = read_text(texts[0])
    model, tokenizer, about = open_model(arguments.model)
    context = min(CONTEXT, model.config.context)
    if context <= prompt:
        raise InputError(f"--prompt: the model sees {context} tokens at most, so not {prompt}")
    numbers = first_tokens(tokenizer, text, tokens, source)
    options = {"prompt": prompt, "context": context, "progress": True}
    evaluated = tokenizer.decode(numbers)
    if any(policy.quantises_products for policy in policies):
        options["samples"] = calibration_samples(tokenizer, evaluated=evaluated)
    if any(policy.parameters.get("tuned") for policy in policies):
        options["tuning"] = tuning_samples(tokenizer, evaluated=evaluated)
    if any(policy.needs_constants for policy in policies):
        options["constants"] = kept_key_constants(model, constant_samples(tokenizer, context))
    measured = [_sound(measure, policy, model, numbers, **options) for policy in policies]
    counted = sum(
        max(0, min(context, tokens - first) - prompt) for first in range(0, tokens, context)
    )
    about |= {"input": f"{about['model']} on {source}", "text": source, "tokens": tokens}
    return measured, about | {"prompt": prompt, "counted": counted, "context": context}


def _on_trace(
    arguments: argparse.Namespace, policies: list[Policy]
) -> tuple[list[Measurement], dict]:
    path, prompt = arguments.trace, arguments.prompt
    trace = load(path)
    if trace.q is None:
        raise TraceError(f"trace {path}: it holds no q, k and v")
    length = trace.q.shape[2]
    if length <= prompt:
        raise InputError(
            f"--prompt: the trace has {length} tokens, which must be more than the {prompt} given"
        )
    options = {"prompt": prompt, "progress": True}
    measured = [_sound(measure_trace, policy, trace, **options) for policy in policies]
    about = {"input": f"{len(trace.q)} layers of {path.name}", "trace": str(path)}
    return measured, about | {"tokens": length, "prompt": prompt, "counted": length - prompt}


def _sound(run: Callable[..., Measurement], policy: Policy, *inputs, **options) -> Measurement:
    """A measurement whose figures are finite.

    :raises InputError: if the policy refuses this input.
    :raises FailedError: if values overflow.
    """
    try:
        found = run(policy, *inputs, **options)
    except (InputError, TraceError):
        raise
    except ValueError as error:
        raise InputError(f"policy {policy.text}: {error}") from None
    if not math.isfinite(found.error) or not math.isfinite(found.perplexity or 0):
        raise FailedError(f"policy {policy.text}: its figures are not finite: values overflow")
    return found


def table(measured: list[Measurement], title: str) -> Table:
    """The measurements for a terminal."""
    made = Table(
        title=title,
        caption="times: perplexity, of dense; error: of the replaced outputs, on the same inputs;"
        " reads: bytes, of dense FP16; kept: tokens in the cache at the end",
        box=box.SIMPLE_HEAD,
    )
    made.add_column("policy", overflow="fold")
    for name in ("perplexity", "times", "error", "K read", "V read", "kept", "cache", "s"):
        made.add_column(name, justify="right", no_wrap=True)
    dense = next((m.perplexity for m in measured if m.policy == "dense"), None)
    for m in measured:
        half = m.traffic.dense_bytes / 2 or 1
        made.add_row(
            m.policy,
            "-" if m.perplexity is None else f"{m.perplexity:.2f}",
            "-" if m.perplexity is None or dense is None else f"{m.perplexity / dense:.3f}",
            "idle" if m.idle else f"{m.error:.2%}",
            f"{m.traffic.k_bytes / half:.1%}",
            f"{m.traffic.v_bytes / half:.1%}",
            f"{m.rows:.0f}",
            f"{m.cache_bytes / 1e6:.2f} MB",
            f"{m.seconds:.0f}",
        )
    return made
