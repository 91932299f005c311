# amaranth: UnusedElaboratable=no
"""Every setting that a block refuses, and the one sentence that says why.

Settings are written as on a command line: ``python -m hw verilog stream.queue --set depth=0``.
"""

import pytest

from hw.arith.float_format import FloatFormat
from hw.arith.piecewise_linear import Lines, PiecewiseLinear, PiecewiseLinearParameters
from hw.catalogue import find
from hw.kllm.product_table import ProductTableParameters
from hw.parameters import ParameterError, Parameters
from hw.stream.credit_counter import CreditCounterParameters
from hw.veda.row_map import RowMapParameters
from hw.veda.scheduler import SchedulerParameters
from hw.veda.tree_array import TreeArrayParameters

# Sub-blocks, which the catalogue does not list.
HELPERS = {
    "stream.credit_counter": CreditCounterParameters,
    "kllm.product_table": ProductTableParameters,
    "veda.row_map": RowMapParameters,
    "veda.scheduler": SchedulerParameters,
    "veda.tree_array": TreeArrayParameters,
}
FORMATS = "format must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2"
ACCUMULATORS = "accumulator must be one of fp16, fp20, fp22, fp24, fp32"
BOUNDS = "bounds must be 1 to 15 falling numbers between 2047 and 1 with _ between them"
# Block to settings, as changes of its default parameters, to the message.
REFUSED = {
    "stream.arbiter": {
        "width=-1": "width must be at least 1, not -1",
        "inputs=0": "inputs must be at least 1, not 0",
        "width=0": "width must be at least 1, not 0",
    },
    "stream.credit_counter": {
        "credits=0": "credits must be at least 1, not 0",
    },
    "stream.queue": {
        "width=0": "width must be at least 1, not 0",
        "depth=0": "depth must be at least 1, not 0",
        "depth=1048577": "depth must be at most 1048576, not 1048577",
    },
    "stream.sequential_reader": {
        "address_width=0": "address_width must be at least 1, not 0",
        "data_width=0": "data_width must be at least 1, not 0",
        "depth=2": "depth must be a power of two from 4, not 2",
        "depth=12": "depth must be a power of two from 4, not 12",
        "depth=0": "depth must be a power of two from 4, not 0",
        "longest=0": "longest must be at least 1, not 0",
    },
    "stream.skid_buffer": {
        "width=0": "width must be at least 1, not 0",
    },
    "arith.adder_tree": {
        "n=1": "n must be at least 2, not 1",
        "operation=mean": "operation must be one of add, max, not 'mean'",
        "format=fixed operation=max": "operation must be add for fixed, not 'max'",
        "format=fixed width=65": "width must be between 1 and 64, not 65",
        "stages=4 format=fixed": "stages must be between 0 and 3, not 4",
        "stages=5 operation=max": "stages must be between 0 and 4, not 5",
        "stages=9 n=4": "stages must be between 0 and 8, not 9",
    },
    "arith.divide": {
        "format=fp32": "format must be one of fp16, bf16, fp8_e4m3, fp8_e5m2, not 'fp32'",
    },
    "arith.dot_product": {
        "n=1": "n must be at least 2, not 1",
        "format=fixed a_width=33": "a_width must be between 1 and 32, not 33",
        "format=fixed b_width=0": "b_width must be between 1 and 32, not 0",
        "stages=4 format=fixed": "stages must be between 0 and 3, not 4",
        "stages=13 n=4": "stages must be between 0 and 12, not 13",
        "format=fp12": f"{FORMATS}, not 'fp12'",
    },
    "arith.exp": {
        "format=fp32": "format must be one of fp16, bf16, fp8_e4m3, fp8_e5m2, not 'fp32'",
    },
    "arith.exp2_fixed": {
        "integer=9": "integer must be between 0 and 8, not 9",
        "fraction=0": "fraction must be between 1 and 14, not 0",
        "precision=1": "precision must be between 2 and 24, not 1",
        "output=11": "output must be between 12 (precision) and 64, not 11",
        "rounding=nearest": "rounding must be down or up, not 'nearest'",
    },
    "arith.fixed_to_float": {
        "width=49": "width must be between 2 and 48, not 49",
        "fraction=29": "fraction must be between -15 and 28, not 29",
        "fraction=-16": "fraction must be between -15 and 28, not -16",
    },
    "arith.float_add": {
        "stages=5": "stages must be between 0 and 4, not 5",
        "format=fp64": f"{FORMATS}, not 'fp64'",
    },
    "arith.float_convert": {
        "source=fp64": f"{FORMATS}, not 'fp64'",
    },
    "arith.float_multiply_add": {
        "sum_format=fp64": f"{FORMATS}, not 'fp64'",
        "stages=5": "stages must be between 0 and 4, not 5",
    },
    "arith.float_to_fixed": {
        "width=1": "width must be between 2 and 48, not 1",
        "rounding=up": "rounding must be one of nearest_even, truncate, floor, ceiling, not 'up'",
        "fraction=29": "fraction must be between -16 and 28, not 29",
        "fraction=-17": "fraction must be between -16 and 28, not -17",
    },
    "arith.inverse_square_root": {
        "format=fp32": "format must be one of fp16, bf16, fp8_e4m3, fp8_e5m2, not 'fp32'",
    },
    "arith.log": {
        "format=fp32": "format must be one of fp16, bf16, fp8_e4m3, fp8_e5m2, not 'fp32'",
    },
    "arith.log2_fixed": {
        "width=63": "width must be between 2 and 62, not 63",
        "width=8 precision=8": "precision must be between 1 and 7, not 8",
        "precision=15": "precision must be between 1 and 14, not 15",
        "output=0": "output must be between 1 and 24, not 0",
        "rounding=nearest": "rounding must be down or up, not 'nearest'",
    },
    "arith.piecewise_linear": {
        "function=sin": "function must be one of exp, not 'sin'",
        "intervals=17": "intervals must be between 2 and 16, not 17",
    },
    "arith.population_count": {
        "n=1": "n must be at least 2, not 1",
    },
    "arith.reciprocal": {
        "format=fp32": "format must be one of fp16, bf16, fp8_e4m3, fp8_e5m2, not 'fp32'",
    },
    "kllm.centroid_lane": {
        "k=0": "k must be between 1 and 65536, not 0",
        "weight_bits=9": "weight_bits must be between 1 and 8, not 9",
        "bits=1": "bits must be between 2 and 16, not 1",
        "bits=17": "bits must be between 2 and 16, not 17",
        "counters=0": "counters must be at least 1, not 0",
        "entries=0": "entries must be at least 1, not 0",
        "sum_stages=4": "sum_stages must be between 0 and 3, not 4",
        "columns=0": "columns must be at least 1, not 0",
    },
    "kllm.clustering_unit": {
        "activation_bits=0": "activation_bits must be between 1 and 6, not 0",
        "activation_bits=7": "activation_bits must be between 1 and 6, not 7",
        "lanes=0": "lanes must be between 1 and 64, not 0",
        "lanes=65": "lanes must be between 1 and 64, not 65",
    },
    "kllm.codebook_replacement": {
        "lanes=0": "lanes must be at least 1, not 0",
    },
    "kllm.column_counter": {
        "k=0": "k must be at least 1, not 0",
        "counters=0": "counters must be at least 1, not 0",
        "macs=3": "macs must be a power of two up to 256, not 3",
        "macs=512": "macs must be a power of two up to 256, not 512",
        "stages=4": "stages must be between 0 and 3, not 4",
        "inputs=1": "inputs must be at least 2, not 1",
    },
    "kllm.column_scale": {
        "columns=0": "columns must be at least 1, not 0",
    },
    "kllm.concat_unit": {
        "n=0": "n must be at least 1, not 0",
        "activation_bits=0": "activation_bits must be at least 1, not 0",
        "weight_bits=0": "weight_bits must be at least 1, not 0",
    },
    "kllm.element_function": {
        "stages=7": "stages must be between 0 and 6, not 7",
    },
    "kllm.functional_unit": {
        "element_stages=0": "element_stages must be between 1 and 6, not 0",
        "rms_stages=5": "rms_stages must be between 1 and 4, not 5",
        "lanes=0": "lanes must be between 1 and 64, not 0",
    },
    "kllm.index_buffer": {
        "k=0": "k must be at least 1, not 0",
        "columns=0": "columns must be at least 1, not 0",
        "vectors=0": "vectors must be at least 1, not 0",
        "tag_bits=0": "tag_bits must be at least 1, not 0",
        "segment=20": "segment must be a multiple of lanes = 16, not 20",
    },
    "kllm.index_distribution_counter": {
        "inputs=1": "inputs must be at least 2, not 1",
        "activation_bits=7": "activation_bits must be between 1 and 6, not 7",
        "weight_bits=0": "weight_bits must be between 1 and 6, not 0",
        "stages=3": "stages must be between 0 and 2, not 3",
    },
    "kllm.inverse_rms": {
        "stages=0": "stages must be between 1 and 4, not 0",
    },
    "kllm.kllm_core": {
        "lanes=3": "lanes must be a power of two up to 16, not 3",
        "n=0": "n must be at least 1, not 0",
        "macs=8": "macs must be a power of two from 16 to 256, not 8",
        "activation_bits=1 macs=16": "activation_bits must be between 2 and 6, not 1",
        "weight_bits=7": "weight_bits must be between 1 and 6, not 7",
        "k=1": "k must be between 2 and 65536, not 1",
        "centroid_bits=1": "centroid_bits must be 0 or between 2 and 16, not 1",
        "counter_stages=4": "counter_stages must be between 0 and 3, not 4",
        "scores=511": "scores must be a multiple of lanes = 2 between 4 and 65536, not 511",
        "vectors=3": "vectors must be a power of two, not 3",
        "depth=3": "depth must be a power of two from 4, not 3",
        "outliers=0": "outliers must be between 1 and k - 1 = 575, not 0",
        "k=4096 depth=32": "depth must be at least 52, the words of a column, not 32",
        "k=4096 address_width=5": "address_width must be at least 6 for columns of 52 words, not 5",
    },
    "kllm.orizuru": {
        "n=0": "n must be between 1 and 65536, not 0",
        "n=8 k=9": "k must be between 0 and n = 8, not 9",
        "k=-1": "k must be between 0 and n = 256, not -1",
        "lanes=0": "lanes must be a power of two, not 0",
        "lanes=-4": "lanes must be a power of two, not -4",
        "lanes=12": "lanes must be a power of two, not 12",
        "radix=6": "radix must be a power of two, not 6",
        "radix=1": "radix must be at least 2, not 1",
        "k=257": "k must be between 0 and n = 256, not 257",
        "lanes=3": "lanes must be a power of two, not 3",
        "radix=12": "radix must be a power of two, not 12",
    },
    "kllm.outlier_list": {
        "k=0": "k must be at least 1, not 0",
        "entries=0": "entries must be at least 1, not 0",
        "outliers=0": "outliers must be at least 1, not 0",
        "columns=0": "columns must be at least 1, not 0",
        "vectors=0": "vectors must be at least 1, not 0",
        "lanes=3": "lanes must be a power of two up to 64, not 3",
        "lanes=128": "lanes must be a power of two up to 64, not 128",
        "segment=40": "segment must be a multiple of lanes = 16, not 40",
        "segment=0": "segment must be a multiple of lanes = 16, not 0",
    },
    "kllm.outlier_split": {
        "k=1": "k must be between 2 and 65536, not 1",
        "outliers=0": "outliers must be between 1 and k - 1 = 575, not 0",
    },
    "kllm.pe_lane": {
        "k=0": "k must be between 1 and 65536, not 0",
        "macs=3": "macs must be a power of two up to 256, not 3",
        "entries=0": "entries must be at least 1, not 0",
        "counter_stages=4": "counter_stages must be between 0 and 3, not 4",
        "columns=0": "columns must be at least 1, not 0",
    },
    "kllm.product_table": {
        "macs=8": "macs must be a power of two from 16 to 256, not 8",
    },
    "kllm.reduction": {
        "k=0": "k must be between 1 and 65536, not 0",
        "activation_bits=9": "activation_bits must be between 1 and 8, not 9",
        "weight_bits=0": "weight_bits must be between 1 and 8, not 0",
        "macs=12": "macs must be a power of two up to 256, not 12",
        "macs=512": "macs must be a power of two up to 256, not 512",
    },
    "kllm.rms_factor": {
        "bits=1": "bits must be between 2 and 9, not 1",
        "outliers=0": "outliers must be between 1 and k - 1 = 575, not 0",
    },
    "kllm.softmax": {
        "lanes=0": "lanes must be between 1 and 64, not 0",
        "lanes=65": "lanes must be between 1 and 64, not 65",
        "length=1020": "length must be a multiple of lanes = 8 between 4 and 65536, not 1020",
    },
    "kllm.sparse_path": {
        "k=0": "k must be between 1 and 65536, not 0",
        "weight_bits=9": "weight_bits must be between 1 and 8, not 9",
        "counters=0": "counters must be at least 1, not 0",
        "entries=0": "entries must be at least 1, not 0",
    },
    "baseline.dense_core": {
        "d=3": "d must be a power of two from 2 to 256, not 3",
        "d=512": "d must be a power of two from 2 to 256, not 512",
        "capacity=1": "capacity must be a power of two from 2 to 4096, not 1",
        "capacity=8192": "capacity must be a power of two from 2 to 4096, not 8192",
        "heads=0": "heads must be at least 1, not 0",
        "kv_heads=10": "kv_heads must be 1 to heads, not 10",
        "parallel=10": "parallel must be 1 to heads, not 10",
        "depth=3": "depth must be a power of two from 4, not 3",
    },
    "baseline.h2o_core": {
        "d=3": "d must be a power of two from 2 to 256, not 3",
        "sum_bits=25": "sum_bits must be 1 to 24, not 25",
        "position_bits=0": "position_bits must be 1 to 32, not 0",
    },
    "attention.pe_array": {
        "rows=3": "rows must be a power of two up to 256, not 3",
        "columns=0": "columns must be a power of two up to 256, not 0",
        "arrays=512": "arrays must be a power of two up to 256, not 512",
        "accumulator=bf16": f"{ACCUMULATORS}, not 'bf16'",
        "multiply_stages=3": "multiply_stages must be between 1 and 2, not 3",
        "add_stages=3": "add_stages must be one of 1, 2, 4, not 3",
    },
    "veda.row_map": {
        "capacity=1": "capacity must be a power of two from 2, not 1",
        "capacity=12": "capacity must be a power of two from 2, not 12",
        "region_bits=0": "region_bits must be at least 1, not 0",
        "tag_bits=0": "tag_bits must be at least 1, not 0",
    },
    "veda.scheduler": {
        "kv_heads=0": "kv_heads must be 1 to heads, not 0",
        "kv_heads=10": "kv_heads must be 1 to heads, not 10",
        "depth=6": "depth must be a power of two from 4, not 6",
    },
    "attention.special_function_unit": {
        "length=1": "length must be between 2 and 4096, not 1",
        "length=4097": "length must be between 2 and 4096, not 4097",
        "tile=0": "tile must be between 1 and 64, not 0",
        "tile=65": "tile must be between 1 and 64, not 65",
    },
    "veda.tree_array": {
        "tiles=3": "tiles must be 1 or 2, not 3",
        "rows=1 columns=2": "rows, columns and arrays must make 4 or more, not 2",
    },
    "veda.veda_core": {
        "rows=3": "rows must be a power of two up to 256, not 3",
        "rows=1 columns=1": "rows, columns and arrays must make 2 or more, not 1",
        "capacity=48": "capacity must be a power of two from 2, not 48",
        "kv_heads=10": "kv_heads must be 1 to heads, not 10",
        "depth=3": "depth must be a power of two from 4, not 3",
        "accumulator=bf16": f"{ACCUMULATORS}, not 'bf16'",
        "dataflow=outer": "dataflow must be one of flexible, tree, tree_double, not 'outer'",
        "scheduling=no": "scheduling must be one of element_serial, separate, not 'no'",
        "count_bits=0": "count_bits must be between 1 and 16, not 0",
    },
    "veda.voting_engine": {
        "capacity=1": "capacity must be at least 2, not 1",
        "heads=0": "heads must be at least 1, not 0",
        "position_bits=7": "position_bits must be at least 8, not 7",
        "position_bits=-1": "position_bits must be at least 8, not -1",
        "count_bits=0": "count_bits must be between 1 and 16, not 0",
        "count_bits=17": "count_bits must be between 1 and 16, not 17",
    },
    "topick.margin_generator": {
        "d=1": "d must be at least 2, not 1",
        "bits=17": "bits must be between 2 and 16, not 17",
        "chunk_bits=5": "chunk_bits must divide 12 (bits) and be less, not 5",
        "width=39": "width must be between 14 and 38, not 39",
    },
    "topick.pe_lane": {
        "token_bits=0": "token_bits must be between 1 and 24, not 0",
        "entries=1": "entries must be at least 2, not 1",
        "scale_bits=25": "scale_bits must be between 1 and 24, not 25",
        "shift_bits=6": "shift_bits must be between 0 and 5, not 6",
        "limb=12": "limb must be a power of two of at least 12 (precision), not 12",
        "threshold_bits=32": "threshold_bits must be at least 1 and below 32 (width), not 32",
    },
    "topick.pec": {
        "limb=8": "limb must be a power of two of at least 12 (precision), not 8",
        "fraction=15": "fraction must be between 1 and 14, not 15",
    },
    "topick.rpdu": {
        "width=49": "width must be between 2 and 48, not 49",
        "margin_bits=32": "margin_bits must be at least 1 and below 32 (width), not 32",
    },
    "topick.scoreboard": {
        "entries=1": "entries must be at least 2, not 1",
        "score_bits=0": "score_bits must be between 1 and 62, not 0",
        "precision=63": "precision must be between 1 and 62, not 63",
    },
    "lad.apid": {
        "lanes=0": "lanes must be between 1 and 64, not 0",
        "positions=0": "positions must be between 1 and 65536, not 0",
        "window=0": "window must be at least 1, not 0",
        "counter_bits=1": "counter_bits must be between 2 and 16, not 1",
        "slack=-1": "slack must be between 0 and 256, not -1",
        "slack=257": "slack must be between 0 and 256, not 257",
        "outputs=3": "outputs must be a power of two, not 3",
        "depth=16": "depth must be a power of two from 32, not 16",
        "depth=48": "depth must be a power of two from 32, not 48",
        "lanes=8 depth=16 outputs=8": "depth must be a power of two from 22, not 16",
        **{
            f"bounds={text}": f"{BOUNDS}, not {text!r}"
            for text in ["", "5_8", "8_8", "8_0", "2048", "8_-1", "8__1", "²"]
        },
    },
    "lad.vpu": {
        "d=1": "d must be between 2 and 1024, not 1",
        "d=1025": "d must be between 2 and 1024, not 1025",
        "multiply_stages=0": "multiply_stages must be between 1 and 4, not 0",
        "add_stages=5": "add_stages must be between 1 and 4, not 5",
    },
    "unicaim.cell_array": {
        "spread_mv=201": "spread_mv must be between 0 and 200, not 201",
    },
    "unicaim.charge_accumulator": {
        "rows=1": "rows must be at least 2, not 1",
        "score_bits=1": "score_bits must be between 2 and 24, not 1",
        "fraction=17": "fraction must be between 0 and 16, not 17",
        "share=-1": "share must be between 0 and 16, not -1",
    },
    "unicaim.digital_array": {
        "rows=1": "rows must be at least 2, not 1",
        "rows=65537": "rows must be at most 65536, not 65537",
        "d=65537": "d must be at most 65536, not 65537",
        "d=1": "d must be at least 2, not 1",
        "key_bits=0": "key_bits must be between 1 and 8, not 0",
        "query_bits=9": "query_bits must be between 1 and 8, not 9",
    },
    "unicaim.eviction_sense": {
        "rows=1": "rows must be at least 2, not 1",
    },
    "unicaim.sar_adc": {
        "bits=0": "bits must be between 1 and 24, not 0",
        "fraction=0": "fraction must be between 1 and 8, not 0",
    },
    "unicaim.topk_sense": {
        "rows=1": "rows must be at least 2, not 1",
    },
}


def parameters_of(block: str) -> Parameters:
    """The block's default parameters."""
    return (HELPERS[block] if block in HELPERS else find(block).parameters_class)()


@pytest.mark.parametrize(
    ("block", "settings", "message"),
    [(block, *row) for block, rows in REFUSED.items() for row in rows.items()],
    ids=[f"{block} {settings}" for block, rows in REFUSED.items() for settings in rows],
)
def test_settings_are_refused(block, settings, message):
    with pytest.raises(ParameterError) as refused:
        parameters_of(block).replace_from_text(settings.split())
    assert str(refused.value) == message


# What is built from arguments other than settings.
CALLS = [
    (lambda: FloatFormat(1, 10), "exponent width must be at least 2, not 1"),
    (lambda: FloatFormat(5, 1), "mantissa width must be at least 2, not 1"),
    (lambda: CreditCounterParameters.for_pipeline(-1), "latency must be at least 0, not -1"),
    (
        lambda: Lines((1,), (1,), (1,)),
        (
            "there must be one bound fewer than slopes, and as many slopes as intercepts, "
            "not (2, 1, 1)"
        ),
    ),
    (
        lambda: PiecewiseLinear(PiecewiseLinearParameters(), Lines((), (1,), (1,))),
        "lines must be as many as intervals, not 1",
    ),
]


@pytest.mark.parametrize(("make", "message"), CALLS, ids=[message for _, message in CALLS])
def test_arguments_are_refused(make, message):
    with pytest.raises(ParameterError) as refused:
        make()
    assert str(refused.value) == message
