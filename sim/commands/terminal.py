"""Tables on the terminal."""

from rich.console import Console
from rich.table import Table

LEAST_WIDTH = 120


def print_table(table: Table) -> None:
    """Print a table, in a pipe or a narrow terminal at LEAST_WIDTH, so that no column is cut."""
    Console(highlight=False, width=max(Console().width, LEAST_WIDTH)).print(table)
