"""Order keys: every value of several formats in simulation, and every pair of values by proof."""

import numpy as np
import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Cat, Const, Cover, Elaboratable, Module, Mux, Signal
from amaranth.sim import Simulator

from golden.kllm.orizuru import order_key
from hw.arith.bits.order_key import (
    EMPTY_KEY,
    NAN_KEY,
    from_key,
    is_nan,
    is_nan_key,
    to_key,
)
from hw.arith.float_format import BF16, FP16, FP32, FloatFormat
from tests.support.formal import find_fault, prove_block
from tests.support.kllm import orizuru_spec

E4M3, E3M2, E2M2 = FloatFormat(4, 3), FloatFormat(3, 2), FloatFormat(2, 2)

IN_SIMULATION = [FP16, BF16, E4M3, E3M2, E2M2]
BY_PROOF = [FP16, BF16, FP32, E2M2]  # all pairs, 2^64 for FP32


def name(float_format):
    return f"e{float_format.exponent}m{float_format.mantissa}"


def decode(float_format):
    """The value of every bit pattern, by the definition of the format."""
    bits = np.arange(1 << float_format.width, dtype=np.int64)
    fraction = bits & ((1 << float_format.mantissa) - 1)
    top = (1 << float_format.exponent) - 1
    exponent = bits >> float_format.mantissa & top
    lowest = 2 - (1 << (float_format.exponent - 1)) - float_format.mantissa
    significand = np.where(exponent == 0, fraction, fraction + (1 << float_format.mantissa))
    value = np.ldexp(significand.astype(np.float64), lowest + np.maximum(exponent, 1) - 1)
    value[exponent == top] = np.inf
    value[(exponent == top) & (fraction != 0)] = np.nan
    return np.where(bits >> (float_format.width - 1), -value, value)


def canonical(float_format):
    """For each bit pattern: the same with positive zeros and the quiet NaN."""
    value = decode(float_format)
    bits = np.arange(1 << float_format.width)
    quiet = ((1 << (float_format.exponent + 1)) - 1) << (float_format.mantissa - 1)
    return np.where(np.isnan(value), quiet, np.where(value == 0, 0, bits))


def evaluate(function, inputs, results=1):
    """Results of the hardware expression(s) `function` for each row of `inputs` (one Signal each).

    inputs
        List of (width, integers).
    """
    m = Module()
    signals = [Signal(width) for width, _ in inputs]
    outputs = function(*signals)
    outputs = [outputs] if results == 1 else list(outputs)
    shown = [Signal(len(output)) for output in outputs]
    together = Signal(sum(len(signal) for signal in shown))
    m.d.comb += [signal.eq(output) for signal, output in zip(shown, outputs, strict=True)]
    m.d.comb += together.eq(Cat(shown))
    rows = zip(*(np.asarray(column).tolist() for _, column in inputs), strict=True)
    got = []

    async def testbench(context):
        for row in rows:
            for signal, value in zip(signals, row, strict=True):
                context.set(signal, value)
            got.append(context.get(together))

    simulator = Simulator(m)
    simulator.add_testbench(testbench)
    simulator.run()
    got = np.array(got, dtype=np.uint64)
    columns, low = [], 0
    for signal in shown:
        columns.append((got >> np.uint64(low)) & np.uint64((1 << len(signal)) - 1))
        low += len(signal)
    columns = [column.astype(np.int64) for column in columns]
    return columns[0] if results == 1 else columns


@pytest.fixture(scope="module", params=IN_SIMULATION, ids=name)
def table(request):
    """A format, and for each bit pattern: its key, NaN or not, NaN's key or not."""
    float_format = request.param

    def expressions(bits):
        key = to_key(bits, float_format)
        return key, is_nan(bits, float_format), is_nan_key(key, float_format)

    every = np.arange(1 << float_format.width)
    return float_format, evaluate(expressions, [(float_format.width, every)], results=3)


def test_definition_of_the_formats():
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
        brain = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    np.testing.assert_array_equal(decode(FP16), half)
    np.testing.assert_array_equal(decode(BF16), brain)


def test_keys_sort_as_the_values_do(table):
    float_format, (key, _, _) = table
    value = decode(float_format)
    numbers = np.flatnonzero(~np.isnan(value))
    by_value = numbers[np.argsort(value[numbers], kind="stable")]
    steps = np.diff(key[by_value])
    # Sorted by value, keys increase with the value, and equal values have equal keys (zeros).
    np.testing.assert_array_equal(steps > 0, np.diff(value[by_value]) > 0)
    assert (steps >= 0).all()
    assert key[numbers].min() > NAN_KEY > EMPTY_KEY
    assert key.max() < 1 << float_format.width


def test_nans_have_one_key(table):
    float_format, (key, nan, nan_key) = table
    expected = np.isnan(decode(float_format))
    np.testing.assert_array_equal(key == NAN_KEY, expected)
    np.testing.assert_array_equal(nan, expected)
    np.testing.assert_array_equal(nan_key, expected)


def test_keys_are_as_documented(table):
    float_format, (key, _, _) = table
    half = 1 << (float_format.width - 1)
    magnitude = np.arange(half)
    number = magnitude <= float_format.infinity
    np.testing.assert_array_equal(key[:half], np.where(number, half + magnitude, 1))
    negative = np.where(magnitude == 0, half, half - 1 - magnitude)
    np.testing.assert_array_equal(key[half:], np.where(number, negative, 1))


def test_the_golden_model_has_the_same_keys(table):
    float_format, (key, _, _) = table
    if float_format == FP16:
        values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        np.testing.assert_array_equal(order_key(values), key)


@pytest.mark.parametrize("inverted", [False, True])
def test_keys_lead_back_to_canonical_values(table, inverted):
    float_format, (key, _, _) = table
    ones = (1 << float_format.width) - 1
    rank = np.where(key == NAN_KEY, key, ones - key) if inverted else key
    keys, first = np.unique(rank, return_index=True)
    got = evaluate(
        lambda bits: from_key(bits, float_format, inverted=inverted),
        [(float_format.width, np.append(keys, EMPTY_KEY))],
    )
    np.testing.assert_array_equal(got[:-1], canonical(float_format)[first])
    assert got[-1] == 0
    # Equal keys belong to values that are canonically equal.
    back = np.searchsorted(keys, rank)
    np.testing.assert_array_equal(canonical(float_format)[first][back], canonical(float_format))


class OrderKeySpec(Elaboratable):
    """Any two values compare as their keys do, and their keys lead back to them.

    The order is the specification's, by sign and magnitude. The functions under proof can be
    replaced by wrong ones; `only` asserts one claim alone.
    """

    def __init__(
        self, float_format, *, to_key=to_key, from_key=from_key, is_nan_key=is_nan_key, only=None
    ):
        self._format, self._only = float_format, only
        self._to_key, self._from_key, self._is_nan_key = to_key, from_key, is_nan_key

    def elaborate(self, platform):
        m = Module()
        float_format, width = self._format, self._format.width
        a, b, key_a, key_b = (Signal(width, name=n) for n in ("a", "b", "key_a", "key_b"))
        m.d.comb += [
            a.eq(AnyConst(width)),
            b.eq(AnyConst(width)),
            key_a.eq(self._to_key(a, float_format)),
            key_b.eq(self._to_key(b, float_format)),
        ]
        rank_a, rank_b = self._rank(key_a), self._rank(key_b)
        nan = orizuru_spec.is_nan(a, float_format)
        canonical = orizuru_spec.canonical(a, float_format)
        largest = orizuru_spec.before(a, b, "max", float_format)
        smallest = orizuru_spec.before(a, b, "min", float_format)
        back = self._from_key(key_a, float_format)
        back_inverted = self._from_key(rank_a, float_format, inverted=True)
        claims = {
            "a value has the key of none": key_a != EMPTY_KEY,
            "wrong about a NaN's key": self._is_nan_key(key_a, float_format) == nan,
            "keys are ordered otherwise": (key_a > key_b) == largest,
            "inverted keys are ordered otherwise": (rank_a > rank_b) == smallest,
            "wrong value of a key": back == canonical,
            "wrong value of an inverted key": back_inverted == canonical,
        }
        for claim, holds in claims.items():
            if self._only in (None, claim):
                m.d.comb += Assert(holds, claim)
        half, infinity = 1 << (width - 1), float_format.infinity
        m.d.comb += [
            Cover((a != b) & (key_a == key_b) & (key_a == NAN_KEY), "two NaNs"),
            Cover((a != b) & (key_a == key_b) & (key_a != NAN_KEY), "two zeros"),
            Cover((key_a == half + infinity) & (key_b == half - 1 - infinity), "infinities"),
        ]
        return m

    def _rank(self, key):
        return Mux(self._is_nan_key(key, self._format), NAN_KEY, ~key)


@pytest.mark.parametrize("float_format", BY_PROOF, ids=name)
def test_every_pair_compares_as_its_keys(float_format):
    # Combinational, so one step is complete.
    folder = f"order_key_{name(float_format)}"
    prove_block(OrderKeySpec(float_format), folder, "bmc", depth=1)


def test_proof_is_not_vacuous():
    prove_block(OrderKeySpec(E3M2), "order_key_e3m2", "cover", depth=1)


def without_zero_rule(bits, float_format):
    sign = bits[-1].replicate(float_format.width - 1)
    return Mux(is_nan(bits, float_format), NAN_KEY, Cat(bits[:-1] ^ sign, ~bits[-1]))


def without_nan_rule(bits, float_format):
    negative = bits[-1] & bits[:-1].any()
    return Cat(bits[:-1] ^ negative.replicate(float_format.width - 1), ~negative)


def one_less(bits, float_format):
    return to_key(bits, float_format) - 1


def exponent_only(key, float_format):
    return ~key[float_format.mantissa :].any()


def never(key, float_format):
    return Const(0)


def without_specials(key, float_format, inverted=False):
    top = key[-1]
    number = key[:-1] ^ (~top).replicate(float_format.width - 1)
    return Cat(number, top if inverted else ~top)


def never_inverted(key, float_format, inverted=False):
    return from_key(key, float_format)


@pytest.mark.parametrize(
    "fault, found_by",
    [
        ({"to_key": without_zero_rule}, "keys are ordered otherwise"),
        ({"to_key": without_nan_rule}, "keys are ordered otherwise"),
        ({"to_key": one_less}, "a value has the key of none"),
        ({"is_nan_key": exponent_only}, "wrong about a NaN's key"),
        ({"is_nan_key": never}, "inverted keys are ordered otherwise"),
        ({"from_key": without_specials}, "wrong value of a key"),
        ({"from_key": never_inverted}, "wrong value of an inverted key"),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_injected_fault_is_found(fault, found_by):
    spec = OrderKeySpec(FP16, only=found_by, **fault)
    folder = f"order_key_{next(iter(fault.values())).__name__}"
    find_fault(spec, folder, found_by, depth=1)


def test_the_specification_orders_as_numpy_does():
    """The proofs rely on this order, so it is compared with another implementation."""
    special = [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF]
    special = np.array(special + [bits | 0x8000 for bits in special])
    rng = np.random.default_rng(5)
    near = rng.integers(0, 1 << 16, 4000)
    far = rng.integers(0, 1 << 16, 4000)
    a = np.concatenate([np.repeat(special, len(special)), near, far])
    b = np.concatenate([np.tile(special, len(special)), near ^ 1 << near % 16, far[::-1]])

    def expressions(a, b):
        is_less = orizuru_spec.less(a, b)
        ends = [orizuru_spec.before(a, b, end) for end in ("max", "min")]
        return is_less, *ends, orizuru_spec.is_nan(a), orizuru_spec.canonical(a)

    got = evaluate(expressions, [(16, a), (16, b)], results=5)
    x, y = (bits.astype(np.uint16).view(np.float16) for bits in (a, b))
    numbers = ~np.isnan(x) & ~np.isnan(y)
    np.testing.assert_array_equal(got[0][numbers], (x < y)[numbers])
    only_y_nan = ~np.isnan(x) & np.isnan(y)
    np.testing.assert_array_equal(got[1], (numbers & (x > y)) | only_y_nan)
    np.testing.assert_array_equal(got[2], (numbers & (x < y)) | only_y_nan)
    np.testing.assert_array_equal(got[3], np.isnan(x))
    np.testing.assert_array_equal(got[4], canonical(FP16)[a])
