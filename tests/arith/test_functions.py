"""Functions of one operand: every operand of every small format, in the model and in hardware.

One table has what is expected of each function. Errors are in units in the last place (ulp).
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from golden.arith import exp, inverse_square_root, log, reciprocal, square_root
from golden.arith.formats import DTYPES, canonical, flush, from_bits, is_nan, to_bits
from hw.arith import exp as hw_exp
from hw.arith import inverse_square_root as hw_inverse_square_root
from hw.arith import log as hw_log
from hw.arith import reciprocal as hw_reciprocal
from hw.arith.float_format import FORMATS, FloatFormat
from hw.arith.square_root import SquareRootParameters
from hw.catalogue import find
from sim.testbenches.arith.operands import random_floats
from tests.support.arith.functions import (
    assert_same_tables,
    every,
    float64,
    run,
    simulate,
    ulp_errors,
)


@dataclasses.dataclass(frozen=True)
class Function:
    """What is expected of a function.

    block
        Its name in the catalogue.
    model, exact
        The golden model, and the function in float64.
    bounds
        Largest errors in normal and in subnormal results, by format.
    specials
        Results of special operands, as pairs ``operand:result`` in the names of :func:`encodings`.
        A NaN operand always gives the quiet NaN.
    flushed
        Number of FP16 operands whose result changes if subnormal numbers are flushed.
    subnormals
        Share of the operands that must have a subnormal (or zero) result.
    powers
        Number of powers of two among the results, if these must be exact.
    slope
        1 for a function that never decreases, -1 for one that never increases.
    """

    block: str
    model: Callable[..., np.ndarray]
    exact: Callable[[np.ndarray], np.ndarray]
    bounds: dict[str, tuple[float, float]]
    specials: str
    flushed: int
    subnormals: float = 0.0
    powers: int | None = None
    slope: int = 1

    @property
    def name(self) -> str:
        return self.block.removeprefix("arith.")


ROUNDED = dict.fromkeys(["fp16", "bf16", "fp8_e4m3", "fp8_e5m2"], (0.5, 0.5))
FUNCTIONS = [
    Function(
        "arith.exp",
        exp.exp,
        np.exp,
        {
            "fp16": (0.876, 0.997),
            "bf16": (0.795, 0.991),
            "fp8_e4m3": (0.680, 0.770),
            "fp8_e5m2": (0.500, 0.500),
        },
        "0:1 -0:1 tiny:1 -tiny:1 largest:inf -largest:0 inf:inf -inf:0",
        flushed=846,
        subnormals=1 / 10,
    ),
    Function(
        "arith.log",
        log.log,
        np.log,
        {"fp16": (0.831, 0), "bf16": (0.682, 0), "fp8_e4m3": (0.500, 0), "fp8_e5m2": (0.521, 0)},
        "0:-inf -0:-inf 1:0 -1:nan -tiny:nan inf:inf -inf:nan",
        flushed=2046,
    ),
    Function(
        "arith.reciprocal",
        reciprocal.reciprocal,
        lambda x: 1 / x,
        {
            "fp16": (0.793, 0.999),
            "bf16": (0.648, 0.999),
            "fp8_e4m3": (0.5, 0.999),
            "fp8_e5m2": (0.5, 0.999),
        },
        "0:inf -0:-inf 1:1 -1:-1 tiny:inf -tiny:-inf inf:0 -inf:-0",
        flushed=5628,
        subnormals=1 / 200,
        powers=10,
        slope=-1,
    ),
    Function(
        "arith.inverse_square_root",
        inverse_square_root.inverse_square_root,
        lambda x: 1 / np.sqrt(x),
        {"fp16": (0.874, 0), "bf16": (0.798, 0), "fp8_e4m3": (0.5, 0), "fp8_e5m2": (0.5, 0)},
        "0:inf -0:-inf 1:1 4:1/2 -1:nan -tiny:nan inf:0 -inf:nan",
        flushed=2046,
        powers=7,
        slope=-1,
    ),
    Function(
        "arith.square_root",
        square_root.square_root,
        np.sqrt,
        ROUNDED,
        "0:0 -0:-0 1:1 4:2 -1:nan -tiny:nan inf:inf -inf:nan",
        flushed=2046,
    ),
]
BY_NAME = {function.name: function for function in FUNCTIONS}
each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.name)
each_format = pytest.mark.parametrize("format", ROUNDED)


def encodings(kind: FloatFormat) -> dict[str, int]:
    """Bits of special numbers by name. ``inf`` is NaN in a format without infinities."""
    one, step = kind.bias << kind.mantissa, 1 << kind.mantissa
    positive = {"0": 0, "tiny": 1, "largest": kind.largest, "inf": kind.overflow}
    positive |= {"1/2": one - step, "1": one, "2": one + step, "4": one + 2 * step}
    sign = 1 << kind.width - 1
    negative = {f"-{name}": sign | bits for name, bits in positive.items()}
    if not kind.infinities:
        negative["-inf"] = kind.quiet_nan
    return positive | negative | {"nan": kind.quiet_nan, "-nan": sign | kind.quiet_nan}


def exact(function: Function, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return function.exact(float64(x))


def operands(format: str) -> np.ndarray:
    """Every operand of at most 16 bits, else random ones."""
    if DTYPES[format].itemsize <= 2:
        return every(format)
    return random_floats(format, 200_000, [], np.random.default_rng(1))


def hardware(compare, function, format, x, *, stages=0, flush_subnormals=False) -> int:
    """Results that differ from the golden model's, by ``run`` or ``simulate``."""
    block = find(BY_NAME[function].block)
    parameters = block.parameters_class(
        format=format, stages=stages, flush_subnormals=flush_subnormals
    )
    return compare(block, parameters, {"x": x})


@each_function
@each_format
def test_errors_over_all_operands(function, format):
    x, kind = every(format), FORMATS[format]
    results = exact(function, x)
    errors = ulp_errors(function.model(x), results)
    subnormal = np.abs(results) < 2.0 ** (1 - kind.bias)
    normal, small = errors[~subnormal].max(), errors[subnormal].max(initial=0)
    print(f"{normal:.4f} ulp, {small:.4f} ulp in {subnormal.sum()} subnormal results")
    assert np.count_nonzero(np.isfinite(results)) > len(x) // 3
    assert subnormal.sum() >= len(x) * function.subnormals
    assert normal <= function.bounds[format][0] < 1
    assert small <= function.bounds[format][1] < 1
    if function.powers is not None:
        power = (np.frexp(results)[0] == 0.5) & (results <= 2.0**kind.bias)
        assert power.sum() > function.powers
        assert (errors[power] == 0).all()


@pytest.mark.parametrize("format", [*ROUNDED, "fp32"])
def test_square_root_is_correctly_rounded(format):
    """A root in float64 is precise enough to be rounded again correctly."""
    x, function = operands(format), BY_NAME["square_root"]
    results = exact(function, x)
    expected = canonical(results.astype(DTYPES[format]))
    assert (to_bits(function.model(x)) == to_bits(expected)).all()
    errors = ulp_errors(function.model(x), results)
    print(f"{errors.max():.5f} ulp, {len(x)} operands")
    assert 0.4 < errors.max() <= 0.5


@pytest.mark.parametrize(
    "name, format",
    [*((name, format) for name in BY_NAME for format in ROUNDED), ("square_root", "fp32")],
)
def test_special_operands(name, format):
    kind = FORMATS[format]
    bits, nan = encodings(kind), kind.quiet_nan
    pairs = [pair.split(":") for pair in BY_NAME[name].specials.split()]
    if not kind.infinities:
        pairs = [pair for pair in pairs if pair[0] not in ("inf", "-inf")]
    known = {bits[operand]: bits[result] for operand, result in pairs}
    known |= {nan: nan, bits["-nan"]: nan}
    if kind.infinities:
        known[kind.infinity + 1] = nan  # a signalling NaN
    got = to_bits(BY_NAME[name].model(from_bits(np.array(list(known)), format)))
    assert got.tolist() == list(known.values())


@each_function
@each_format
def test_monotonic(function, format):
    """Over all numbers for exp, over the positive ones for functions with a pole or edge at 0."""
    x, kind = np.sort(float64(every(format))), FORMATS[format]
    x = x[~np.isnan(x)] if function.name == "exp" else x[x > 0]
    assert len(x) >= kind.largest
    got = function.model(x.astype(DTYPES[format]))
    # A result that is too large is NaN in a format without infinities.
    results = float64(got[~is_nan(got)]) * function.slope
    assert len(results) > len(x) // 2
    assert (results[1:] >= results[:-1]).all()


@each_function
def test_flushed(function):
    """Subnormal operands and results are zeros."""
    x = every("fp16")
    flushed = to_bits(function.model(x, flush_subnormals=True))
    assert (flushed == to_bits(flush(function.model(flush(x))))).all()
    assert np.count_nonzero(flushed != to_bits(function.model(x))) == function.flushed


@each_format
@pytest.mark.parametrize(
    "unit, model, entry",
    [
        pytest.param(hw_log, log, "slope", id="log"),
        pytest.param(hw_reciprocal, reciprocal, "double_reciprocal", id="reciprocal"),
        pytest.param(
            hw_inverse_square_root, inverse_square_root, "double_root", id="inverse_square_root"
        ),
    ],
)
def test_both_sides_have_the_same_tables(unit, model, entry, format):
    ours, table = unit.TABLES[format], model.TABLES[DTYPES[format]]
    assert_same_tables(ours, getattr(unit, entry), table, getattr(model, entry))


@each_format
def test_both_sides_of_exp_have_the_same_widths_and_tables(format):
    widths = hw_exp.WIDTHS[format]
    highest, product, table = exp.WIDTHS[DTYPES[format]]
    assert (widths.exponent, widths.product) == (highest, product)
    assert_same_tables(widths.table, hw_exp.excess, table, exp.excess)


@pytest.mark.parametrize(
    "function, format, stages, flush_subnormals",
    [
        *((function, "fp16", 0, False) for function in BY_NAME),
        ("exp", "bf16", 4, True),
        ("log", "bf16", 4, True),
        ("reciprocal", "bf16", 3, True),
        ("inverse_square_root", "bf16", 3, True),
        ("square_root", "bf16", 2, True),
        ("square_root", "fp32", 8, False),
    ],
)
def test_hardware(function, format, stages, flush_subnormals):
    x, settings = operands(format), {"stages": stages, "flush_subnormals": flush_subnormals}
    assert hardware(run, function, format, x, **settings) == 0


@pytest.mark.parametrize("flush_subnormals", [False, True])
@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("function", BY_NAME)
def test_hardware_on_small_formats(function, format, flush_subnormals):
    x = every(format)
    assert hardware(simulate, function, format, x, flush_subnormals=flush_subnormals) == 0


ROOT_STAGES = range(1, len(SquareRootParameters.CUTS))


@pytest.mark.parametrize(
    "function, format, stages",
    [
        *(("exp", "fp16", stages) for stages in range(1, 5)),
        *(("log", "fp16", stages) for stages in range(1, 5)),
        *(("reciprocal", "fp16", stages) for stages in range(1, 4)),
        *(("inverse_square_root", "fp16", stages) for stages in range(1, 4)),
        *(("square_root", "fp16", stages) for stages in ROOT_STAGES),
        *(("square_root", "fp32", stages) for stages in ROOT_STAGES),
    ],
)
def test_stages(function, format, stages):
    if function == "square_root":
        x = operands(format)
        x = x[:: 1 + len(x) // 150]
    else:
        x = random_floats(format, 300, [], np.random.default_rng(stages))
    if function == "log":
        x = np.abs(x)  # a negative operand gives NaN
    settings = {"stages": stages, "flush_subnormals": stages % 2 == 0}
    assert hardware(simulate, function, format, x, **settings) == 0


@pytest.mark.parametrize("function", ["exp", "reciprocal"])
def test_no_preset_has_fp32(function):
    assert "fp32" not in find(BY_NAME[function].block).parameters_class.presets()
