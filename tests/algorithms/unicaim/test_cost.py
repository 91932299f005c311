"""The cost model: formulas at known points, ratios that move the right way, refusals."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.unicaim.cost import (
    PRUNINGS,
    ArrayShape,
    Constants,
    StepCounts,
    conventional_dynamic,
    delay_ns,
    devices,
    digital_search_steps,
    energy_pj,
    sequence_counts,
    step_counts,
)
from golden.algorithms.unicaim.cost.published import (
    AEDP,
    AREA_BOTH,
    AREA_STATIC,
    Rounded,
    multilevel_gain,
    quotient_range,
)
from golden.algorithms.unicaim.cycles import conversion_cycles
from golden.studies.study import Verdict
from golden.studies.unicaim_cost.claims import claims, ratio
from golden.studies.unicaim_cost.sweeps import Setting, conventional, cost, generated_for
from golden.unicaim.cells import score_limit
from golden.unicaim.digital_array import search

SHAPE = ArrayShape()
NO_SMALL_PARTS = Constants(sense_line_ff=0, bit_line_ff=0, write_fj=0)


def as_lists(counts: StepCounts) -> dict:
    return {name: np.asarray(value).tolist() for name, value in dataclasses.asdict(counts).items()}


# Counts


def test_counts_of_a_sequence_that_fills_the_array():
    """Two rows of the prompt's three stay; four rows are full after two tokens."""
    options = {"heavy": 2, "reserved": 2, "kept": 50, "heads": 3, "search_steps": 11}
    both = sequence_counts(PRUNINGS["both"], 3, 4, **options)
    assert as_lists(both) == {
        "rows": [3, 4, 4, 4],
        "heads": 3,
        "search_steps": 33,
        "conversions": [6, 6, 6, 6],
        "written": 1,
        "evicted": [0, 0, 1, 1],
    }
    dense = sequence_counts(PRUNINGS["dense"], 3, 4, **options)
    assert as_lists(dense)["conversions"] == [12, 15, 18, 21]
    assert dense.search_steps == 0 and not np.any(dense.evicted)


def test_a_short_prompt_leaves_rows_free():
    counts = sequence_counts(PRUNINGS["static"], 1, 5, heavy=2, reserved=2)
    assert counts.rows.tolist() == [2, 3, 4, 4, 4]
    assert counts.evicted.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("rows", "k", "selected"), [(9, 4, 4), (3, 4, 3), (5, 0, 0), (7, None, 7)])
def test_conversions_are_the_selected_rows(rows, k, selected):
    counts = step_counts(rows, k, heads=2, search_steps=5)
    assert counts.conversions == 2 * selected
    assert counts.search_steps == (0 if k is None else 10)


@pytest.mark.parametrize("rows", [1, 64, 576])
def test_search_steps_are_the_digital_arrays(rows):
    limit = score_limit(128, 3, 1)
    scores = np.random.default_rng(rows).integers(-limit, limit + 1, rows)
    high, _ = search(scores, np.ones(rows, bool), 5, limit)
    assert len(high) == digital_search_steps(128, 3, 1) == 11


def test_counts_are_those_of_the_algorithm():
    """Of a run of the attention itself: few rows at first, then evictions; two query heads."""
    prompt, generated, heads, size = 5, 9, 2, {"heavy": 2, "reserved": 3}
    rng = np.random.default_rng(3)
    attention = StaticDynamicAttention(**size, top_k=4, prompt=prompt)
    q = rng.standard_normal((heads, prompt + generated, 4))
    k, v = rng.standard_normal((2, 1, prompt + generated, 4))
    attention.sequence(q, k, v)
    formula = sequence_counts(PRUNINGS["both"], prompt, generated, **size)
    assert formula.rows.tolist() == [3, 4, 5, 5, 5, 5, 5, 5, 5]
    assert attention.conversions == step_counts(formula.rows, 4, heads).conversions.sum()
    assert len(attention.evicted) == prompt - size["heavy"] + np.sum(formula.evicted)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": -1}, "^rows must be whole numbers from 0$"),
        ({"search_steps": 1.5}, "^search_steps must be whole numbers from 0$"),
        ({"heads": 0}, "^heads must be at least 1$"),
        ({"conversions": 9}, "^conversions must be at most rows times heads$"),
        ({"written": 2}, "^a step writes at most one row, and evicts only where it writes$"),
        ({"written": 0, "evicted": 1}, "^a step writes at most one row"),
    ],
)
def test_counts_that_cannot_be(fields, message):
    good = {"rows": 4, "heads": 2, "search_steps": 2, "conversions": 8}
    StepCounts(**good)
    with pytest.raises(ValueError, match=message):
        StepCounts(**(good | fields))


@pytest.mark.parametrize(
    ("prompt", "generated", "options", "message"),
    [
        (-1, 1, {}, "^the prompt must have at least 0 tokens and the output at least 1$"),
        (1, 0, {}, "^the prompt must have"),
        (1, 1, {"heavy": 0, "reserved": 0}, "^the array must have at least 1 row$"),
        (1, 1, {"kept": 101}, "^the rows kept must be 0 to 100 percent, not 101$"),
    ],
)
def test_sequences_that_cannot_be(prompt, generated, options, message):
    with pytest.raises(ValueError, match=message):
        sequence_counts(PRUNINGS["both"], prompt, generated, **options)


# Devices


def test_devices_of_the_papers_array():
    """A cell is two transistors and two FeFETs; a line 1 + 5 + 5 devices at most."""
    made = {name: devices(SHAPE, pruning, 576) for name, pruning in PRUNINGS.items()}
    assert made["dense"].fefets == made["dense"].transistors == 576 * 256
    assert {name: d.total // 576 - 512 for name, d in made.items()} == {
        "dense": 0,
        "static": 6,
        "dynamic": 6,
        "both": 11,
    }
    assert made["both"].capacitors == made["static"].capacitors == 576
    assert made["dynamic"].capacitors == 0


def test_one_bit_cells_take_three_times_the_devices():
    one = ArrayShape(cell_bits=1)
    assert one.slices == 3 and ArrayShape(key_bits=4).slices == 2
    for pruning in PRUNINGS.values():
        assert devices(one, pruning, 7).total == 3 * devices(SHAPE, pruning, 7).total


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d": 0}, "^d must be at least 1, not 0$"),
        ({"cell_bits": 0}, "^cell_bits must be at least 1, not 0$"),
        ({"heavy": 0, "reserved": 0}, "^heavy and reserved must be at least 0, and their sum"),
        ({"heavy": -1}, "^heavy and reserved must be at least 0, and their sum"),
    ],
)
def test_shapes_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        ArrayShape(**fields)


def test_devices_of_no_array():
    with pytest.raises(ValueError, match="^rows must be at least 0, not -1$"):
        devices(SHAPE, PRUNINGS["dense"], -1)


# Energy and delay


def test_energy_of_a_step_by_hand():
    """Two heads, ten rows, d = 4: each part of the sum alone and all together."""
    shape = ArrayShape(heavy=8, reserved=2, d=4)
    counts = step_counts(10, 3, heads=2)
    c = Constants(
        adc_pj=2, supply_v=2, sense_line_ff=5, line_swing=0.75, bit_line_ff=7, write_fj=1000
    )
    conversions, lines, bit_lines, write = 12, 2 * 10 * 4 * 5 * 3, 2 * 10 * 4 * 7 * 4, 4 * 2 * 1000
    want = conversions + (lines + bit_lines + write) / 1000
    assert energy_pj(counts, shape, c) == pytest.approx(want, rel=1e-12)
    dense = step_counts(10, None, heads=2)
    want = 40 + (bit_lines + write) / 1000
    assert energy_pj(dense, shape, c) == pytest.approx(want, rel=1e-12)
    unwritten = dataclasses.replace(dense, written=0)
    assert energy_pj(dense, shape, c) - energy_pj(unwritten, shape, c) == pytest.approx(8)


@pytest.mark.parametrize(("k", "rounds"), [(0, 0), (1, 1), (64, 1), (65, 2), (576, 9), (None, 9)])
def test_delay_of_a_step_by_hand(k, rounds):
    counts = step_counts(576, k, search_steps=11)
    search_cycles = 0 if k is None else 11
    assert delay_ns(counts, SHAPE) == 10 * rounds + search_cycles + 1
    assert 10 * rounds == conversion_cycles(576 if k is None else k)


def test_heads_convert_one_after_the_other():
    assert delay_ns(step_counts(576, 32, heads=3), SHAPE) == 3 * (10 + 1) + 1


def test_one_bit_cells_convert_every_slice():
    one = ArrayShape(cell_bits=1)
    counts = step_counts(576, 64)
    assert delay_ns(counts, one) == 3 * 10 + 1 + 1
    assert energy_pj(counts, one) == pytest.approx(3 * energy_pj(counts, SHAPE))


def test_the_converter_is_that_of_the_papers_reference():
    """1.13 mW at 100 MS/s."""
    c = Constants()
    assert c.adc_pj == pytest.approx(1.13e-3 / 100e6 * 1e12)
    assert c.adc_cycles * c.cycle_ns == pytest.approx(1e9 / 100e6)


def test_conventional_selection_by_hand():
    """8 rows and one comparator: 8 x 3 comparisons."""
    c = Constants(comparators=1, converters=4, approximate_bits=5, adc_pj=2, compare_pj=0.5)
    energy, delay = conventional_dynamic(step_counts(8, None), SHAPE, c)
    assert energy == pytest.approx(8 * 1 + 24 * 0.5) and delay == pytest.approx(2 * 5 + 24)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adc_pj": 0}, "^adc_pj must be 1e-06 to 1e9, not 0$"),
        ({"write_fj": float("nan")}, "^write_fj must be 0 to 1e9, not nan$"),
        ({"supply_v": float("inf")}, "^supply_v must be 0 to 1e9, not inf$"),
        ({"line_swing": 1.1}, "^line_swing must be at most 1, the whole supply, not 1.1$"),
        ({"converters": 0}, "^converters must be 1 to 1e9, not 0$"),
        ({"converters": 1.5}, "^converters must be a whole number, not 1.5$"),
        ({"approximate_bits": 11}, "^approximate_bits must be at most adc_cycles, 10$"),
    ],
)
def test_constants_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        Constants(**fields)


def test_every_constant_has_a_source_in_the_docstring():
    for field in dataclasses.fields(Constants):
        assert field.metadata["basis"] in ("paper", "assumed", "circuit")
        assert field.metadata["source"] in Constants.__doc__


# The paper's ratios


def test_a_printed_number_is_a_range():
    assert (Rounded("14.7").low, Rounded("14.7").high) == (Fraction("14.65"), Fraction("14.75"))
    assert 15.5 in Rounded("15") and 15.51 not in Rounded("15") and 14.4 not in Rounded("15")


def test_three_bits_are_three_times_one_in_all_of_table_2():
    low, high = multilevel_gain()
    assert low <= 3 <= high and high - low < Fraction(1, 100)
    for pruned in (50, 80):
        for one, three in zip(AEDP[1, pruned], AEDP[3, pruned], strict=True):
            low, high = quotient_range(three, one)
            assert low <= 3 <= high


def test_the_periphery_turns_15_into_14_7():
    cells, both = (devices(SHAPE, PRUNINGS[name], 1).total for name in ("dense", "both"))
    assert AREA_STATIC.value * cells / both in AREA_BOTH


def test_ratios_move_the_right_way():
    """Longer sequences and fewer selected rows gain; a longer search and write lose."""
    at = Setting()
    for quantity in ("devices", "energy_pj", "delay_ns"):
        short, middle, long = (
            ratio(at, quantity, "both", prompt, 64) for prompt in (512, 1024, 4096)
        )
        assert short < middle < long
    for quantity in ("energy_pj", "delay_ns"):
        kept = [
            ratio(dataclasses.replace(at, kept=kept), quantity, "both") for kept in (80, 50, 20)
        ]
        assert kept == sorted(kept) and kept[0] < kept[2]
    digital = dataclasses.replace(at, search_steps=11)
    assert ratio(digital, "delay_ns") < ratio(at, "delay_ns")
    assert ratio(digital, "energy_pj") == ratio(at, "energy_pj")  # one discharge in any case
    assert ratio(at, "devices", "dynamic") < 1 == ratio(at, "devices", "dense")
    for name in ("write_cycles", "sense_line_ff"):
        slower = dataclasses.replace(at, constants=Constants(**{name: 20}))
        assert cost(slower, "both").aedp > cost(at, "both").aedp


def test_known_ratios():
    """Of conversions alone: static pruning of rows in view, times five by the selection."""
    at = dataclasses.replace(Setting(), constants=NO_SMALL_PARTS)
    assert ratio(at, "energy_pj", "static", 2048, 64) == pytest.approx(2080.5 / 544.5)
    at = dataclasses.replace(at, kept=25, prompt=1023, generated=1)
    assert ratio(at, "energy_pj", "dynamic") == pytest.approx(4)


def test_length_of_a_ratio():
    at = Setting()
    for quantity, field in (("energy", "energy_pj"), ("delay", "delay_ns")):
        length = generated_for(at, quantity, 20)
        assert ratio(at, field, "both", at.long_prompt, length) >= 20
        assert ratio(at, field, "both", at.long_prompt, length - 1) < 20
    assert generated_for(at, "delay", 1e9) is None


def test_conventional_selection_is_slower_than_dense_conversion():
    energy, delay = conventional(Setting())
    assert delay > cost(Setting(), "dense").delay_ns > cost(Setting(), "dynamic").delay_ns
    assert energy > cost(Setting(), "dynamic").energy_pj


def test_verdicts_follow_the_figures():
    def verdicts(setting):
        names = "cells, periphery, area, growth, fixed, cache, energy, long energy, sorter's energy"
        names += ", delay, long delay, sorter's delay, search, pruned, range, baselines"
        return dict(zip(names.split(", "), [c.verdict for c in claims(setting)], strict=True))

    given = verdicts(Setting())
    assert {name for name, basis in given.items() if basis == Verdict.COUNTS} == {
        "cells",
        "growth",
        "fixed",
        "search",
    }
    assert {name for name, basis in given.items() if basis == Verdict.CONSTANTS} == {
        "periphery",
        "energy",
        "sorter's energy",
        "delay",
        "sorter's delay",
    }
    assert Verdict.NOT not in given.values()
    slow = verdicts(Setting(search_steps=100, constants=Constants(sense_line_ff=100)))
    assert slow["energy"] == slow["delay"] == slow["sorter's delay"] == Verdict.NOT
    fast = verdicts(Setting(constants=Constants(comparators=10**6)))
    assert fast["sorter's delay"] == Verdict.NOT
    assert verdicts(Setting(shape=ArrayShape(d=8)))["periphery"] == Verdict.NOT
    assert verdicts(Setting(shape=ArrayShape(key_bits=2, cell_bits=2)))["cells"] == Verdict.NOT
