"""Cycle-level model of the round-robin arbiter: whose beat is accepted in every cycle."""

from dataclasses import dataclass

import numpy as np


def grant(offers: np.ndarray, last: int) -> int | None:
    """The first input after `last` in round-robin order with a valid beat, or None."""
    inputs = len(offers)
    for step in range(1, inputs + 1):
        source = (last + step) % inputs
        if offers[source]:
            return source
    return None


def merge(beats: list[int]) -> np.ndarray:
    """Sources in output order, if input s always offers, `beats[s]` in all, and nothing stalls."""
    left, last, order = np.array(beats), len(beats) - 1, []
    while left.any():
        source = grant(left > 0, last)
        assert source is not None, "some input has beats"
        left[source] -= 1
        order.append(last := source)
    return np.array(order, int)


@dataclass(frozen=True)
class Activity:
    """One entry per cycle.

    offers
        ``bool[cycles, inputs]``: the inputs with a valid beat.
    accepted
        The source whose beat was accepted, or -1.
    output
        The source of the beat on the output, or -1.
    """

    offers: np.ndarray
    accepted: np.ndarray
    output: np.ndarray


def simulate(arrivals: np.ndarray, takes: np.ndarray) -> Activity:
    """An arbiter whose beats wait at the inputs until they are accepted.

    arrivals
        ``int[cycles, inputs]``: beats that become available at each input.
    takes
        ``bool[cycles]``: whether downstream is ready.
    """
    cycles, inputs = arrivals.shape
    offers = np.zeros((cycles, inputs), bool)
    accepted, output = np.full((2, cycles), -1)
    waiting, last, register = np.zeros(inputs, int), inputs - 1, -1
    for cycle in range(cycles):
        waiting += arrivals[cycle]
        offers[cycle], output[cycle] = waiting > 0, register
        if register < 0 or takes[cycle]:
            source = grant(waiting > 0, last)
            register = -1 if source is None else source
            if source is not None:
                accepted[cycle] = last = source
                waiting[source] -= 1
    return Activity(offers, accepted, output)
