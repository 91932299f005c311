"""Byte-level byte-pair encoding with the vocabulary, merges and special tokens of a GGUF file.

The `tokenizers` package does the work; nothing is fetched. Special tokens, such as the
``<|im_start|>`` of chats, are cut out of a text first and are one token each, also where a user
wrote them. The rest is cut into words by the model's pre-tokenizer, and a word's UTF-8 bytes are
merged in the order of the merge list. Sources: OpenAI's GPT-2 ``encoder.py`` for the bytes and
merges, llama.cpp's ``src/llama-vocab.cpp`` for the pre-tokenizers' patterns, the types of tokens,
and the names of tokens that end an answer.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from types import MappingProxyType

import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import Regex
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from golden import InputError
from golden.lm.weights import GGUFFile

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Patterns are applied in turn, each to the pieces that the one before left.
_PATTERNS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
}

# Llama 3 takes a word that is a token as it is, even where the merges would not lead to it.
_WHOLE_WORDS = ("llama-bpe",)

# A text may be cut here without a change of its tokens: in all three patterns a word ends between a
# letter and a space, and nothing before depends on what follows.
_CUT = re.compile(r"(?<=[A-Za-z])(?=\s)")
_BLOCK = 2_000
"""Characters of a block, at least, when a text is read no further than needed."""

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens (llama.cpp's ``llama_token_type``) that are one token wherever they occur."""

# Ends of a sequence, of a turn, of a message: as metadata, and as special tokens' names.
_ENDS = ("eos", "eot", "eom")
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")


class Tokenizer:
    """Text to token numbers and back.

    ``tokens`` are the vocabulary's entries in printable form, ``merges`` are pairs "left right" in
    order of preference, ``pre`` names the pre-tokenizer; ``bos``, when not None, is put before
    every text. ``special`` are the numbers of special tokens, ``known`` the numbers of the tokens
    called bos, eos, eot and eom (ends of a sequence, a turn, a message) as far as the model has
    them. ``template`` is the Jinja template of a chat. Raises ``InputError`` when ``pre`` is
    unknown or a merge is not a pair.
    """

    def __init__(
        self,
        tokens: list[str],
        merges: list[str],
        pre: str,
        bos: int | None = None,
        *,
        special: Collection[int] = (),
        known: Mapping[str, int] = MappingProxyType({}),
        template: str | None = None,
    ) -> None:
        if pre not in _PATTERNS:
            raise InputError(
                f"the pre-tokenizer {pre!r} is not supported; known are {', '.join(_PATTERNS)}"
            )
        self._tokens = tokens
        self._special = frozenset(special)
        self._may_cut = not any(_CUT.search(tokens[number]) for number in special)
        self._bos = bos
        self._template = template
        self._known = known
        ends = {known[name] for name in _ENDS if name in known}
        self.ends = frozenset(ends | {n for n in special if tokens[n] in _END_NAMES})
        """Tokens that end an answer; empty if the model has none."""
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

    def encode(self, text: str, limit: int | None = None) -> list[int]:
        """Token numbers of ``text``; at most the first ``limit``, without reading much further.

        Raises ``InputError`` when the vocabulary lacks a byte of the text, or the text is not
        Unicode.
        """
        numbers = [] if self._bos is None else [self._bos]
        for block in (text,) if limit is None or not self._may_cut else _blocks(text):
            if limit is not None and len(numbers) >= limit:
                break
            numbers += self._encode_block(block)
        return numbers[:limit]

    def _encode_block(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text has {text[error.start]!r}, which is not Unicode") from None
        numbers = self._bpe.encode(text, add_special_tokens=False).ids
        if numbers and (largest := max(numbers)) >= len(self._tokens):
            lacking = self._bpe.id_to_token(largest)
            raise InputError(f"the vocabulary has no token for {lacking!r}")
        return numbers

    def decode(self, numbers: list[int]) -> str:
        """Text of token numbers, special tokens too; bytes that are not UTF-8 become U+FFFD."""
        byte_of = {character: bytes([byte]) for byte, character in enumerate(_byte_characters())}
        data = bytearray()
        for number in numbers:
            token = self._tokens[number]
            if number in self._special:
                data += token.encode()
            else:
                data += b"".join(byte_of.get(c, c.encode()) for c in token)
        return data.decode("utf-8", errors="replace")

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
    types = file.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise InputError(f"model {file.path}: it must have one tokenizer.ggml.token_type a token")
    special = {n for n, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED) and tokens[n]}
    template = file.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise InputError(f"model {file.path}: tokenizer.chat_template must be a text")
    known = {}
    for name in ("bos", *_ENDS):
        number = file.get(f"tokenizer.ggml.{name}_token_id")
        if type(number) is int and 0 <= number < len(tokens):
            known[name] = number
    try:
        return Tokenizer(tokens, merges, pre, bos, special=special, known=known, template=template)
    except InputError as error:
        raise InputError(f"model {file.path}: {error}") from None


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
    lacking = sorted({*_byte_characters(), *parts} - number.keys())
    number |= {token: len(tokens) + index for index, token in enumerate(lacking)}
    return BPE(number, pairs, ignore_merges=whole_words)


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


@cache
def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte: itself where printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
