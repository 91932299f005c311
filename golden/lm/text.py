"""English text to run a model on."""

from collections.abc import Sequence
from pathlib import Path

from golden import InputError
from golden.lm.texts import ROLES, SHIPPED, TEXTS, of_role
from golden.lm.tokenizer import Tokenizer

DEFAULT_SHA256 = "9f8cc5f36bb591eccea13413770f575dbb87aef2c55e79172504bc461fd7beab"


def text_source(given: str) -> str | Path:
    """An argument's type: the name of a text or of a role, else a file's path."""
    return given if given in TEXTS or given in ROLES else Path(given)


def read_text(source: str | Path | None) -> tuple[str, str]:
    """A text and a description of it: of a name in ``TEXTS``, else of a UTF-8 file.

    A ``str`` that is a name wins over a file of that name, so that a figure does not depend on the
    folder where it was made; ``./NAME`` is the file. ``default_text`` when ``source`` is None.
    Raises ``InputError`` when the file is missing, not UTF-8 or blank, or when the name is a
    role's; ``OSError`` when it is unreadable.
    """
    if source is None:
        return default_text(), "prose of Python 3.11's language reference"
    if isinstance(source, str) and source in TEXTS:
        return TEXTS[source].load(), source
    if isinstance(source, str) and source in ROLES:
        raise InputError(f"text {source}: it is {len(of_role(source))} texts; give one of them")
    path = Path(source)
    if not path.exists():
        raise InputError(
            f"text {path}: there is no such file, nor a text of that name, which"
            " 'python -m golden texts' lists"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"text {path}: byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise InputError(f"text {path}: it is empty")
    return text, path.name


def read_texts(sources: Sequence[str | Path | None]) -> dict[str, str]:
    """Texts by their descriptions, each as :func:`read_text` finds it.

    The name of a role, such as ``held-out``, is every text of that role. Raises ``InputError`` as
    :func:`read_text`, and when two texts have the same description.
    """
    found: dict[str, str] = {}
    for source in sources:
        whole = isinstance(source, str) and source in ROLES
        for each in (text.name for text in of_role(str(source))) if whole else (source,):
            text, name = read_text(each)
            if name in found:
                raise InputError(f"text {name}: it is given twice")
            found[name] = text
    return found


def default_text() -> str:
    """Prose of Python 3.11's language reference, which comes with the package.

    The paragraphs of two lines or more of the module ``pydoc_data.topics`` of CPython 3.11.7, which
    leaves out grammar, code and lists. Its owner is the Python Software Foundation, its licence is
    in the same folder; the file has the SHA-256 ``DEFAULT_SHA256``.
    """
    return (SHIPPED / "python_reference.txt").read_text(encoding="utf-8")


def many_subjects() -> str:
    """Short pieces of many subjects and kinds, written for the package, to calibrate on."""
    return (SHIPPED / "subjects.txt").read_text(encoding="utf-8")


def sampled_prose() -> str:
    """Pieces of 255 tokens that SmolLM2-135M-Instruct made itself, to calibrate on.

    Each was begun with a line feed; the first token was drawn at temperature 1.5, the others at 1
    from those that make up 97 % of the probability. Pieces with special tokens, of other scripts
    than Latin and about unpleasant matters are left out. What they say is not true.
    """
    return (SHIPPED / "sampled.txt").read_text(encoding="utf-8")


def first_tokens(tokenizer: Tokenizer, text: str, count: int, what: str) -> list[int]:
    """The first ``count`` tokens of ``text``, which messages call ``what``.

    Raises ``InputError`` when it has fewer.
    """
    tokens = tokenizer.encode(text, count)
    if len(tokens) < count:
        raise InputError(f"text {what}: it has {len(tokens)} tokens, fewer than {count}")
    return tokens
