"""Base of the two exact sums over a column, dense and sparse; how they are rounded."""

import abc
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring

from hw.arith.fixed_sum import FixedSum
from hw.component import Component
from hw.ports import Ports, stream_in, stream_out


class ColumnSum(Component[Any]):
    """sum = round32(sum over a column's beats and a beat's terms of ± magnitude 2^shift).

    ::

        i ─→ _multiply ─→ terms ─→ FixedSum: shift, add as integers ─→ round once ─→ o

    Rounding: every term is an integer times 2^-24 (dense) or 2^-48 (sparse), all terms of a column
    are added as integers, and the sum is rounded once, to nearest even, to FP32. So the order of
    the terms does not matter, and the bit-exact models use integers. An empty sum and a sum of zero
    are +0. A term from an infinity or NaN makes the sum the quiet NaN and sets ``invalid``.

    - decided and explained in docs/kllm.md, "Rounding of sums"
    - rounded by :class:`hw.arith.fixed_sum.FixedSum`
    - modelled by :func:`golden.arith.fixed_sum.round_sum` in :mod:`golden.kllm.reduction`
      and :mod:`golden.kllm.sparse_path`
    - tested against rational numbers in tests/kllm/test_reduction.py and test_sparse_path.py

    Throughput: one beat a cycle, for columns of any number of beats. Handshake: ``i.ready`` is low
    while as many columns are inside as the output queue has room for; it depends on registers only.

    Subclasses implement `_multiply`; their parameters have ``input_layout`` with ``last``,
    ``output_layout``, ``fixed_sum`` and ``multiply_stages``.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "i": stream_in(p.input_layout, "Beats of a column, in any order, ended by ``last``."),
            "o": stream_out(p.output_layout, "A sum for each column."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sum = total = FixedSum(p.fixed_sum)
        wiring.connect(m, total.o, wiring.flipped(self.o))
        fire = Signal()
        m.d.comb += [
            # A place in the output queue is reserved before a column's beats enter, so nothing
            # behind the input ever stalls and the stages need no enable.
            self.i.ready.eq(total.available),
            fire.eq(self.i.valid & self.i.ready),
            total.take.eq(fire & self.i.payload.last),
        ]
        # Valid and last accompany the terms through the multiplication.
        valid, last = fire, self.i.payload.last
        for stage in range(p.multiply_stages):
            later = Signal(name=f"valid_{stage}"), Signal(name=f"last_{stage}")
            m.d.sync += [later[0].eq(valid), later[1].eq(last)]
            valid, last = later
        terms = Signal(total.terms.shape(), reset_less=True)
        invalid = Signal()
        m.d.sync += invalid.eq(Cat(self._multiply(m, terms)).any())
        m.d.comb += [
            total.valid.eq(valid),
            total.last.eq(last),
            total.invalid.eq(invalid),
            total.terms.eq(terms),
        ]
        return m

    @abc.abstractmethod
    def _multiply(self, m: Module, terms) -> list[Value]:
        """Assign the registers of a beat's terms, `multiply_stages` cycles after the beat.

        Returns the flags of infinite and NaN terms, for the same register.
        """
