"""Waveforms of gates with inertial delays, of many gates and runs at once.

An output follows its function's value after the delay of that edge, unless the value changes back
before: a pulse shorter than the delay is swallowed, as by Verilog's ``assign #(rise, fall)``. A
pulse exactly as long passes. Input changes of one moment count as one.

A waveform is the moments at which a net changes, since its first value is known. Moments of a net
are sorted integers: the run, then TIME bits of femtoseconds.
"""

import dataclasses

import numpy as np

from sim.synth import SynthesisError

TIME = 30
"""Bits of a time in femtoseconds: up to 1 µs."""

RUN = 6
PIN = 3
PINS = 6
"""Most inputs of a gate."""

CHUNK = 1 << 22
"""Moments at inputs, about, that are sorted at once: they decide how much memory is taken."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gates:
    """Gates none of which drives another.

    pins
        ``int64[gates, PINS]`` nets of inputs; a constant in place of those that a gate lacks.
    kind
        ``int64[gates]``: the row of `tables` that holds the gate's function.
    tables
        ``bool[kinds, 2**PINS]``: output by inputs, the first of them in the lowest bit.
    delay
        ``int64[gates, 2]``: fs of a falling (0) and of a rising (1) output, above 0.
    output
        ``int64[gates]`` nets.
    """

    pins: np.ndarray
    kind: np.ndarray
    tables: np.ndarray
    delay: np.ndarray
    output: np.ndarray


class Waveforms:
    """Waveforms of all nets in one cycle.

    before
        ``uint64[nets]``: values of 64 runs, one in each bit, before the cycle.
    count
        ``int64[nets]``: changes of a net in all runs.
    """

    def __init__(self, before: np.ndarray):
        self.before = before
        self.count = np.zeros(len(before), np.int64)
        self._first = np.zeros(len(before), np.int64)
        self._moments = np.zeros(1 << 12, np.int64)
        self._used = 0

    def start(self, net: np.ndarray, after: np.ndarray, delay: np.ndarray) -> None:
        """Nets that take the values `after`, with ``delay[net, edge]``; no net twice."""
        change = (after ^ self.before[net])[:, None] >> np.arange(64, dtype=np.uint64)
        which, run = np.nonzero(change & np.uint64(1))
        rises = after[which] >> run.astype(np.uint64) & np.uint64(1)
        self._add(net, which, run << TIME | delay[which, rises.astype(np.int64)])

    def _add(self, net: np.ndarray, which: np.ndarray, moments: np.ndarray) -> None:
        """Moments of ``net[which]``, sorted by `which`, run and time."""
        end = self._used + len(moments)
        if end > len(self._moments):
            self._moments = np.resize(self._moments, max(end, 2 * len(self._moments)))
        self._moments[self._used : end] = moments
        counts = np.bincount(which, minlength=len(net))
        self.count[net] = counts
        self._first[net] = self._used + np.cumsum(counts) - counts
        self._used = end

    def through(self, gates: Gates) -> None:
        """Compute the waveforms at the gates' outputs from the ones at their inputs."""
        events = self.count[gates.pins].sum(axis=1)
        parts = np.cumsum(events) // CHUNK
        for part in range(int(parts[-1]) + 1 if len(parts) else 0):
            self._through(gates, np.flatnonzero((parts == part) & (events > 0)))

    def _through(self, gates: Gates, chosen: np.ndarray) -> None:
        pins = gates.pins[chosen]
        counts = self.count[pins]
        length = counts.ravel()
        total = int(length.sum())
        if not total:
            return
        # What happens at the inputs: gate, run and time, and the pin in the lowest bits.
        begin = np.repeat(self._first[pins].ravel() - np.cumsum(length) + length, length)
        pin = np.repeat(np.arange(pins.size) % PINS, length)
        gate = np.repeat(np.arange(len(pins)), counts.sum(axis=1))
        moments = self._moments[begin + np.arange(total)]
        events = (gate << RUN + TIME | moments) << PIN | pin
        events.sort()
        time = events >> PIN
        lane = time >> TIME  # gate and run
        opens = np.append(True, lane[1:] != lane[:-1])
        starts = np.flatnonzero(opens)
        # A gate's inputs after each event: those before the cycle, and every change since.
        pin = (events & (1 << PIN) - 1).astype(np.uint8)
        flips = np.bitwise_xor.accumulate(np.uint8(1) << pin)
        inputs = self._inputs(pins, lane[starts]) ^ np.append(np.uint8(0), flips[starts[1:] - 1])
        last = np.append(time[1:] != time[:-1], True)  # of one moment
        time, lane, inputs = time[last], lane[last], (flips ^ inputs[np.cumsum(opens) - 1])[last]
        value = gates.tables[gates.kind[chosen][lane >> RUN], inputs]
        opens = np.append(True, lane[1:] != lane[:-1])
        net = gates.output[chosen]
        first = self._values(net[lane[opens] >> RUN], lane[opens])
        previous = np.append(False, value[:-1])
        previous[opens] = first
        turns = value != previous
        time, lane, value = time[turns], lane[turns], value[turns]
        delay = gates.delay[chosen][lane >> RUN, value.astype(np.int64)]
        kept = passing(time, lane, delay)
        after = time[kept] + delay[kept]
        if (after >> TIME != lane[kept]).any():
            raise SynthesisError("a path takes more than a microsecond")
        self._add(net, lane[kept] >> RUN, after & (1 << RUN + TIME) - 1)

    def _inputs(self, pins: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """``uint8`` of gates and runs: inputs before the cycle, the first in the lowest bit."""
        inputs = np.zeros(len(lane), np.uint8)
        for p in range(PINS):
            inputs |= self._values(pins[lane >> RUN, p], lane).astype(np.uint8) << np.uint8(p)
        return inputs

    def _values(self, net: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """``bool``: values before the cycle, in the runs of `lane`."""
        run = (lane & (1 << RUN) - 1).astype(np.uint64)
        return (self.before[net] >> run & np.uint64(1)).astype(bool)


def passing(time: np.ndarray, lane: np.ndarray, delay: np.ndarray) -> np.ndarray:
    """Which changes of a function's value reach the output: indices.

    time, lane, delay
        Time, lane and delay of each change, sorted by lane and time; changes of one lane alternate.

    A change that is followed sooner than its delay is swallowed with its follower. So of changes
    that all come too soon after one another every second is swallowed with the next, and the change
    that ends such a row passes if the row before it is even in length.
    """
    if not len(time):
        return np.zeros(0, np.int64)
    slow = (np.diff(time) >= delay[:-1]) | (lane[1:] != lane[:-1])
    ends = np.flatnonzero(np.append(slow, True))
    return ends[np.diff(ends, prepend=-1) % 2 == 1]
