"""Tables in Markdown."""

from collections.abc import Sequence


def table_row(*cells: str) -> str:
    """A line of a table; a ``|`` in a cell is escaped."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def table_head(*columns: str) -> list[str]:
    """The first two lines of a table."""
    return [table_row(*columns), table_row(*["---"] * len(columns))]


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A whole table."""
    return "\n".join([*table_head(*columns), *(table_row(*cells) for cells in rows)])
