"""Plain text for files of other languages."""

import textwrap


def wrapped(words: str, width: int) -> list[str]:
    """Lines of a text; one line at least."""
    return textwrap.wrap(" ".join(words.split()), width, break_on_hyphens=False) or [""]
