"""The commands ``trace`` and ``perplexity`` of ``python -m golden``."""

import argparse
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from golden import FailedError, InputError
from golden.files import check_writable, file_sha256, json_text
from golden.lm.architectures import read_weights
from golden.lm.capture import capture
from golden.lm.gguf_file import GGUFFile
from golden.lm.gguf_tokenizer import read_tokenizer
from golden.lm.model import Llama
from golden.lm.models import DEFAULT, MODELS, catalogue, model_path
from golden.lm.perplexity import CONTEXT, perplexity
from golden.lm.text import first_tokens, read_text, text_source
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config
from golden.trace import save

_NUMBER = re.compile("[0-9]{1,9}")


def register(commands: argparse._SubParsersAction) -> None:
    """Add both commands to the parser's."""
    trace = commands.add_parser(
        "trace",
        help="run the language model on a text and keep the inputs of its layers",
        description="Run the language model on the first tokens of a text and write the queries,"
        " keys, values, activations and weights of some layers to a trace file.",
    )
    add_model(trace, tokens=512)
    trace.add_argument(
        "--layers",
        metavar="LIST",
        help="layers to keep, counted from 0, e.g. 3,15 (default: an early, middle and late one)",
    )
    trace.add_argument(
        "--activations",
        type=at_least(0),
        default=64,
        metavar="N",
        help="tokens whose activations to keep; 0 keeps no activations and no weights"
        " (default: %(default)s)",
    )
    trace.add_argument(
        "--columns",
        type=at_least(0),
        default=32,
        metavar="N",
        help="columns of each weight matrix to keep, evenly spread; 0 keeps no activations and no"
        " weights (default: %(default)s)",
    )
    trace.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the .npz file to write"
    )
    trace.set_defaults(run=run_trace)

    score = commands.add_parser(
        "perplexity",
        help="measure how well the language model predicts a text",
        description="Measure the language model's perplexity on the first tokens of a text, with"
        f" dense attention, in windows of at most {CONTEXT} tokens. Lower is better.",
    )
    add_model(score, tokens=2000)
    score.add_argument("--json", action="store_true", help="print the result as one JSON object")
    score.set_defaults(run=run_perplexity)


def run_trace(arguments: argparse.Namespace) -> None:
    """Write a trace file. Raises ``InputError`` or ``OSError``."""
    output = arguments.output
    check_output(output)
    # The command line is checked before a download starts.
    chosen = None if arguments.layers is None else _parse_layers(arguments.layers)
    text, source = read_text(arguments.text)
    model, tokenizer, about = open_model(arguments.model)
    layers = chosen or _spread_layers(model.config)
    _check_layers(layers, model.config, arguments.tokens)
    if arguments.tokens > model.config.context:
        raise InputError(
            f"--tokens: the model sees at most {model.config.context} tokens,"
            f" so not {arguments.tokens}"
        )
    tokens = first_tokens(tokenizer, text, arguments.tokens, source)
    trace = capture(
        model,
        tokens,
        layers,
        activations=arguments.activations,
        columns=arguments.columns,
        meta=about | {"text": source},
        progress=True,
    )
    save(output, trace)
    q, k, *_ = trace.attention
    _, heads, length, d = q.shape
    print(
        f"wrote {output} ({output.stat().st_size / 1e6:.2f} MB): layers"
        f" {', '.join(map(str, layers))} of {about['model']}, {heads} query heads over"
        f" {k.shape[1]} kv heads of {d} elements, {length} tokens of {source}"
    )


@np.errstate(over="ignore", invalid="ignore")  # refused by the result
def run_perplexity(arguments: argparse.Namespace) -> None:
    """Print a perplexity. Raises ``InputError`` or ``OSError``."""
    if arguments.tokens < 2:
        raise InputError("--tokens: a perplexity needs 2 tokens at least, not 1")
    text, source = read_text(arguments.text)
    model, tokenizer, about = open_model(arguments.model)
    tokens = first_tokens(tokenizer, text, arguments.tokens, source)
    context = min(CONTEXT, model.config.context)
    started = time.perf_counter()
    score = perplexity(model, tokens, context=context, progress="perplexity")
    wall = time.perf_counter() - started
    if not math.isfinite(score.perplexity):
        raise FailedError(f"the perplexity of {about['model']} is not finite: its values overflow")
    if arguments.json:
        result = {"perplexity": score.perplexity, "tokens": len(tokens), "wall_s": round(wall, 3)}
        print(json_text(result | {"model": about["model"], "text": source, "context": context}))
    else:
        print(
            f"perplexity {score.perplexity:.3f} of {about['model']} on {len(tokens)} tokens of"
            f" {source} ({wall:.1f} s)"
        )


def open_model(source: Path | str | None) -> tuple[Llama, Tokenizer, dict]:
    """A model and its tokenizer, and its file's name and SHA-256.

    source
        Path of a GGUF file, or a name in ``golden.lm.models.MODELS``; None for the default model.

    :raises InputError: if the file cannot be read, run or fetched.
    """
    if isinstance(source, Path):
        file = GGUFFile(source)
        sha256 = file_sha256(source)
    else:
        name = source or DEFAULT
        file = GGUFFile(model_path(name))
        sha256 = MODELS[name].file.sha256
    about = {"model": file.path.name, "model_sha256": sha256}
    return Llama(read_weights(file)), read_tokenizer(file), about


def add_model(
    parser: argparse.ArgumentParser, tokens: int, texts: Literal["+"] | None = None
) -> None:
    """Add --text, --model, --gguf and --tokens; with `texts` "+", several texts."""
    several = "; development or held-out is every text of that role" if texts else ""
    parser.add_argument(
        "--text",
        type=text_source,
        nargs=texts,
        metavar="TEXT",
        help="a text's name, as 'python -m golden texts' lists them, or else a UTF-8 file"
        f"{several} (default: prose of Python 3.11's language reference)",
    )
    add_source(parser)
    parser.add_argument(
        "--tokens",
        type=at_least(1),
        default=tokens,
        metavar="N",
        help="tokens of the text to run on (default: %(default)s)",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add --model and --gguf, of which ``model`` is the name, path or None for ``open_model``."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--model",
        choices=MODELS,
        metavar="NAME",
        help=f"a language model by name, fetched once into $SENBAZURU_CACHE or ~/.cache/senbazuru:"
        f" {catalogue()} (default: {DEFAULT})",
    )
    source.add_argument(
        "--gguf",
        dest="model",
        type=Path,
        metavar="FILE",
        help="a model of your own",
    )


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number from `least`."""

    def parse(text: str) -> int:
        if re.fullmatch("[0-9]{10,}", text):
            raise argparse.ArgumentTypeError(f"it must be below 10^9, not {text}")
        if not _NUMBER.fullmatch(text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"it must be a whole number from {least}, not {text}")
        return int(text)

    return parse


def _spread_layers(config: Config) -> list[int]:
    """An early, a middle and a late one of the layers that see all tokens."""
    whole = [layer for layer in range(config.layers) if config.window(layer) is None]
    whole = whole or [*range(config.layers)]
    return sorted({whole[len(whole) * tenths // 10] for tenths in (1, 5, 9)})


def _check_layers(layers: list[int], config: Config, tokens: int) -> None:
    if max(layers) >= config.layers:
        last = config.layers - 1
        raise InputError(f"--layers: the model has layers 0 to {last}, so not {max(layers)}")
    for layer in layers:
        window = config.window(layer)
        if window is not None and tokens > window:
            raise InputError(
                f"--layers: layer {layer} sees a window of {window} tokens, and a trace has none;"
                f" give --tokens {window} or fewer, or another layer"
            )


def _parse_layers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        raise InputError(f"--layers: give layer numbers separated by commas, e.g. 3,15, not {text}")
    layers = [int(part) for part in parts]
    if sorted(set(layers)) != layers:
        raise InputError(f"--layers: give each layer once, in rising order, not {text}")
    return layers


def check_output(path: Path) -> None:
    """Raise ``InputError`` or ``OSError`` when a file cannot be written there."""
    if path.is_dir():
        raise InputError(f"output {path}: it is a folder")
    if not path.parent.is_dir():
        raise InputError(f"output {path}: the folder {path.parent} does not exist")
    check_writable(path)
