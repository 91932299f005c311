"""Text to token numbers and back, whatever cuts a text into tokens.

Special tokens, such as the ``<|im_start|>`` of chats, are cut out of a text first and are one token
each, also where a user wrote them. Source: llama.cpp's ``src/llama-vocab.cpp`` for the types of
tokens and the names of tokens that end an answer.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import jinja2
import jinja2.sandbox

from golden import InputError

# A text may be cut here without a change of its tokens: a word ends between a letter and a space in
# all patterns of pre-tokenizers, and nothing before depends on what follows.
_CUT = re.compile(r"(?<=[A-Za-z])(?=\s)")
_BLOCK = 2_000
"""Characters of a block, at least, when a text is read no further than needed."""

ENDS = ("eos", "eot", "eom")
"""Ends of a sequence, of a turn, of a message, as metadata have them."""
_END_NAMES = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"),
    "<end_of_turn>",
)


class Tokenizer(ABC):
    """A vocabulary, with what all kinds of tokenizers do alike.

    ``tokens`` are the vocabulary's entries in printable form; ``bos``, when not None, is put before
    every text. ``special`` are the numbers of special tokens, ``known`` the numbers of the tokens
    called bos, eos, eot and eom (ends of a sequence, a turn, a message) as far as the model has
    them. ``template`` is the Jinja template of a chat.
    """

    def __init__(
        self,
        tokens: list[str],
        bos: int | None = None,
        *,
        special: Collection[int] = (),
        known: Mapping[str, int] = MappingProxyType({}),
        template: str | None = None,
    ) -> None:
        self._tokens = tokens
        self._special = frozenset(special)
        self._may_cut = not any(_CUT.search(tokens[number]) for number in special)
        self._bos = bos
        self._template = template
        self._known = known
        ends = {known[name] for name in ENDS if name in known}
        self.ends = frozenset(ends | {n for n in special if tokens[n] in _END_NAMES})
        """Tokens that end an answer; empty if the model has none."""

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Token numbers of ``text``; at most the first ``limit``, without reading much further.

        Raises ``InputError`` when the vocabulary lacks a byte of the text, or the text is not
        Unicode.
        """
        numbers = [] if self._bos is None else [self._bos]
        blocks = (text,) if limit is None or not self._may_cut else _blocks(text)
        for index, block in enumerate(blocks):
            if limit is not None and len(numbers) >= limit:
                break
            try:
                block.encode()
            except UnicodeEncodeError as error:
                wrong = block[error.start]
                raise InputError(f"the text has {wrong!r}, which is not Unicode") from None
            numbers += self._encode_block(block, begins=index == 0)
        return numbers[:limit]

    @abstractmethod
    def _encode_block(self, text: str, begins: bool) -> list[int]:
        """Token numbers of a part of a text, special tokens too; `begins` if it is the first."""

    def decode(self, numbers: list[int]) -> str:
        """Text of token numbers, special tokens too; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(
            self._tokens[number].encode() if number in self._special else self._bytes_of(number)
            for number in numbers
        )
        return data.decode("utf-8", errors="replace")

    @abstractmethod
    def _bytes_of(self, number: int) -> bytes:
        """UTF-8 of a token that is not special, perhaps of a part of a character."""

    def chat(self, text: str) -> list[int]:
        """Token numbers of a chat whose user says ``text``, up to where the answer begins.

        By the model's own chat template. Raises ``InputError`` when it has none, or when the
        template does not run or refuses the message.
        """
        if self._template is None:
            raise InputError("the model has no chat template (tokenizer.chat_template)")
        marks = {
            f"{name}_token": self._tokens[self._known[name]] if name in self._known else ""
            for name in ("bos", "eos")
        }
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        try:
            chat = environment.from_string(self._template).render(
                messages=[{"role": "user", "content": text}],
                add_generation_prompt=True,
                raise_exception=_refuse,
                **marks,
            )
        # A template is a program: it may divide by zero as well as be no template.
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the model's chat template does not run: {reason}") from None
        numbers = self.encode(chat)
        # Most templates begin with the first token themselves.
        twice = self._bos is not None and numbers[1:2] == [self._bos]
        return numbers[1:] if twice else numbers


def _blocks(text: str) -> Iterator[str]:
    """The text in pieces of some length, cut where a word ends."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _BLOCK)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


def _refuse(reason: str) -> None:
    """``raise_exception`` of a chat template."""
    raise jinja2.TemplateError(reason)
