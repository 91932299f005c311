"""SentencePiece's byte-pair encoding, of Llama 2, Mistral and Gemma: tokens with scores, no merges.

Spaces become U+2581. Neighbours whose text together is a token merge, first those whose token has
the highest score, the leftmost of equals. A character that is no token becomes its UTF-8
bytes' tokens. Sources: Kudo and Richardson, arXiv:1808.06226, and llama.cpp's
``src/llama-vocab.cpp``, which also puts a space before what follows a special token.
"""

import heapq
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from golden import InputError
from golden.lm.tokenizer import Tokenizer

SPACE = "\u2581"
# A word ends between a letter and a space, unless a token goes on over it.
_CUT = re.compile(rf"(?<=[A-Za-z])(?={SPACE})")


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer whose merges follow from the tokens' scores.

    scores
        Each token's.
    ordinary
        Numbers of the tokens that characters merge to.
    byte_of
        Bytes of the tokens that are one byte of a character each.
    unknown
        The token of what has no other, if there is one.
    space_before
        Whether a space is put before the text and after special tokens. It is decoded as well.
    others
        As in :class:`golden.lm.tokenizer.Tokenizer`.
    """

    def __init__(
        self,
        tokens: list[str],
        scores: Sequence[float],
        ordinary: Collection[int],
        byte_of: Mapping[int, int],
        bos: int | None = None,
        *,
        unknown: int | None = None,
        space_before: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(tokens, bos, **others)
        self._unknown, self._space_before = unknown, space_before
        self._byte_of = byte_of
        self._of_byte = {byte: number for number, byte in byte_of.items()}
        self._number = {tokens[number]: number for number in ordinary}
        self._scores = scores
        self._marks = {tokens[number]: number for number in self._special}
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._mark = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._words_end = not any(SPACE in t[1:] and _CUT.search(t) for t in self._number)
        # A block that begins behind a special token would need to know it.
        self._may_cut &= self._words_end and not any(mark[-1].isalpha() for mark in self._marks)
        self._merged_words: dict[str, list[int]] = {}

    def _encode_block(self, text: str, begins: bool) -> list[int]:
        numbers: list[int] = []
        start = 0
        for mark in self._mark.finditer(text):
            numbers += self._stretch(text[start : mark.start()], begins)
            numbers.append(self._marks[mark[0]])
            begins, start = True, mark.end()
        return numbers + self._stretch(text[start:], begins)

    def _stretch(self, text: str, begins: bool) -> list[int]:
        """Token numbers of a text without special tokens; `begins` if none but these is before."""
        if not text:
            return []
        text = text.replace(" ", SPACE)
        if begins and self._space_before:
            text = SPACE + text
        numbers: list[int] = []
        for word in _CUT.split(text) if self._words_end else [text]:
            if word not in self._merged_words:
                self._merged_words[word] = self._merged(word)
            numbers += self._merged_words[word]
        return numbers

    def _merged(self, text: str) -> list[int]:
        """Token numbers of a text with its spaces replaced."""
        parts = list(text)  # an empty one has merged into the one before
        before, after = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        queue: list[tuple[float, int, str]] = []

        def offer(left: int) -> None:
            if left >= 0 and after[left] < len(parts):
                union = parts[left] + parts[after[left]]
                if union in self._number:
                    heapq.heappush(queue, (-self._scores[self._number[union]], left, union))

        for left in range(len(parts)):
            offer(left)
        while queue:
            _, left, union = heapq.heappop(queue)
            right = after[left]
            # One of both may have merged with another meanwhile.
            if not parts[left] or right == len(parts) or parts[left] + parts[right] != union:
                continue
            parts[left], parts[right] = union, ""
            after[left] = after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            offer(before[left])
            offer(left)
        return [number for part in parts if part for number in self._numbers_of(part)]

    def _numbers_of(self, part: str) -> list[int]:
        """A token, or a character's bytes."""
        if part in self._number:
            return [self._number[part]]
        data = part.encode()
        if all(byte in self._of_byte for byte in data):
            return [self._of_byte[byte] for byte in data]
        if self._unknown is None:
            raise InputError(f"the vocabulary has no token for {part!r}")
        return [self._unknown]

    def _bytes_of(self, number: int) -> bytes:
        if number in self._byte_of:
            return bytes([self._byte_of[number]])
        return self._tokens[number].replace(SPACE, " ").encode()
