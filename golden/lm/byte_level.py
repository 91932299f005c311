"""Byte-level byte-pair encoding with a vocabulary and a list of merges.

The `tokenizers` package does the work; nothing is fetched. A text is cut into words by the model's
pre-tokenizer, and a word's UTF-8 bytes are merged in the order of the merge list. Sources: OpenAI's
GPT-2 ``encoder.py`` for the bytes and merges, llama.cpp's ``src/llama-vocab.cpp`` for the
pre-tokenizers' patterns.
"""

from functools import cache
from typing import Any

import tokenizers
from tokenizers import Regex
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from golden import InputError
from golden.lm.tokenizer import Tokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Digits are single. Qwen2's own tokenizer composes characters (NFC) first, llama.cpp does not.
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Patterns are applied in turn, each to the pieces that the one before left.
_PATTERNS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_QWEN2,),
}

# Llama 3 takes a word that is a token as it is, even where the merges would not lead to it.
_WHOLE_WORDS = ("llama-bpe",)


class ByteLevelTokenizer(Tokenizer):
    """A tokenizer of GPT-2's kind.

    ``merges`` are pairs "left right" in order of preference, ``pre`` names the pre-tokenizer; the
    rest is as in :class:`golden.lm.tokenizer.Tokenizer`. Raises ``InputError`` when ``pre`` is
    unknown or a merge is not a pair.
    """

    def __init__(
        self, tokens: list[str], merges: list[str], pre: str, bos: int | None = None, **others: Any
    ) -> None:
        super().__init__(tokens, bos, **others)
        if pre not in _PATTERNS:
            raise InputError(
                f"the pre-tokenizer {pre!r} is not supported; known are {', '.join(_PATTERNS)}"
            )
        self._bpe = tokenizers.Tokenizer(_model(tokens, merges, pre in _WHOLE_WORDS))
        patterns = [Split(Regex(pattern), "isolated") for pattern in _PATTERNS[pre]]
        to_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
        self._bpe.pre_tokenizer = Sequence([*patterns, to_bytes])
        self._bpe.add_special_tokens(
            [
                tokenizers.AddedToken(tokens[number], special=True, normalized=False)
                for number in sorted(self._special)
            ]
        )

    def _encode_block(self, text: str, begins: bool) -> list[int]:
        numbers = self._bpe.encode(text, add_special_tokens=False).ids
        if numbers and (largest := max(numbers)) >= len(self._tokens):
            lacking = self._bpe.id_to_token(largest)
            raise InputError(f"the vocabulary has no token for {lacking!r}")
        return numbers

    def _bytes_of(self, number: int) -> bytes:
        bytes_of = _bytes_of_characters()
        return b"".join(bytes_of.get(c, c.encode()) for c in self._tokens[number])


def _model(tokens: list[str], merges: list[str], whole_words: bool) -> BPE:
    """The package's model, which drops bytes that it has no token for, and refuses such merges.

    So whatever the vocabulary lacks has a number from ``len(tokens)`` on, which is found later.
    """
    pairs = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space or " " in right:
            raise InputError(f"the merge {merge!r} is not a pair of tokens")
        pairs.append((left, right))
    number = {token: number for number, token in enumerate(tokens)}
    parts = {part for left, right in pairs for part in (left, right, left + right)}
    lacking = sorted({*_bytes_of_characters(), *parts} - number.keys())
    number |= {token: len(tokens) + index for index, token in enumerate(lacking)}
    return BPE(number, pairs, ignore_merges=whole_words)


@cache
def _bytes_of_characters() -> dict[str, bytes]:
    """The byte of GPT-2's printable characters: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return {chr(n if n in printable else next(spare)): bytes([n]) for n in range(256)}
