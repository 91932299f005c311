"""Byte-pair encoding on a vocabulary small enough to merge by hand."""

import pytest

from golden import InputError
from golden.lm.tokenizer import Tokenizer, read_tokenizer
from golden.lm.weights import GGUFFile
from tests.support.lm.tiny_llama import MERGES, TOKENS, byte_tokens, write_gguf


def words(pre, text):
    """Words of ``text`` by a pre-tokenizer, with a vocabulary that merges every word."""
    return list(Tokenizer(TOKENS, MERGES, pre)._split(text))


def test_merges_apply_in_order_of_rank():
    tokens = [*"abc", "ab", "bc", "abc"]
    assert Tokenizer(tokens, ["b c", "a b", "a bc"], "gpt-2").encode("abc") == [5]
    assert Tokenizer(tokens, ["a b", "b c", "a bc"], "gpt-2").encode("abc") == [3, 2]
    assert Tokenizer(["a", "aa"], ["a a"], "gpt-2").encode("aaaaa") == [1, 1, 0]


def test_bytes_merge_inside_words_only():
    tokenizer = Tokenizer(TOKENS, MERGES, "gpt-2")
    assert tokenizer.encode("the the") == [257, 258]
    assert tokenizer.encode("  the") == [32, 258]
    assert tokenizer.encode("a a") == [97, 259]
    assert tokenizer.encode("é") == [0xC3, 0xA9]


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
def test_decode_undoes_encode(pre):
    tokenizer = Tokenizer(TOKENS, MERGES, pre)
    text = "It's the  theme:\n\n\t3½ naïve cafés, 中国 🙂 \x00\x85 x_1 \u200b end  "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(tokenizer._split(text)) == text


def test_every_byte_has_its_character():
    tokenizer = Tokenizer(TOKENS, [], "gpt-2")
    assert tokenizer.decode(list(range(0x41, 0x44))) == "ABC"
    for character in map(chr, range(256)):
        assert tokenizer.encode(character) == list(character.encode())
    assert len(set(byte_tokens())) == 256


def test_bytes_that_are_no_text_are_replaced():
    assert Tokenizer(TOKENS, [], "gpt-2").decode([0x41, 0xFF]) == "A\ufffd"


def test_limit_and_beginning_of_text():
    tokenizer = Tokenizer(TOKENS, MERGES, "gpt-2", bos=0)
    assert tokenizer.encode("the the the") == [0, 257, 258, 258]
    assert tokenizer.encode("the the the", limit=2) == [0, 257]
    assert tokenizer.encode("xyz", limit=3) == [0, ord("x"), ord("y")]


def test_gpt2_words():
    text = "I've 12 cats,  they'll run…\n\nNaïve x² Ⅷ!"
    assert words("gpt-2", text) == [
        "I", "'ve", " 12", " cats", ",", " ", " they", "'ll", " run", "…", "\n", "\n", "Naïve",
        " x", "²", " Ⅷ", "!",
    ]  # fmt: skip


def test_smollm_splits_digits_singly():
    assert words("smollm", "in 1872, a9") == [
        "in", " ", "1", "8", "7", "2", ",", " a", "9",
    ]  # fmt: skip
    assert words("smollm", "x  7") == ["x", "  ", "7"]


def test_llama3_words():
    text = "It'S 12345 cats!!\n\n  ok"
    assert words("llama-bpe", text) == [
        "It", "'S", " ", "123", "45", " cats", "!!\n\n", " ", " ok",
    ]  # fmt: skip


def test_llama3_takes_whole_words_first():
    tokens = [*TOKENS, "ox"]
    assert Tokenizer(tokens, MERGES, "llama-bpe").encode("ox") == [260]
    assert Tokenizer(tokens, MERGES, "gpt-2").encode("ox") == [ord("o"), ord("x")]


def test_control_characters_are_no_spaces():
    """Unicode's White_Space lacks U+001C to U+001F, which Python's str.isspace has."""
    assert words("gpt-2", "a\x1c b") == ["a", "\x1c", " b"]


def test_a_vocabulary_may_lack_a_byte():
    with pytest.raises(InputError, match="the vocabulary has no token for 'b'"):
        Tokenizer(["a"], [], "gpt-2").encode("ab")


def test_read_from_a_file(tmp_path, tensors):
    path = write_gguf(tmp_path / "m.gguf", tensors, bos=7)
    assert read_tokenizer(GGUFFile(path)).encode("the the") == [7, 257, 258]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pre": "tekken"}, "the pre-tokenizer 'tekken' is not supported; known are gpt-2"),
        ({"kind": "llama"}, "its tokenizer is of kind 'llama'; only 'gpt2'"),
    ],
)
def test_tokenizers_that_cannot_be_run(tmp_path, tensors, settings, sentence):
    path = write_gguf(tmp_path / "m.gguf", tensors, **settings)
    with pytest.raises(InputError) as caught:
        read_tokenizer(GGUFFile(path))
    assert str(caught.value).startswith(f"model {path}: ") and sentence in str(caught.value)
