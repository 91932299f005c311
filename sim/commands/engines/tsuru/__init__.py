"""Engines on the sixth design's blocks."""

from sim.commands.engines.option import Option

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
)
