"""Windows of texts: where they begin, what they hold, and texts that are too short."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import InputError
from golden.evaluation.windows import Window, echo, prose
from golden.lm.byte_level import ByteLevelTokenizer
from tests.support.lm.tiny_llama import MERGES, TOKENS

TOKENIZER = ByteLevelTokenizer(TOKENS, MERGES, "gpt-2")
BEGINNING = ByteLevelTokenizer([*TOKENS, "<bos>"], MERGES, "gpt-2", bos=260, special=[260])


def text(length, first=0):
    """ASCII text of `length` tokens: the digits of a counter, which no merge joins."""
    return "".join(f"{number:03}" for number in range(first, first + length))[:length]


def starts(windows, name):
    return [int(w.source.split(":")[1]) for w in windows if w.source.startswith(f"{name}:")]


def test_a_window_is_a_piece_of_its_text():
    texts = {"one": text(100), "two": text(95, 500)}
    windows = prose(TOKENIZER, texts, context=20, queries=5, windows=4)
    # From the first token to the last.
    assert starts(windows, "one") == [0, 80] and starts(windows, "two") == [0, 75]
    for window in windows:
        name, at = window.source.split(":")
        assert TOKENIZER.decode(list(window.tokens)) == texts[name][int(at) : int(at) + 20]
        assert (window.queries, window.kind) == (5, "prose")


def test_each_window_begins_as_the_model_wants():
    [window] = prose(BEGINNING, {"one": text(30)}, context=20, queries=5, windows=1)
    assert window == Window((260, *text(30)[:19].encode()), 5, "one:0")


def test_three_windows_are_of_three_texts():
    texts = {name: text(100) for name in "abcd"}
    assert [w.source[0] for w in prose(TOKENIZER, texts, 20, 5, 3)] == ["a", "b", "c"]
    assert [w.source[0] for w in prose(TOKENIZER, texts, 20, 5, 6)] == [*"aabbcd"]


def test_a_short_text_gives_what_it_has_room_for():
    texts = {"short": text(25), "long": text(400)}
    windows = prose(TOKENIZER, texts, 20, 5, 10)
    assert len(starts(windows, "short")) == 1 and len(starts(windows, "long")) == 9


def test_windows_overlap_only_where_the_text_is_short():
    windows = prose(TOKENIZER, {"one": text(50)}, context=20, queries=5, windows=7)
    assert starts(windows, "one") == [0, 5, 10, 15, 20, 25, 30]
    with pytest.raises(InputError, match="one: 50 tokens are too few for 8 windows of 20 that"):
        prose(TOKENIZER, {"one": text(50)}, context=20, queries=5, windows=8)


@given(
    lengths=st.lists(st.integers(12, 90), min_size=1, max_size=5),
    context=st.integers(2, 12),
    queries=st.integers(1, 11),
    windows=st.integers(1, 30),
)
def test_no_token_is_predicted_twice(lengths, context, queries, windows):
    texts = {str(number): text(length) for number, length in enumerate(lengths)}
    if queries >= context:
        with pytest.raises(InputError, match="both numbers must be at least 1"):
            prose(TOKENIZER, texts, context, queries, windows)
        return
    room = sum(1 + (length - context) // queries for length in lengths[:windows])
    if room < windows:
        with pytest.raises(InputError, match="are too few for"):
            prose(TOKENIZER, texts, context, queries, windows)
        return
    made = prose(TOKENIZER, texts, context, queries, windows)
    assert len(made) == windows and {len(w.tokens) for w in made} == {context}
    whole = sum(length // context for length in lengths[:windows]) >= windows
    for name, length in zip(texts, lengths, strict=True):
        found = starts(made, name)
        assert all(0 <= at <= length - context for at in found)
        apart = context if whole else queries
        assert all(b - a >= apart for a, b in itertools.pairwise(found))


def test_a_text_without_a_window():
    texts = {"long": text(100), "short": text(19)}
    with pytest.raises(InputError, match="text short: it has 19 tokens, fewer than the 20 of a"):
        prose(TOKENIZER, texts, 20, 5, 2)
    with pytest.raises(InputError, match="5 tokens are too few for 4 predicted ones"):
        prose(BEGINNING, texts, 5, 4, 1)


def test_an_echo_repeats_an_earlier_piece():
    texts = {"one": text(300), "two": text(300, 500)}
    windows = echo(TOKENIZER, texts, context=100, windows=3, queries=10, at=30)
    plain = prose(TOKENIZER, texts, context=100, queries=10, windows=3)
    for window, before in zip(windows, plain, strict=True):
        assert window.tokens == before.tokens[:90] + before.tokens[30:40]
        assert (window.source, window.queries, window.kind) == (before.source, 10, "echo")


def test_the_place_of_an_echo_scales():
    [window] = echo(TOKENIZER, {"one": text(5000)}, context=2048, windows=1)
    assert window.queries == 128 and window.tokens[-128:] == window.tokens[300:428]
    [window] = echo(TOKENIZER, {"one": text(5000)}, context=512, windows=1)
    assert window.tokens[-128:] == window.tokens[75:203]
    for at in (0, 257):
        with pytest.raises(InputError, match=f"an echo of tokens {at} to {at + 128} does not fit"):
            echo(TOKENIZER, {"one": text(600)}, context=512, windows=1, at=at)
