"""Engines on UniCAIM's blocks."""

from sim.commands.arguments import count
from sim.commands.engines.option import Option

OPTIONS = (
    Option(
        "unicaim.unicaim_core",
        "top_k",
        count,
        "K",
        "rows selected for each query (default: a ninth of the rows, 16 at least)",
    ),
)
