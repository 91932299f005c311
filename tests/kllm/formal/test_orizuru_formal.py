"""The Orizuru engine: every pair is the next largest and the next smallest value; unbounded proof.

Each engine has arbitrary FP16 values, keep masks, vector lengths, numbers of pairs and stalls, and
takes vector after vector. Registers power up with any value; reset is high in the first cycle. Each
assertion on outputs is shown to fail when one line of the hardware is changed.
"""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from hw.kllm.orizuru import Orizuru, OrizuruParameters
from tests.support.formal import find_fault, prove_block
from tests.support.kllm.orizuru_spec import OrizuruSpec, invariant

SECONDS = 900


def name(engine):
    return "n{}_radix{}_lanes{}_k{}".format(*engine)


def engines(suite, campaign):
    """n, radix, lanes and k of engines, those for the suite first."""
    return [
        pytest.param(engine, id=name(engine), marks=[pytest.mark.campaign] * (engine not in suite))
        for engine in [*suite, *campaign]
    ]


PROVED = [
    (1, 2, 1, 1),  # a single value
    (4, 4, 2, 4),  # one leaf unit, filled in two beats
    (5, 4, 2, 5),  # two levels, a leaf unit of one slot, a lane that is never used
]
DEAR = [
    (4, 4, 1, 4),  # one leaf unit, filled in four beats, and in one
    (4, 4, 4, 4),
    (5, 4, 8, 4),  # more lanes than values, more pairs than values
    (5, 2, 4, 5),  # three levels, with units missing
    (8, 2, 4, 8),  # three levels, complete
    (8, 8, 8, 8),  # one leaf unit, three levels of comparisons inside
    (16, 16, 16, 16),  # the paper's unit, minutes
]
COVERED = [(4, 4, 2, 4)]


def parameters(engine, kind=OrizuruParameters):
    n, radix, lanes, k = engine
    return kind(n=n, radix=radix, lanes=lanes, k=k)


@pytest.mark.parametrize("engine", engines(PROVED, DEAR))
def test_proof(engine):
    spec = OrizuruSpec(Orizuru(parameters(engine)), invariant)
    prove_block(spec, f"orizuru_{name(engine)}", depth=1, seconds=SECONDS)


@pytest.mark.parametrize("engine", engines(COVERED, [e for e in PROVED + DEAR if e not in COVERED]))
def test_cover(engine):
    sizes = parameters(engine)
    depth = sizes.cycles(sizes.beats, sizes.n) + sizes.beats + 5
    spec = OrizuruSpec(Orizuru(sizes))
    # Yices finds examples sooner, bitwuzla proves sooner.
    folder = f"orizuru_{name(engine)}"
    prove_block(spec, folder, "cover", depth=depth, solver="yices", seconds=SECONDS)


SOURCES = [
    "hw.arith.bits.order_key",
    "hw.stream.skid_buffer",
    "hw.kllm.tournament",
    "hw.kllm.orizuru_unit",
    "hw.kllm.orizuru",
]


def rebuilt(monkeypatch, engine, change):
    """The engine built from its sources, read again with one line of one of them replaced."""
    where, line, instead = change or (None, None, None)
    files = {source: Path(importlib.util.find_spec(source).origin) for source in SOURCES}
    for source, file in files.items():
        text = file.read_text()
        if source.endswith(f".{where}"):
            assert text.count(line) == 1, f"{file.name} must have one {line!r}"
            text = text.replace(line, instead)
        module = types.ModuleType(source)
        monkeypatch.setitem(sys.modules, source, module)
        exec(compile(text, file, "exec"), module.__dict__)
    return module.Orizuru(parameters(engine, module.OrizuruParameters))


LARGEST, SMALLEST = "not the largest value left", "not the smallest value left"
ONE_UNIT, TWO_BEATS, ODD, LEVELS = (4, 4, 4, 4), (4, 4, 2, 4), (3, 4, 2, 3), (4, 2, 4, 4)
FAULTS = {
    # Order of values
    "zeros_differ": (
        ("order_key", "sign & magnitude.any()", "sign"),
        ONE_UNIT,
        LARGEST,
    ),
    "nan_not_restored": (
        ("order_key", "Const(float_format.quiet_nan, float_format.width), 0)", "0, 0)"),
        ONE_UNIT,
        "wrong bits of the largest",
    ),
    "inverted_sign": (
        ("order_key", "top if inverted else ~top", "~top"),
        ONE_UNIT,
        "wrong bits of the smallest",
    ),
    "late_index_wins_tree": (
        ("tournament", "path.eq(right > left)", "path.eq(right >= left)"),
        ONE_UNIT,
        LARGEST,
    ),
    "late_index_wins_pair": (
        ("orizuru_unit", "less.eq(keys[right] < keys[left])", "less.eq(~greater)"),
        ONE_UNIT,
        SMALLEST,
    ),
    "nan_is_smallest": (
        ("orizuru_unit", '"min": ~nan[1] & (less | nan[0])', '"min": less'),
        ONE_UNIT,
        SMALLEST,
    ),
    "nan_is_smallest_alone": (
        ("orizuru_unit", "Mux(is_nan_key(last, self._format), NAN_KEY, ~last)", "~last"),
        ODD,
        SMALLEST,
    ),
    # Which values are left
    "popped_again": (
        ("orizuru_unit", "| popped | removed[end]", "| popped"),
        ONE_UNIT,
        LARGEST,
    ),
    "never_gone_from_minimum": (
        ("orizuru_unit", "popped = won &", 'popped = (won if end == "max" else 0) &'),
        ONE_UNIT,
        SMALLEST,
    ),
    "keep_ignored": (
        ("orizuru_unit", "(write & ~keep)", "(write & 0)"),
        ONE_UNIT,
        LARGEST,
    ),
    "not_cleared": (
        ("orizuru_unit", "self.clear.replicate(slots) | popped", "popped"),
        TWO_BEATS,
        "wrong about values being left",
    ),
    "present_for_ever": (
        ("orizuru", 'pair.present.eq(roots["max"].key.any())', "pair.present.eq(1)"),
        ONE_UNIT,
        "wrong about values being left",
    ),
    # Trees of units
    "taken_by_all": (
        ("orizuru_unit", "tree.won & self.advance.replicate(self._inputs)", "tree.won"),
        LEVELS,
        "wrong about values being left",
    ),
    "index_of_first_child": (
        ("orizuru_unit", "for child in children]), encode(tree.won)", "for child in children]), 0"),
        LEVELS,
        SMALLEST,
    ),
    "heads_not_filled": (
        ("orizuru", "fill[level - 1] | merge.take[i]", "merge.take[i]"),
        LEVELS,
        "wrong about values being left",
    ),
    # NaN flag
    "flag_of_last_beat_only": (
        ("orizuru", "nans.any() | (invalid & ~first)", "nans.any()"),
        TWO_BEATS,
        "wrong about a NaN",
    ),
    "flag_kept_for_next_vector": (
        ("orizuru", "nans.any() | (invalid & ~first)", "nans.any() | invalid"),
        ONE_UNIT,
        "wrong about a NaN",
    ),
    "flag_of_values_not_kept": (
        ("orizuru", "for value in vector.values) & vector.keep", "for value in vector.values)"),
        ONE_UNIT,
        "wrong about a NaN",
    ),
    "flag_of_lanes_outside": (
        ("orizuru", "(lane < inside)", "(lane < p.lanes)"),
        ODD,
        "wrong about a NaN",
    ),
    # Number of pairs, and when
    "last_too_early": (
        ("orizuru", "pair.last.eq(pairs_left == 1)", "pair.last.eq(pairs_left <= 2)"),
        ONE_UNIT,
        "wrong about the last pair",
    ),
    "one_pair_too_many": (
        ("orizuru", "m.If(pairs_left == 1)", "m.If(pairs_left == 0)"),
        ONE_UNIT,
        "a pair from nowhere",
    ),
    "lost_in_a_stall": (
        ("orizuru", "pop.eq(popping & output.i.ready)", "pop.eq(popping)"),
        ONE_UNIT,
        "a pair is missing",
    ),
    "stuck_without_pairs": (
        ("orizuru", "taken & end & vector.k.any()", "taken & end"),
        ONE_UNIT,
        "refused while a vector is loaded",
    ),
    "ready_while_draining": (
        ("orizuru", "self.i.ready.eq(loading)", "self.i.ready.eq(loading | popping)"),
        ONE_UNIT,
        "accepted while a vector is drained",
    ),
    "too_early": (
        ("orizuru", 'm.next = "FILL"', 'm.next = "POP"'),
        ONE_UNIT,
        "a pair from nowhere",
    ),
    "wrong_pair_after_a_stall": (
        ("skid_buffer", "self.o.payload.eq(skid)", "self.o.payload.eq(self.i.payload)"),
        ONE_UNIT,
        LARGEST,
    ),
}


# One of each source file; the others in the campaign.
IN_SUITE = {
    "zeros_differ",
    "late_index_wins_tree",
    "popped_again",
    "lost_in_a_stall",
    "wrong_pair_after_a_stall",
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.campaign] * (fault not in IN_SUITE))
        for fault in FAULTS
    ],
)
def test_injected_fault_is_found(monkeypatch, fault):
    change, engine, found_by = FAULTS[fault]
    dut = rebuilt(monkeypatch, engine, change)
    spec = OrizuruSpec(dut, only=found_by)
    find_fault(spec, f"orizuru_{fault}", found_by, depth=14, solver="yices")


def test_sources_read_again_without_a_fault_pass(monkeypatch):
    dut = rebuilt(monkeypatch, TWO_BEATS, None)
    prove_block(OrizuruSpec(dut, invariant), "orizuru_sound", depth=1)
