"""Byte-pair encoding on a vocabulary small enough to merge by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import InputError
from golden.lm import tokenizer as module
from golden.lm.byte_level import ByteLevelTokenizer
from golden.lm.gguf_file import GGUFFile
from golden.lm.gguf_tokenizer import read_tokenizer
from tests.support.lm.tiny_llama import MERGES, TOKENS, byte_tokens, write_gguf


def words(pre, text):
    """Words of ``text`` by a pre-tokenizer."""
    split = ByteLevelTokenizer(TOKENS, MERGES, pre)._bpe.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in split]


def test_merges_apply_in_order_of_rank():
    tokens = [*"abc", "ab", "bc", "abc"]
    assert ByteLevelTokenizer(tokens, ["b c", "a b", "a bc"], "gpt-2").encode("abc") == [5]
    assert ByteLevelTokenizer(tokens, ["a b", "b c", "a bc"], "gpt-2").encode("abc") == [3, 2]
    assert ByteLevelTokenizer(["a", "aa"], ["a a"], "gpt-2").encode("aaaaa") == [1, 1, 0]


def test_bytes_merge_inside_words_only():
    tokenizer = ByteLevelTokenizer(TOKENS, MERGES, "gpt-2")
    assert tokenizer.encode("the the") == [257, 258]
    assert tokenizer.encode("  the") == [32, 258]
    assert tokenizer.encode("a a") == [97, 259]
    assert tokenizer.encode("é") == [0xC3, 0xA9]


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_decode_undoes_encode(pre):
    tokenizer = ByteLevelTokenizer(TOKENS, MERGES, pre)
    text = "It's the  theme:\n\n\t3½ naïve cafés, 中国 🙂 \x00\x85 x_1 \u200b end  "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(words(pre, text)) == text


def merged(word):
    """Token numbers of one word: pairs merged, the earliest in the list first."""
    parts = [TOKENS[byte] for byte in word.encode()]
    while ranks := [
        (MERGES.index(" ".join(pair)), at)
        for at, pair in enumerate(zip(parts, parts[1:], strict=False))
        if " ".join(pair) in MERGES
    ]:
        _, at = min(ranks)
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    return [TOKENS.index(part) for part in parts]


@given(st.lists(st.sampled_from("thea 中é\n 1'")).map("".join))
def test_words_are_merged_one_by_one(text):
    numbers = [number for word in words("gpt-2", text) for number in merged(word)]
    assert ByteLevelTokenizer(TOKENS, MERGES, "gpt-2").encode(text) == numbers


def test_every_byte_has_its_character():
    tokenizer = ByteLevelTokenizer(TOKENS, [], "gpt-2")
    assert tokenizer.decode(list(range(0x41, 0x44))) == "ABC"
    for character in map(chr, range(256)):
        assert tokenizer.encode(character) == list(character.encode())
    assert len(set(byte_tokens())) == 256


def test_bytes_that_are_no_text_are_replaced():
    assert ByteLevelTokenizer(TOKENS, [], "gpt-2").decode([0x41, 0xFF]) == "A\ufffd"


def test_limit_and_beginning_of_text():
    tokenizer = ByteLevelTokenizer(TOKENS, MERGES, "gpt-2", bos=0)
    assert tokenizer.encode("the the the") == [0, 257, 258, 258]
    assert tokenizer.encode("the the the", limit=2) == [0, 257]
    assert tokenizer.encode("xyz", limit=3) == [0, ord("x"), ord("y")]


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@given(
    text=st.lists(st.sampled_from(["the", " a", "\n", "  ", "!", "7", "'s", "<b c>", "é"])).map(
        "".join
    ),
    special=st.booleans(),
    limit=st.integers(0, 40),
)
def test_a_limit_only_cuts(pre, text, special, limit):
    """As encode reads a text by blocks, cut at words' ends."""
    tokens = [*TOKENS, "<b c>"]
    tokenizer = ByteLevelTokenizer(tokens, MERGES, pre, special=[260] if special else [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 3)
        assert tokenizer.encode(text, limit) == tokenizer.encode(text)[:limit]


def test_a_limit_ends_the_reading():
    tokenizer = ByteLevelTokenizer(TOKENS[:256], [], "gpt-2")
    text = " the" * 10_000 + "\ud800"
    assert tokenizer.encode(text, 4) == list(b" the")
    with pytest.raises(InputError, match=r"the text has '.ud800', which is not Unicode"):
        tokenizer.encode(text)


def test_special_tokens_are_one_token_each():
    tokens = [*TOKENS, "<end>", "<end> the", "é"]
    tokenizer = ByteLevelTokenizer(tokens, MERGES, "gpt-2", special=[260, 261, 262])
    assert tokenizer.encode("a<end> a the") == [97, 260, 259, 258]
    assert tokenizer.encode("<end> the<end>é") == [261, 260, 262]
    assert tokenizer.decode([97, 260, 258, 262]) == "a<end> theé"
    ordinary = ByteLevelTokenizer(tokens, MERGES, "gpt-2")
    assert ordinary.encode("<end>") == list(b"<end>")


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


def test_qwen2_words():
    """As Llama 3's, but for digits, which are single."""
    text = "IT'S they'LL 12345 cats!!\n\n  ok x²¾ 'tis"
    assert words("qwen2", text) == [
        "IT", "'S", " they", "'LL", " ", "1", "2", "3", "4", "5", " cats", "!!\n\n", " ", " ok",
        " x", "²", "¾", " '", "tis",
    ]  # fmt: skip
    assert words("qwen2", "l'été\r\n(don't)") == [
        *("l", "'été", "\r\n", "(don", "'t", ")"),
    ]
    tokens = [*TOKENS, "ox"]
    assert ByteLevelTokenizer(tokens, MERGES, "qwen2").encode("ox") == [ord("o"), ord("x")]


def test_llama3_takes_whole_words_first():
    tokens = [*TOKENS, "ox"]
    assert ByteLevelTokenizer(tokens, MERGES, "llama-bpe").encode("ox") == [260]
    assert ByteLevelTokenizer(tokens, MERGES, "gpt-2").encode("ox") == [ord("o"), ord("x")]


def test_control_characters_are_no_spaces():
    """Unicode's White_Space lacks U+001C to U+001F, which Python's str.isspace has."""
    assert words("gpt-2", "a\x1c b") == ["a", "\x1c", " b"]


def test_a_vocabulary_may_lack_a_byte():
    with pytest.raises(InputError, match="the vocabulary has no token for 'b'"):
        ByteLevelTokenizer(["a"], [], "gpt-2").encode("ab")


def test_a_merge_is_a_pair():
    with pytest.raises(InputError, match="the merge 't h e' is not a pair of tokens"):
        ByteLevelTokenizer(TOKENS, ["t h e"], "gpt-2")
    tokenizer = ByteLevelTokenizer(TOKENS, ["x y"], "gpt-2")
    with pytest.raises(InputError, match="the vocabulary has no token for 'xy'"):
        tokenizer.encode("a xy")


KEY = "tokenizer."
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n    {% if message.role == 'user' %}\n"
    "{{ message.content }}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}the{% endif %}"
)


def chatting(template, **options):
    """A tokenizer with a chat template and the special tokens <bos> and <eos>."""
    options = {"special": [260, 261], "known": {"bos": 260, "eos": 261}} | options
    return ByteLevelTokenizer(
        [*TOKENS, "<bos>", "<eos>"], MERGES, "gpt-2", template=template, **options
    )


def test_chat_by_the_models_template():
    assert chatting(TEMPLATE).chat("a the") == [260, 97, 258, 261, 257]
    # The first token is put in front once, whether or not the template has it.
    assert chatting(TEMPLATE, bos=260).chat("a") == [260, 97, 261, 257]
    assert chatting("a{{ messages[0].content }}", bos=260).chat("b") == [260, *b"ab"]
    assert chatting(TEMPLATE, known={}).chat("a") == [97, 257]
    # A special token in the user's text is one, as in every text.
    assert chatting(TEMPLATE).chat("<eos>") == [260, 261, 261, 257]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "the model has no chat template (tokenizer.chat_template)"),
        ("{% if %}", "the model's chat template does not run: Expected an expression, got"),
        ("{{ raise_exception('no user\n may speak') }}", "does not run: no user may speak"),
        ("{{ messages.append(1) }}", "the model's chat template does not run: "),
        ("{{ ''.__class__.__mro__ }}", "the model's chat template does not run: "),
        ("{{ 1 / 0 }}", "the model's chat template does not run: division by zero"),
        ("{{ tools[0].name }}", "the model's chat template does not run: 'tools' is undefined"),
    ],
)
def test_chats_that_cannot_be(template, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        chatting(template).chat("a")
    assert "\n" not in str(caught.value)


def test_tokens_that_end_an_answer():
    assert chatting(None).ends == {261}
    assert chatting(None, known={"bos": 260}).ends == set()
    assert chatting(None, known={"eot": 5, "eos": 6, "eom": 7}).ends == {5, 6, 7}
    names = [*TOKENS, "<|im_end|>", "<|eot_id|>"]
    assert ByteLevelTokenizer(names, MERGES, "gpt-2", special=[260]).ends == {260}


def test_a_file_s_special_tokens_ends_and_template(tmp_path, tensors):
    def extra(writer):
        writer.add_token_types(
            [4 if token == "the" else 3 if token == "a" else 1 for token in TOKENS]
        )
        writer.add_eos_token_id(97)
        writer.add_eot_token_id(260)
        writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}{{ bos_token }}")

    path = write_gguf(tmp_path / "m.gguf", tensors, extra=extra)
    tokenizer = read_tokenizer(GGUFFile(path))
    assert tokenizer.encode("xthe a") == [ord("x"), 257, 32, 97]
    assert tokenizer.chat("x") == [ord("x"), 97] and tokenizer.ends == {97}


def test_read_from_a_file(tmp_path, tensors):
    path = write_gguf(tmp_path / "m.gguf", tensors, bos=7)
    assert read_tokenizer(GGUFFile(path)).encode("the the") == [7, 257, 258]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"extra": lambda w: w.add_token_types([1])}, "it must have one tokenizer.ggml.token_type"),
        (
            {"extra": lambda w: w.add_uint32(f"{KEY}chat_template", 1)},
            f"{KEY}chat_template must be",
        ),
        ({"pre": "tekken"}, "the pre-tokenizer 'tekken' is not supported; known are gpt-2"),
        ({"kind": "bert"}, "its tokenizer is of kind 'bert'; only 'gpt2'"),
    ],
)
def test_tokenizers_that_cannot_be_run(tmp_path, tensors, settings, sentence):
    path = write_gguf(tmp_path / "m.gguf", tensors, **settings)
    with pytest.raises(InputError) as caught:
        read_tokenizer(GGUFFile(path))
    assert str(caught.value).startswith(f"model {path}: ") and sentence in str(caught.value)
