"""Windows of a fixed length from several texts, whose last tokens a model has to predict."""

import dataclasses
import heapq
from collections.abc import Mapping

from golden import InputError
from golden.lm.tokenizer import Tokenizer

ECHO_QUERIES = 128
"""Tokens that an echo repeats."""

# Place of the repeated tokens in the window: token 300 of 2048.
_ECHO_AT, _ECHO_OF = 300, 2048


@dataclasses.dataclass(frozen=True)
class Window:
    """Tokens that a model sees from position 0 on.

    tokens
        The whole window, with the token that the model puts before every text.
    queries
        The number of last tokens that are predicted and counted. The first of them is predicted by
        the token before, so it is less than the number of tokens.
    source
        The text's name and, after a colon, the number of the window's first token in it.
    kind
        ``prose``, ``echo`` or ``retrieval``.
    """

    tokens: tuple[int, ...]
    queries: int
    source: str
    kind: str = "prose"


def prose(
    tokenizer: Tokenizer, texts: Mapping[str, str], context: int, queries: int, windows: int
) -> list[Window]:
    """Windows of ``context`` tokens, spread evenly over the texts, and over each from its start.

    texts
        Texts by name. Each gives its share of the windows, or what it has room for.
    windows
        The number of windows: the first texts give one each if there are fewer windows than texts.

    Windows do not overlap where the texts are long enough. In shorter texts their beginnings may,
    but no token is predicted twice. Raises ``InputError`` when a text has no window, or all of them
    not as many.
    """
    if not 0 < queries < context or windows < 1:
        raise InputError(
            f"windows of {context} tokens cannot be cut with {queries} predicted ones each,"
            f" {windows} times: both numbers must be at least 1, and the second below the first"
        )
    # What the tokenizer puts before every text begins each window.
    first = tuple(tokenizer.encode(""))
    body = context - len(first)
    if body <= queries:
        raise InputError(f"{context} tokens are too few for {queries} predicted ones")
    tokens = {}
    for name, text in list(texts.items())[:windows]:
        tokens[name] = tokenizer.encode(text)[len(first) :]
        if len(tokens[name]) < body:
            raise InputError(
                f"text {name}: it has {len(tokens[name])} tokens, fewer than the {body} of a window"
            )
    lengths = {name: len(of) for name, of in tokens.items()}
    return [
        Window((*first, *tokens[name][at : at + body]), queries, f"{name}:{at}")
        for name, number in _shares(lengths, body, queries, windows).items()
        for at in _starts(lengths[name], body, number)
    ]


def echo(
    tokenizer: Tokenizer,
    texts: Mapping[str, str],
    context: int,
    windows: int,
    *,
    queries: int = ECHO_QUERIES,
    at: int | None = None,
) -> list[Window]:
    """Windows of prose whose last ``queries`` tokens are replaced by those from ``at`` on.

    A test of recall: a model that finds the place copies it. ``at`` is 300 in a window of 2048
    tokens, and in proportion in others. Raises ``InputError`` as :func:`prose`, and when the
    repeated tokens would reach into the repetition.
    """
    if at is None:
        at = context * _ECHO_AT // _ECHO_OF
    if not 0 < at <= context - 2 * queries:
        raise InputError(
            f"an echo of tokens {at} to {at + queries} does not fit a window of {context}"
        )
    return [
        dataclasses.replace(
            window,
            tokens=window.tokens[:-queries] + window.tokens[at : at + queries],
            kind="echo",
        )
        for window in prose(tokenizer, texts, context, queries, windows)
    ]


def _shares(lengths: Mapping[str, int], body: int, queries: int, windows: int) -> dict[str, int]:
    """Number of windows of each text: equal as far as they have room without overlap."""
    shares = dict.fromkeys(lengths, 0)
    # First each text's windows that do not overlap, then those whose predicted tokens do not.
    for most in (
        {name: length // body for name, length in lengths.items()},
        {name: 1 + (length - body) // queries for name, length in lengths.items()},
    ):
        waiting = [(shares[name], order, name) for order, name in enumerate(shares)]
        heapq.heapify(waiting)
        while waiting and sum(shares.values()) < windows:
            share, order, name = heapq.heappop(waiting)
            if share < most[name]:
                shares[name] += 1
                heapq.heappush(waiting, (share + 1, order, name))
    if sum(shares.values()) < windows:
        raise InputError(
            f"{', '.join(lengths)}: {sum(lengths.values())} tokens are too few for {windows}"
            f" windows of {body} that predict {queries} each"
        )
    return shares


def _starts(length: int, body: int, number: int) -> list[int]:
    """First tokens of windows from the text's first to its last, equally far apart."""
    return [index * (length - body) // max(number - 1, 1) for index in range(number)]
