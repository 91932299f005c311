"""Settings that streams and arithmetic units refuse; see :mod:`tests.support.hw.refused`."""

FORMATS = "format must be one of fp16, bf16, fp32, fp8_e4m3, fp8_e5m2"

UNITS = {
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
    "arith.sine_cosine": {
        "stages=3": "stages must be between 0 and 2, not 3",
    },
    "arith.reciprocal": {
        "format=fp32": "format must be one of fp16, bf16, fp8_e4m3, fp8_e5m2, not 'fp32'",
    },
}
