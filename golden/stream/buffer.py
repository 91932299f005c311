"""Cycle-level model of the queue and the skid buffer: beats held, accepted and output."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Activity:
    """One entry per cycle.

    held
        Beats inside at the start of the cycle.
    accepted, output
        Whether a beat was accepted, or left, in the cycle.
    """

    held: np.ndarray
    accepted: np.ndarray
    output: np.ndarray


def simulate(depth: int, arrivals: np.ndarray, takes: np.ndarray) -> Activity:
    """A buffer of `depth` beats and one cycle latency: a queue or, at depth 2, the skid buffer.

    arrivals
        ``int[cycles]``: beats that become available upstream, where they wait until accepted.
    takes
        ``bool[cycles]``: whether downstream is ready.
    """
    held = np.zeros(len(arrivals), int)
    accepted, output = np.zeros((2, len(arrivals)), bool)
    waiting = inside = 0
    for cycle, (arrived, take) in enumerate(zip(arrivals, takes, strict=True)):
        waiting += arrived
        held[cycle] = inside
        accepted[cycle] = waiting > 0 and inside < depth
        output[cycle] = take and inside > 0
        waiting -= int(accepted[cycle])
        inside += int(accepted[cycle]) - int(output[cycle])
    return Activity(held, accepted, output)
