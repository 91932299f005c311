"""SentencePiece's encoding on vocabularies small enough to merge by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import InputError
from golden.lm import tokenizer as module
from golden.lm.gguf_file import GGUFFile
from golden.lm.gguf_tokenizer import read_tokenizer
from golden.lm.sentence_piece import SentencePieceTokenizer
from tests.support.lm.tiny_llama import SIZES, write_gguf

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FIRST = ["<unk>", "<s>", "</s>"]
# As SentencePiece numbers them: what merges first has the higher score.
PIECES = ["▁t", "he", "▁the", "▁a", "aa", "er", "▁", "t", "h", "e", "a", "r", "é", "\n"]
TOKENS = [*FIRST, *BYTES, *PIECES]
SCORES = [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))]
ORDINARY = range(259, len(TOKENS))
BYTE_OF = {number: number - 3 for number in range(3, 259)}
NUMBER = {piece: TOKENS.index(piece) for piece in PIECES}


def made(tokens=TOKENS, scores=SCORES, ordinary=ORDINARY, bos=None, **options):
    return SentencePieceTokenizer(tokens, scores, ordinary, BYTE_OF, bos, **options)


def pieces(text, **options):
    """Tokens of a text as they are in the vocabulary."""
    return [TOKENS[number] for number in made(**options).encode(text)]


def test_pairs_merge_by_score():
    assert pieces("the") == ["▁the"]
    assert pieces("the", space_before=False) == ["t", "he"]
    assert pieces("a the") == ["▁a", "▁the"]
    assert pieces("ather") == ["▁a", "t", "he", "r"]  # "he" before "er"
    assert pieces("e er") == ["▁", "e", "▁", "er"]


def test_the_leftmost_of_equals_merges_first():
    assert pieces("aaaaa", space_before=False) == ["aa", "aa", "a"]
    tokens = ["a", "b", "ab", "ba"]
    equal = made(tokens, [0.0, 0.0, -1.0, -1.0], range(4), space_before=False)
    assert equal.encode("aba") == [2, 0] and equal.encode("bab") == [3, 1]


def test_the_best_merge_may_hide_a_better_token():
    """Greedy: "bc" merges before "ab", without which there is no "abd"."""
    tokens, scores = ["a", "b", "c", "d", "ab", "bc", "abd"], [0.0] * 4 + [-2.0, -1.0, 0.0]
    tokenizer = made(tokens, scores, range(7), space_before=False)
    assert tokenizer.encode("abc") == [0, 5] and tokenizer.encode("abd") == [6]


def test_characters_without_a_token_are_bytes():
    assert pieces("é", space_before=False) == ["é"]
    assert pieces("½", space_before=False) == ["<0xC2>", "<0xBD>"]
    assert pieces("🙂t", space_before=False) == ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "t"]
    bare = {"tokens": ["a", "?"], "scores": [0.0, 0.0], "ordinary": [0]}
    lacking = SentencePieceTokenizer(byte_of={}, space_before=False, **bare)
    with pytest.raises(InputError, match="the vocabulary has no token for 'b'"):
        lacking.encode("ab")
    other = SentencePieceTokenizer(byte_of={}, space_before=False, unknown=1, **bare)
    assert other.encode("abba") == [0, 1, 1, 0]


def test_the_text_of_a_byte_is_no_byte():
    """A user's "<0x61>" is six characters, none of which is a token here."""
    assert made(space_before=False).encode("<0x61>") == [3 + byte for byte in b"<0x61>"]


def test_special_tokens_and_spaces_behind_them():
    tokens, scores = [*TOKENS, "<b>", "<b> the", "\n\n"], [*SCORES, 0.0, 0.0, 0.0]
    new = range(len(TOKENS), len(tokens))
    both = {space: made(tokens, scores, special=new, space_before=space) for space in (True, False)}
    text = "a<b>the<b> the\n\n\nthe"
    a, the, the_inside = NUMBER["▁a"], NUMBER["▁the"], [NUMBER["t"], NUMBER["he"]]
    line, space = NUMBER["\n"], NUMBER["▁"]
    assert both[True].encode(text) == [a, new[0], the, new[1], new[2], space, line, *the_inside]
    # Without the space before, words at the beginning differ.
    assert both[False].encode(text) == [
        *(NUMBER["a"], new[0], *the_inside, new[1], new[2], line, *the_inside)
    ]
    assert both[True].encode("<b>") == [new[0]]
    assert both[False].decode(both[False].encode(text)) == text
    assert both[True].decode(both[True].encode("the")) == " the"


def test_beginning_and_end():
    assert made(bos=1).encode("the") == [1, NUMBER["▁the"]]
    assert made(bos=1).encode("") == [1] and made().encode("") == []
    names = [*TOKENS, "<end_of_turn>"]
    assert made(names, [*SCORES, 0.0], special=[len(TOKENS)], known={"eos": 2}).ends == {
        *(2, len(TOKENS))
    }


def slow(text, space_before=True):
    """Token numbers, by a search of the whole text for each merge."""
    parts = list(("▁" if space_before and text else "") + text.replace(" ", "▁"))
    while found := [
        (SCORES[NUMBER[a + b]], -at)
        for at, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
        if a + b in NUMBER
    ]:
        at = -max(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    numbers = []
    for part in parts:
        numbers += [NUMBER[part]] if part in NUMBER else [3 + byte for byte in part.encode()]
    return numbers


@given(st.text("theaaar  é½\n1"), st.booleans())
def test_merges_are_the_slow_ones(text, space_before):
    tokenizer = made(space_before=space_before)
    assert tokenizer.encode(text) == slow(text, space_before)
    decoded = tokenizer.decode(tokenizer.encode(text))
    assert decoded == (" " if space_before and text else "") + text


@pytest.mark.parametrize("joined", [False, True])
@given(
    text=st.lists(st.sampled_from(["the", " a", "\n", "  ", "r a", "<b>", "é"])).map("".join),
    limit=st.integers(0, 30),
)
def test_a_limit_only_cuts(text, limit, joined):
    """Also where a token goes on over the end of a word."""
    tokens, scores = [*TOKENS, "<b>"], [*SCORES, 0.0]
    special, ordinary = [len(TOKENS)], [*ORDINARY]
    if joined:
        tokens, scores = [*tokens, "r▁"], [*scores, 1.0]
        ordinary = [*ORDINARY, len(TOKENS) + 1]
    tokenizer = made(tokens, scores, ordinary, bos=1, special=special)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 3)
        assert tokenizer.encode(text, limit) == tokenizer.encode(text)[:limit]
    if joined:
        assert tokenizer.encode("r a")[2:] == [len(TOKENS) + 1, NUMBER["a"]]


def write(path, tensors, types=None, scores=SCORES, bos=1, extra=lambda writer: None, sizes=SIZES):
    def add(writer):
        writer.add_token_scores(scores)
        writer.add_token_types(types or [2, 3, 3, *[6] * 256, *[1] * len(PIECES)])
        writer.add_bos_token_id(bos)
        writer.add_eos_token_id(2)
        extra(writer)

    options = {"kind": "llama", "tokens": TOKENS, "merges": None, "sizes": sizes}
    return GGUFFile(write_gguf(path, tensors, extra=add, **options))


def test_read_from_a_file(tmp_path, tensors):
    tokenizer = read_tokenizer(write(tmp_path / "m.gguf", tensors))
    a, the = NUMBER["▁a"], NUMBER["▁the"]
    assert tokenizer.encode("a the½") == [1, a, the, 3 + 0xC2, 3 + 0xBD]
    assert tokenizer.encode("<s>the</s>") == [1, 1, the, 2] and tokenizer.ends == {2}

    def bare(writer):
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(False)

    tokenizer = read_tokenizer(write(tmp_path / "n.gguf", tensors, extra=bare))
    assert tokenizer.encode("a the") == [NUMBER["a"], the]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scores": [0.0]}, "it must have one tokenizer.ggml.scores a token"),
        ({"types": [6] * len(TOKENS)}, "its token '<unk>' must be a byte, as <0x0A> is"),
        ({"types": [1]}, "it must have one tokenizer.ggml.token_type a token"),
        ({"bos": 9999}, f"its first token must be one of {len(TOKENS)}"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, tensors, options, sentence):
    with pytest.raises(InputError) as caught:
        read_tokenizer(write(tmp_path / "m.gguf", tensors, **options))
    assert str(caught.value) == f"model {tmp_path / 'm.gguf'}: {sentence}"
