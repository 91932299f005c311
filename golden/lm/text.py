"""English text to run a model on."""

import os
from pathlib import Path

from golden import InputError
from golden.lm.tokenizer import Tokenizer

DEFAULT_SHA256 = "9f8cc5f36bb591eccea13413770f575dbb87aef2c55e79172504bc461fd7beab"
_FOLDER = Path(__file__).parent.parent / "traces"


def read_text(path: str | os.PathLike | None) -> tuple[str, str]:
    """A UTF-8 file's text and a description of it; ``default_text`` when ``path`` is None.

    Raises ``InputError`` when it is missing, not UTF-8 or blank, ``OSError`` when unreadable.
    """
    if path is None:
        return default_text(), "prose of Python 3.11's language reference"
    if not Path(path).exists():
        raise InputError(f"text {path}: there is no such file")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"text {path}: byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise InputError(f"text {path}: it is empty")
    return text, Path(path).name


def default_text() -> str:
    """Prose of Python 3.11's language reference, which comes with the package.

    The paragraphs of two lines or more of the module ``pydoc_data.topics`` of CPython 3.11.7, which
    leaves out grammar, code and lists. Its owner is the Python Software Foundation, its licence is
    in the same folder; the file has the SHA-256 ``DEFAULT_SHA256``.
    """
    return (_FOLDER / "python_reference.txt").read_text(encoding="utf-8")


def shipped_prose() -> str:
    """The text about cranes that comes with the package, written for it."""
    return (_FOLDER / "cranes.txt").read_text(encoding="utf-8")


def many_subjects() -> str:
    """Short pieces of many subjects and kinds, written for the package, to calibrate on."""
    return (_FOLDER / "subjects.txt").read_text(encoding="utf-8")


def sampled_prose() -> str:
    """Pieces of 255 tokens that SmolLM2-135M-Instruct made itself, to calibrate on.

    Each was begun with a line feed; the first token was drawn at temperature 1.5, the others at 1
    from those that make up 97 % of the probability. Pieces with special tokens, of other scripts
    than Latin and about unpleasant matters are left out. What they say is not true.
    """
    return (_FOLDER / "sampled.txt").read_text(encoding="utf-8")


def first_tokens(tokenizer: Tokenizer, text: str, count: int, what: str) -> list[int]:
    """The first ``count`` tokens of ``text``, which messages call ``what``.

    Raises ``InputError`` when it has fewer.
    """
    tokens = tokenizer.encode(text, count)
    if len(tokens) < count:
        raise InputError(f"text {what}: it has {len(tokens)} tokens, fewer than {count}")
    return tokens
