"""KLLM's blocks without their arithmetic, for proofs of columns and vectors, not of values."""

from amaranth.asserts import AnySeq  # type: ignore[attr-defined]  # not in the stubs
from amaranth.hdl import Const, Module

from hw.arith.fixed_sum import FixedSum
from hw.arith.float_add import FloatAdd
from hw.arith.float_multiply import FloatMultiply
from hw.kllm import column_counter, column_scale, column_sum, reduction, sparse_path


class NoCounter(column_counter.IndexDistributionCounter):
    def elaborate(self, platform):
        return Module()


class NoAccumulators(column_counter.RowAccumulators):
    def elaborate(self, platform):
        return Module()


class NoSum(FixedSum):
    def _added(self, m):
        return [Const(0, 1)] * 2, [Const(0, 1)] * 2

    def _normalised(self, m, total):
        widths = {"fraction": 23, "power": 8, "up": 1, "negative": 1}
        return {name: Const(0, width) for name, width in widths.items()}


def any_number(self, platform):
    m = Module()
    m.d.comb += self.o.eq(AnySeq(32))
    return m


class AnySum(FloatAdd):
    elaborate = any_number


class AnyProduct(FloatMultiply):
    elaborate = any_number


def no_digits(m, bits, name):
    return tuple(Const(0, width) for width in (11, 5, 1))


def leave_out_arithmetic(monkeypatch) -> None:
    """Counting and adding are left out; sums and products of the column scale are any numbers."""
    monkeypatch.setattr(column_counter, "IndexDistributionCounter", NoCounter)
    monkeypatch.setattr(column_counter, "RowAccumulators", NoAccumulators)
    monkeypatch.setattr(column_sum, "FixedSum", NoSum)
    for part in (reduction, sparse_path):
        monkeypatch.setattr(part, "significand", no_digits)
    monkeypatch.setattr(column_scale, "FloatAdd", AnySum)
    monkeypatch.setattr(column_scale, "FloatMultiply", AnyProduct)
    monkeypatch.setattr(column_scale, "exact_product", lambda m, a, b: Const(0, 32))
