"""Engines on the sixth design's blocks."""

from sim.commands.engines.option import Option

CONSTANTS = ("none", "mean", "smooth")

OPTIONS = (
    Option(
        "tsuru.tsuru_core",
        "above",
        float,
        "P",
        "read rows whose estimated probability is above this (default: 0.0003)",
        "must be above 0 and at most 1",
        lambda value: 0 < value <= 1,
    ),
    Option(
        "tsuru.tsuru_core",
        "constants",
        str,
        "WHICH",
        "of the prompt: none; mean, which keys are less; or smooth, by which channels of keys and "
        "queries are balanced too (default: smooth)",
        f"must be one of {', '.join(CONSTANTS)}",
        lambda value: value in CONSTANTS,
    ),
)
