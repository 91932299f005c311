"""The tokenizer that a GGUF file carries."""

import re
from typing import Any

from golden import InputError
from golden.lm.byte_level import ByteLevelTokenizer
from golden.lm.gguf_file import GGUFFile
from golden.lm.sentence_piece import SentencePieceTokenizer
from golden.lm.tokenizer import ENDS, Tokenizer

_KEY = "tokenizer.ggml."
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
"""Types of tokens (llama.cpp's ``llama_token_type``); control tokens and those that a user defined
are one token wherever they occur."""


def read_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises ``InputError`` when it is of another kind."""
    model = file.require(f"{_KEY}model")
    if model not in ("gpt2", "llama"):
        raise InputError(
            f"model {file.path}: its tokenizer is of kind {model!r}; only 'gpt2' (byte-level"
            " byte-pair encoding) and 'llama' (SentencePiece's) can be run"
        )
    tokens = file.texts(f"{_KEY}tokens")
    types = file.get(f"{_KEY}token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise InputError(f"model {file.path}: it must have one tokenizer.ggml.token_type a token")
    template = file.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise InputError(f"model {file.path}: tokenizer.chat_template must be a text")
    special = {n for n, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED) and tokens[n]}
    known = {name: _token(file, name, len(tokens)) for name in ("bos", *ENDS)}
    others = {
        "special": special,
        "known": {name: number for name, number in known.items() if number is not None},
        "template": template,
    }
    if model == "llama":
        return _sentence_piece(file, tokens, types, others)
    pre = file.require(f"{_KEY}pre")
    # Llama 3 files may leave the key out and mean True, which llama.cpp knows from their "pre".
    bos, merges = _bos(file, len(tokens), pre == "llama-bpe"), file.texts(f"{_KEY}merges")
    try:
        return ByteLevelTokenizer(tokens, merges, pre, bos, **others)
    except InputError as error:
        raise InputError(f"model {file.path}: {error}") from None


def _sentence_piece(
    file: GGUFFile, tokens: list[str], types: list, others: dict[str, Any]
) -> SentencePieceTokenizer:
    scores = file.require(f"{_KEY}scores")
    if (
        not isinstance(scores, list)
        or len(scores) != len(tokens)
        or not all(isinstance(score, float) for score in scores)
    ):
        raise InputError(f"model {file.path}: it must have one tokenizer.ggml.scores a token")
    bytes_of = {n: tokens[n] for n, kind in enumerate(types) if kind == _BYTE}
    if wrong := [text for text in bytes_of.values() if not re.fullmatch("<0x[0-9A-F]{2}>", text)]:
        raise InputError(f"model {file.path}: its token {wrong[0]!r} must be a byte, as <0x0A> is")
    return SentencePieceTokenizer(
        tokens,
        scores,
        [n for n, kind in enumerate(types) if kind == _NORMAL and tokens[n]],
        {n: int(text[3:5], 16) for n, text in bytes_of.items()},
        _bos(file, len(tokens), True),
        unknown=_token(file, "unknown", len(tokens)),
        space_before=bool(file.get(f"{_KEY}add_space_prefix", True)),
        **others,
    )


def _token(file: GGUFFile, name: str, tokens: int) -> int | None:
    """The number of a token with a name, if the file has one."""
    number = file.get(f"{_KEY}{name}_token_id")
    return number if type(number) is int and 0 <= number < tokens else None


def _bos(file: GGUFFile, tokens: int, default: bool) -> int | None:
    """The token before every text, if there is one."""
    if not file.get(f"{_KEY}add_bos_token", default):
        return None
    file.require(f"{_KEY}bos_token_id")
    bos = _token(file, "bos", tokens)
    if bos is None:
        raise InputError(f"model {file.path}: its first token must be one of {tokens}")
    return bos
