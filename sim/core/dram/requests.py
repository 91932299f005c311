"""Requests to a DRAM without a core: from a file or by a pattern, and what they take."""

import random
from collections.abc import Iterator
from pathlib import Path

from hw.parameters import ParameterError, require
from sim.core.dram.device import Device
from sim.core.dram.standards import Standard
from sim.core.dram.timing import DramTiming, DramUse

Requests = list[tuple[bool, int]]
"""Whether each is a write, and its byte address."""

PATTERNS = "sequential, random, runs:N, streams:N or staggered:N"
CHUNK = 8
"""Lines that a stream reads in its turn."""
MOST = 1 << 20
"""Requests of a pattern, and lines of a run, at most."""


def read_requests(path: Path) -> Requests:
    """Requests of a text file with lines ``R ADDRESS`` or ``W ADDRESS``, hexadecimal.

    :raises ParameterError: for a line that is something else, or a file without requests.
    """
    found = []
    for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = text.split()
        if not words:
            continue
        try:
            kind, address = words
            found.append(({"R": False, "W": True}[kind], int(address, 16)))
            valid = found[-1][1] >= 0
        except (ValueError, KeyError):
            valid = False
        require(valid, f"line {number} of {path} must be R or W and a hexadecimal address", text)
    if not found:
        raise ParameterError(f"{path} has no requests")
    return found


def pattern(name: str, standard: Standard, count: int, seed: int = 1) -> Requests:
    """Reads of `count` lines.

    ``sequential``; ``random``; ``runs:N``, of N lines at random places; ``streams:N``, N streams
    that read CHUNK lines in turn from bases a power of two apart; ``staggered:N``, the same with
    the base of stream i moved by i times the bytes of one row of a bank in all channels.

    :raises ParameterError: for another pattern, or a number out of range.
    """
    kind, _, number = name.partition(":")
    plain = kind in ("sequential", "random") and not number
    counted = kind in ("runs", "streams", "staggered") and number.isdecimal()
    require(plain or counted, f"pattern must be {PATTERNS}", name)
    require(1 <= count <= MOST, f"a pattern must have from 1 to {MOST} requests", count)
    n = int(number) if number else 1
    lines = standard.capacity // standard.line
    most = lines // CHUNK if kind != "runs" else min(lines, MOST)
    require(1 <= n <= most, f"N of {kind}:N must be from 1 to {most}", n)
    if kind == "sequential":
        places: Iterator[int] = iter(range(count))
    elif kind in ("random", "runs"):
        places = _runs(n, lines, random.Random(seed))
    else:
        moved = standard.columns * standard.channels if kind == "staggered" else 0
        places = _streams(n, lines, moved)
    return [(False, next(places) % lines * standard.line) for _ in range(count)]


def _runs(n: int, lines: int, source: random.Random) -> Iterator[int]:
    while True:
        first = source.randrange(lines // n) * n
        yield from range(first, first + n)


def _streams(n: int, lines: int, moved: int) -> Iterator[int]:
    apart = lines >> (n - 1).bit_length()
    first = 0
    while True:
        for stream in range(n):
            start = stream * (apart + moved) + first
            yield from range(start, start + CHUNK)
        first += CHUNK


def measure(timing: DramTiming, requests: Requests, trace: list[list] | None = None) -> DramUse:
    """What the DRAM does for requests that are offered as fast as it accepts them.

    trace
        One list for each channel, which gets its commands; see :mod:`sim.core.dram.channel`.
    """
    standard = timing.standard
    device = Device(standard, timing.locate(), timing.window, trace)
    for number, (write, address) in enumerate(requests):
        device.push(number, address // standard.line, write)
    while device.waiting:
        device.advance(device.next + 1)
    last = max(clock for clock, _ in device.done)
    return DramUse(standard, last, max(last, device.clock), device.counts(), len(requests))
