"""English to run a model on."""

import os
from pathlib import Path

from golden.lm import InputError
from golden.lm.tokenizer import Tokenizer


def read_text(path: str | os.PathLike | None) -> tuple[str, str]:
    """A UTF-8 file's text and a description of it; ``default_text`` when ``path`` is None.

    Raises ``InputError`` when it is missing, not UTF-8 or blank, ``OSError`` when unreadable.
    """
    if path is None:
        return default_text(), "prose of Python's pydoc_data.topics"
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
    """The prose of Python's own language reference, which every CPython carries.

    Paragraphs only: what is indented (grammar, code, lists) or short is left out. The text changes
    a little from one Python release to the next.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError("this Python lacks pydoc_data; give a text with --text") from None
    paragraphs = (paragraph for topic in topics.values() for paragraph in topic.split("\n\n"))
    prose = []
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        indented = any(line[:1] in ("", " ") for line in lines)
        if not indented and len(lines) > 1 and paragraph.rstrip().endswith("."):
            prose.append(" ".join(lines))
    return "\n\n".join(prose)


def shipped_prose() -> str:
    """The text about cranes that comes with the package, written for it."""
    return (Path(__file__).parent.parent / "traces" / "cranes.txt").read_text(encoding="utf-8")


def first_tokens(tokenizer: Tokenizer, text: str, count: int, what: str) -> list[int]:
    """The first ``count`` tokens of ``text``, which messages call ``what``.

    Raises ``InputError`` when it has fewer.
    """
    tokens = tokenizer.encode(text, count)
    if len(tokens) < count:
        raise InputError(f"text {what}: it has {len(tokens)} tokens, fewer than the {count} asked")
    return tokens
