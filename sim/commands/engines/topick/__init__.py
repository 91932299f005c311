"""Engines on ToPick's blocks."""

from sim.commands.engines.option import Option

OPTIONS = (
    Option(
        "topick.topick_core",
        "threshold",
        float,
        "P",
        "prune tokens of at most this probability (default: 0.001)",
        "must be at least 0 and below 1",
        lambda value: 0 <= value < 1,
    ),
)
