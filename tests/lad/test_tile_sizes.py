"""Sizes that hardware and bit-exact model both state, one compared with the other."""

import dataclasses
import itertools

import numpy as np
import pytest

from golden.lad import ac, tile_sizes
from golden.lad.lad_system import LadSystem
from golden.lad.timing import work
from hw.lad import head_stores
from hw.lad import tile_sizes as hardware
from hw.lad.system_parameters import LadSystemParameters
from hw.lad.tile_parameters import LadTileParameters
from sim.testbenches.lad.jobs import sizes_of, timing_of

SWEEP = {
    "d": (8, 32, 128),
    "positions": (2, 60, 1000, 4096),
    "identification": ("codes", "centres"),
    "code_bits": (2, 5, 8),
    "heads": (1, 5, 32),
    "kv_heads": (1, 3),
    "counter_bits": (2, 7, 11),
    "bounds": ("80_48_24_8", "80_52_36_26_18_11_5"),
    "weights": (0, 40),
}
"""Values of each parameter; each is combined with all values of two others."""


def swept() -> list[LadTileParameters]:
    """Parameters in which any two of the sweep have each pair of their values."""
    small, made = LadTileParameters.preset("small"), set()
    for names in itertools.combinations(SWEEP, 2):
        for values in itertools.product(*(SWEEP[name] for name in names)):
            changed = {"heads": 5} | dict(zip(names, values, strict=True))
            changed["kv_heads"] = min(changed["heads"], changed.get("kv_heads", 1))
            made.add(dataclasses.replace(small, prefetch=0, **changed))
    return sorted(made, key=str)


def test_sizes_and_the_memory_map():
    names = "counter_word_bits", "counter_words", "cache_rows", "memory_rows"
    every = swept()
    for p in [*every, *LadTileParameters.presets().values()]:
        size = sizes_of(p)
        for name in names:
            assert getattr(size, name) == getattr(p, name), (p, name)
        expected = {name: (r.base, 1 << r.stride_bits) for name, r in p.regions.items()}
        assert size.regions == expected, p
        assert len(size.tables) == p.intervals == len(p.tables.slopes)
    assert len({p.counter_words for p in every}) > 4 and len({p.memory_rows for p in every}) > 50


@pytest.mark.parametrize("tiles", [1, 2, 3])
def test_a_tile_of_a_system(tiles):
    for heads, kv_heads in ((3, 3), (9, 3), (7, 5), (32, 32)):
        p = LadSystemParameters(tiles=tiles, heads=heads, kv_heads=kv_heads)
        system = LadSystem(sizes_of(p), tiles)
        assert system.tile_sizes == sizes_of(p.tile)
        assert (system.tile_rows, len(system.memory)) == (p.tile_rows, p.memory_rows)


def test_pipelines():
    """What the cycle model takes of the VPUs and of APID."""
    stages = dict.fromkeys(("multiply_stages", "add_stages"), (1, 2, 3))
    for d, multiply, add in itertools.product((8, 16, 128), *stages.values()):
        p = LadTileParameters(d=d, multiply_stages=multiply, add_stages=add)
        timing = timing_of(p)
        assert (timing.lanes, timing.element_bits, timing.columns) == (
            *(p.lanes, p.element_bits),
            p.columns,
        )
        assert (timing.vector, timing.dot) == (p.vpu.latency, p.vpu.dot_latency)


def test_constants():
    assert tile_sizes.COUNT_BITS == hardware.COUNT_BITS
    assert ac.LANES == hardware.LANES
    assert work.HELD == head_stores.HELD
    assert LadTileParameters().apid.depth == work.APID_DEPTH
    word = {name: field.offset for name, field in LadTileParameters().word_layout}
    assert word == {"count": 0, "mode": tile_sizes.COUNT_BITS, "active": work.ACTIVE_BIT}


def test_near_mode():
    """The first mode of exact scores, where the model compares with all bounds."""
    for near in range(0, 90, 7):
        p = dataclasses.replace(LadTileParameters(), near=near)
        size = sizes_of(p)
        assert p.near_mode == 1 + int(np.sum(np.array(size.bounds) < size.near))
