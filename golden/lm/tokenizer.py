"""Byte-level byte-pair encoding with a model's own vocabulary.

A text is cut into words by the model's pre-tokenizer, each word's UTF-8 bytes are written as
printable characters (GPT-2's table), and neighbours are merged in the order of the vocabulary's
merge list until none applies. Sources: OpenAI's GPT-2 ``encoder.py`` for the bytes and merges,
llama.cpp's ``src/llama-vocab.cpp`` for the pre-tokenizers' names and patterns.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache

from golden import InputError
from golden.lm.weights import GGUFFile

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?{L}+| ?{N}+| ?[^{s}{l}{n}]+|{S}+(?![^{s}])|{S}+"
_LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n{l}{n}]?{L}+|{N}{{1,3}}"
    r"| ?[^{s}{l}{n}]+[\r\n]*|{S}*[\r\n]+|{S}+(?![^{s}])|{S}+"
)

# Patterns are applied in turn, each to the pieces that the one before left. In them {L}, {N}, {S}
# stand for one letter, number, space, and {l}, {n}, {s} for the same inside a bracket.
_PATTERNS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
}

# Llama 3 takes a word that is a token as it is, even where the merges would not lead to it.
_WHOLE_WORDS = ("llama-bpe",)

_SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class Tokenizer:
    """Text to token numbers and back.

    ``tokens`` are the vocabulary's entries in printable form, ``merges`` are pairs "left right" in
    order of preference, ``pre`` names the pre-tokenizer; ``bos``, when not None, is put before
    every text. Raises ``InputError`` when ``pre`` is unknown.
    """

    def __init__(
        self, tokens: list[str], merges: list[str], pre: str, bos: int | None = None
    ) -> None:
        if pre not in _PATTERNS:
            raise InputError(
                f"the pre-tokenizer {pre!r} is not supported; known are {', '.join(_PATTERNS)}"
            )
        self._tokens = tokens
        self._number = {token: number for number, token in enumerate(tokens)}
        self._rank = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._patterns = [_compiled(pattern) for pattern in _PATTERNS[pre]]
        self._whole_words = pre in _WHOLE_WORDS
        self._bos = bos
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Token numbers of ``text``; at most the first ``limit``, without reading further."""
        numbers = [] if self._bos is None else [self._bos]
        for word in self._split(text):
            if limit is not None and len(numbers) >= limit:
                break
            numbers += self._encode_word(word)
        return numbers[:limit]

    def decode(self, numbers: list[int]) -> str:
        """Text of token numbers; bytes that are not UTF-8 become the replacement character."""
        printable = "".join(self._tokens[number] for number in numbers)
        byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
        data = bytearray()
        for character in printable:
            if character in byte_of:
                data.append(byte_of[character])
            else:
                data += character.encode()
        return data.decode("utf-8", errors="replace")

    def _split(self, text: str) -> Iterator[str]:
        pieces = iter((text,))
        for pattern in self._patterns:
            pieces = _split_by(pattern, pieces)
        return pieces

    def _encode_word(self, word: str) -> list[int]:
        known = self._words.get(word)
        if known is None:
            characters = _byte_characters()
            parts = [characters[byte] for byte in word.encode()]
            whole = "".join(parts)
            whole_word = self._whole_words and whole in self._number
            parts = [whole] if whole_word else self._merge(parts)
            try:
                known = [self._number[part] for part in parts]
            except KeyError as error:
                raise InputError(f"the vocabulary has no token for {error.args[0]!r}") from None
            self._words[word] = known
        return known

    def _merge(self, parts: list[str]) -> list[str]:
        never = len(self._rank)
        while len(parts) > 1:
            pairs = zip(parts, parts[1:], strict=False)
            rank, at = min((self._rank.get(pair, never), at) for at, pair in enumerate(pairs))
            if rank == never:
                break
            left, right = parts[at : at + 2]
            merged, at = [], 0
            while at < len(parts):
                if parts[at : at + 2] == [left, right]:
                    merged.append(left + right)
                    at += 2
                else:
                    merged.append(parts[at])
                    at += 1
            parts = merged
        return parts


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer that a GGUF file carries. Raises ``InputError`` when it is of another kind."""
    kind = file.require("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            f"model {file.path}: its tokenizer is of kind {kind!r}; only 'gpt2' (byte-level"
            " byte-pair encoding) can be run"
        )
    pre = file.require("tokenizer.ggml.pre")
    # Llama 3 files may leave the key out and mean True, which llama.cpp knows from their "pre".
    add_bos = file.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")
    bos = file.require("tokenizer.ggml.bos_token_id") if add_bos else None
    tokens, merges = (file.texts(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    if bos is not None and (type(bos) is not int or not 0 <= bos < len(tokens)):
        raise InputError(f"model {file.path}: its first token must be one of {len(tokens)}")
    try:
        return Tokenizer(tokens, merges, pre, bos)
    except InputError as error:
        raise InputError(f"model {file.path}: {error}") from None


def _split_by(pattern: re.Pattern, pieces: Iterator[str]) -> Iterator[str]:
    """Matches, and what lies between them, in order."""
    for piece in pieces:
        end = 0
        for match in pattern.finditer(piece):
            if match.start() > end:
                yield piece[end : match.start()]
            yield match.group()
            end = match.end()
        if end < len(piece):
            yield piece[end:]


@cache
def _compiled(pattern: str) -> re.Pattern:
    letters, numbers = _category_class("L"), _category_class("N")
    return re.compile(
        pattern.format(
            L=f"[{letters}]", N=f"[{numbers}]", S=f"[{_SPACES}]", l=letters, n=numbers, s=_SPACES
        )
    )


@cache
def _category_class(major: str) -> str:
    """Inside of a bracket that matches a Unicode category such as L, which ``re`` cannot name."""
    ranges, first = [], None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code))[0] == major
        if inside and first is None:
            first = code
        elif not inside and first is not None:
            ranges.append(f"\\U{first:08x}-\\U{code - 1:08x}")
            first = None
    return "".join(ranges)


@cache
def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
