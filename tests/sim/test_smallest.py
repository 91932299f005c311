"""Every block at the smallest legal values of its parameters: one lane, one token, one bit.

All of a block's parameters at their smallest together, against its bit-exact model and its cycle
formula; in ``make campaign`` also the blocks that take long to compile, and each parameter of the
other blocks alone, the others as in the first preset. VEDA's blocks have a test for themselves.
"""

import dataclasses

import pytest

from hw.catalogue import blocks, find
from hw.parameters import ParameterError, Parameters
from sim.drivers.run import run

LAD = {
    "d": 8,
    "positions": 2,
    "bounds": "1",
    "slack": 0,
    "code_bits": 2,
    "near": 0,
    "window": 1,
    "heads": 1,
    "kv_heads": 1,
    "counter_bits": 2,
    "updates": 2,
    "depth": 4,
    "multiply_stages": 1,
    "add_stages": 1,
    "identification": "codes",
    "prefetch": 0,
    "weights": 0,
}
FLOAT = {"stages": 0, "format": "fp8_e5m2"}
LANE = {"d": 2, "bits": 2, "chunk_bits": 1, "scale_bits": 1, "shift_bits": 0, "width": 4}
DECODE = {"d": 2, "capacity": 2, "heads": 1, "kv_heads": 1, "depth": 4}
ARRAY = {"rows": 2, "d": 2, "key_bits": 1, "query_bits": 1}
SEARCH = {"d": 8, "capacity": 16, "parallel": 1, "query_bits": 4, "sinks": 0}

SMALLEST = (
    ("stream.queue", {"width": 1, "depth": 1}),
    ("stream.skid_buffer", {"width": 1}),
    ("stream.arbiter", {"width": 1, "inputs": 1}),
    ("stream.sequential_reader", {"address_width": 1, "data_width": 1, "depth": 4, "longest": 1}),
    ("arith.float_add", FLOAT),
    ("arith.float_multiply", FLOAT),
    ("arith.float_multiply_add", FLOAT),
    ("arith.float_compare", FLOAT),
    ("arith.float_max", FLOAT),
    ("arith.float_min", FLOAT),
    ("arith.float_to_fixed", FLOAT | {"width": 2, "fraction": -16}),
    ("arith.fixed_to_float", FLOAT | {"width": 2, "fraction": -15}),
    ("arith.float_convert", FLOAT | {"source": "fp8_e4m3"}),
    ("arith.exp", FLOAT),
    ("arith.log", FLOAT),
    ("arith.divide", FLOAT),
    ("arith.reciprocal", FLOAT),
    ("arith.square_root", FLOAT),
    ("arith.inverse_square_root", FLOAT),
    ("arith.sine_cosine", {"stages": 0}),
    ("arith.exp2_fixed", {"stages": 0, "integer": 0, "fraction": 1, "precision": 2, "output": 2}),
    ("arith.log2_fixed", {"stages": 0, "width": 2, "precision": 1, "output": 1}),
    ("arith.piecewise_linear", FLOAT | {"intervals": 2}),
    ("arith.adder_tree", FLOAT | {"n": 2}),
    ("arith.adder_tree", {"format": "fixed", "n": 2, "stages": 0, "width": 1}),
    ("arith.dot_product", FLOAT | {"n": 2}),
    ("arith.dot_product", {"format": "fixed", "n": 2, "stages": 0, "a_width": 1, "b_width": 1}),
    ("arith.population_count", {"stages": 0, "n": 2}),
    ("kllm.orizuru", {"n": 1, "k": 0, "lanes": 1, "radix": 2}),
    ("kllm.clustering_unit", {"activation_bits": 1, "lanes": 1}),
    (
        "kllm.outlier_list",
        {
            "k": 1,
            "segment": 1,
            "lanes": 1,
            "entries": 1,
            "outliers": 1,
            "columns": 1,
            "vectors": 1,
        },
    ),
    ("kllm.concat_unit", {"stages": 0, "n": 1, "activation_bits": 1, "weight_bits": 1}),
    (
        "kllm.index_distribution_counter",
        {"stages": 0, "inputs": 2, "activation_bits": 1, "weight_bits": 1},
    ),
    (
        "kllm.column_counter",
        {
            "k": 1,
            "activation_bits": 1,
            "weight_bits": 1,
            "counters": 1,
            "inputs": 2,
            "macs": 1,
            "stages": 0,
        },
    ),
    ("kllm.reduction", {"k": 1, "activation_bits": 1, "weight_bits": 1, "macs": 1}),
    ("kllm.sparse_path", {"k": 1, "weight_bits": 1, "counters": 1, "entries": 1}),
    ("kllm.column_scale", {"columns": 1}),
    (
        "kllm.pe_lane",
        {
            "k": 1,
            "activation_bits": 1,
            "weight_bits": 1,
            "counters": 1,
            "macs": 1,
            "entries": 1,
            "columns": 1,
            "counter_stages": 0,
        },
    ),
    ("kllm.softmax", {"lanes": 1, "length": 4}),
    ("kllm.element_function", {"stages": 0}),
    ("attention.pair_function", {"stages": 0}),
    ("attention.vector_unit", {"lanes": 1, "stages": 1}),
    ("kllm.inverse_rms", {"stages": 1}),
    ("kllm.functional_unit", {"lanes": 1, "length": 4, "element_stages": 1, "rms_stages": 1}),
    ("kllm.outlier_split", {"k": 2, "outliers": 1, "lanes": 1}),
    (
        "kllm.index_buffer",
        {
            "k": 1,
            "bits": 1,
            "lanes": 1,
            "segment": 1,
            "columns": 1,
            "vectors": 1,
            "tag_bits": 1,
        },
    ),
    ("kllm.rms_factor", {"k": 2, "bits": 2, "outliers": 1}),
    ("kllm.codebook_replacement", {"activation_bits": 1, "weight_bits": 1, "lanes": 1}),
    (
        "kllm.kllm_core",
        {
            "k": 2,
            "n": 1,
            "lanes": 1,
            "activation_bits": 2,
            "weight_bits": 1,
            "counters": 1,
            "macs": 2,
            "outliers": 1,
            "entries": 1,
            "vectors": 1,
            "depth": 4,
            "address_width": 1,
            "counter_stages": 0,
            "vector_lanes": 0,
            "rotary_pairs": 0,
        },
    ),
    ("topick.margin_generator", LANE | {"stages": 0}),
    ("topick.scoreboard", {"entries": 2, "score_bits": 1, "shift_bits": 1, "precision": 1}),
    (
        "topick.chunk_buffer",
        {
            "rows": 1,
            "d": 1,
            "bits": 1,
            "chunk_bits": 1,
            "row_bits": 1,
            "address_width": 1,
            "label_bits": 1,
        },
    ),
    ("topick.rpdu", {"stages": 0, "width": 2, "margin_bits": 1, "threshold_bits": 1}),
    (
        "topick.pec",
        {"stages": 0, "width": 4, "margin_bits": 1, "fraction": 1, "precision": 2, "limb": 2},
    ),
    (
        "topick.pe_lane",
        LANE
        | {
            "fraction": 1,
            "precision": 2,
            "limb": 2,
            "threshold_bits": 1,
            "entries": 2,
            "token_bits": 1,
            "probability_bits": 1,
            "whole": False,
        },
    ),
    (
        "topick.probability_generator",
        {"width": 4, "fraction": 1, "bits": 2, "chunk_bits": 1, "d": 1, "rows": 2, "skip": False}
        | {"probability_bits": 1, "whole": False},
    ),
    (
        "topick.topick_core",
        LANE
        | {
            "scale_bits": 2,
            "width": 6,
            "fraction": 1,
            "precision": 2,
            "limb": 2,
            "threshold_bits": 1,
            "entries": 2,
            "lanes": 1,
            "lanes_per_head": 1,
            "tokens": 2,
            "heads": 1,
            "kv_heads": 1,
            "buffer_tokens": 0,
            "observe": False,
            "block": 1,
        },
    ),
    ("lad.vpu", {"d": 2, "multiply_stages": 1, "add_stages": 1}),
    (
        "lad.apid",
        {
            "lanes": 1,
            "positions": 1,
            "depth": 2,
            "outputs": 1,
            "window": 1,
            "bounds": "1",
            "slack": 0,
            "counter_bits": 2,
        },
    ),
    ("lad.md", LAD),
    ("lad.active_fetch", LAD),
    ("lad.ac", LAD),
    ("lad.lad_tile", LAD | {"prefetch": 2, "weights": 2}),
    ("lad.lad_system", LAD | {"prefetch": 2, "tiles": 1}),
    ("tsuru.rotation", {"d": 2, "lanes": 1}),
    ("tsuru.value_mean", {"d": 1, "lanes": 1, "capacity": 1}),
    ("tsuru.row_encoder", {"d": 2, "lanes": 1, "fraction": 1}),
    ("unicaim.cell_array", ARRAY | {"spread_mv": 0}),
    ("unicaim.digital_array", ARRAY),
    ("unicaim.topk_sense", {"rows": 2}),
    ("unicaim.charge_accumulator", {"rows": 2, "score_bits": 2, "fraction": 0, "share": 0}),
    ("unicaim.eviction_sense", {"rows": 2}),
    ("unicaim.sar_adc", {"bits": 1, "fraction": 1}),
    ("unicaim.adc_bank", {"converters": 1, "bits": 1, "fraction": 1}),
    ("unicaim.row_manager", {"rows": 2, "contexts": 1}),
    ("unicaim.group_sum", {"rows": 2, "score_bits": 2, "group": 1}),
    ("unicaim.level_converter", ARRAY | {"contexts": 1, "rotate": False}),
    ("unicaim.serial_array", ARRAY | {"rows": 4, "contexts": 1, "parallel": 2}),
    (
        "unicaim.unicaim_core",
        ARRAY
        | {
            "kv_heads": 1,
            "group": 1,
            "exact": "cells",
            "converters": 1,
            "adc_bits": 2,
            "share": 0,
            "fraction": 0,
            "fill": False,
            "start": "zero",
            "rotate": False,
            "depth": 4,
            "observe": False,
        },
    ),
    ("tsuru.row_search", SEARCH),
    ("tsuru.row_choice", SEARCH),
    (
        "tsuru.tsuru_core",
        SEARCH
        | {"heads": 1, "kv_heads": 1, "depth": 4, "kept": 2, "key_fraction": 1}
        | {"value_fraction": 1},
    ),
    ("baseline.dense_core", DECODE | {"parallel": 1}),
    ("baseline.h2o_core", DECODE | {"sum_bits": 1, "position_bits": 1}),
    (
        "kllm.centroid_lane",
        {
            "k": 1,
            "weight_bits": 1,
            "bits": 2,
            "counters": 1,
            "entries": 1,
            "columns": 1,
            "sum_stages": 0,
        },
    ),
)

# One pair of one value.
ONE_PAIR = ("kllm.orizuru", {"n": 1, "k": 1, "lanes": 1, "radix": 2})

ELSEWHERE = {f"attention.{name}" for name in ("pe_array", "rotary_encoding")}
ELSEWHERE.add("attention.special_function_unit")
"""Blocks that ``tests/veda/test_smallest.py`` has, as it has VEDA's."""

DEAR = {
    "kllm.centroid_lane",
    "kllm.codebook_replacement",
    "kllm.column_scale",
    "kllm.element_function",
    "kllm.functional_unit",
    "kllm.inverse_rms",
    "kllm.kllm_core",
    "attention.pair_function",
    "kllm.pe_lane",
    "kllm.rms_factor",
    "kllm.softmax",
    "attention.vector_unit",
}
"""Blocks whose FP16 units no parameter makes smaller: compiling one takes 8 to 60 CPU seconds."""


def smallest(name: str, settings: dict) -> Parameters:
    return find(name).parameters_class(**settings)


def alone(name: str, settings: dict) -> list[Parameters]:
    """The first preset with one of its parameters as small as the others allow."""
    first = find(name).parameters_class.preset("first")
    found = []
    for parameter, least in settings.items():
        value = getattr(first, parameter)
        tried = range(least, value) if isinstance(least, int) else [least]
        for small in tried:
            try:
                found.append(dataclasses.replace(first, **{parameter: small}))
                break
            except ParameterError:
                pass
    return found


TOGETHER = [
    pytest.param(name, parameters, id=f"{name}-{parameters.slug()}")
    for name, settings in (*SMALLEST, ONE_PAIR)
    for parameters in [smallest(name, settings)]
]
ALONE = [
    pytest.param(name, parameters, id=f"{name}-{parameters.slug()}")
    for name, settings in SMALLEST
    if name not in DEAR
    for parameters in dict.fromkeys(alone(name, settings))
]


def check(name: str, parameters: Parameters) -> None:
    result = run(find(name), "first", parameters, driver="harness", vectors=12)
    assert result.passed, result.failures or result.first_mismatch
    assert result.fewest <= result.cycles <= result.predicted


def test_every_block_is_here():
    names = {block.name for block in blocks() if block.folder != "veda"} - ELSEWHERE
    assert {name for name, _ in SMALLEST} == names


def test_nothing_smaller_is_legal():
    for name, settings in SMALLEST:
        parameters = smallest(name, settings)
        for parameter, value in settings.items():
            if isinstance(value, int) and not isinstance(value, bool):
                with pytest.raises(ParameterError):
                    dataclasses.replace(parameters, **{parameter: value - 1})


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "parameters"), TOGETHER)
def test_all_at_their_smallest(name, parameters):
    check(name, parameters)


@pytest.mark.campaign
@pytest.mark.parametrize(("name", "parameters"), ALONE)
def test_each_at_its_smallest(name, parameters):
    check(name, parameters)
