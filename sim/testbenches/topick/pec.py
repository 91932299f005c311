"""Testbench of the partial exponential calculator. Most earlier terms are close to the new one."""

import numpy as np
from amaranth.hdl import signed, unsigned

from golden.topick.pec import difference, term
from sim.testbenches.arith.datapath_testbench import DatapathTestbench, limits


def golden(p, t, least, drop, old_valid, old_shift, old_significand):
    new = term(t, least, fraction=p.fraction, precision=p.precision)
    options = {"precision": p.precision, "limb": p.limb}
    found = difference(new, (old_shift, old_significand), drop, old_valid, **options)
    return dict(zip(("shift", "significand", "limb", "high", "low"), (*new, *found), strict=True))


class PecTestbench(DatapathTestbench):
    def draw(self, parameters, trace, vectors, seed):
        values, notes = super().draw(parameters, trace, vectors, seed)
        rng = np.random.default_rng(seed)
        p = parameters
        shift, _ = term(values["t"], values["least"], fraction=p.fraction, precision=p.precision)
        near = shift + (
            rng.integers(-2 * p.limb, 3 * p.limb, vectors) >> rng.integers(0, 6, vectors)
        )
        # Half of them at the first or last bit of a limb, up to two limbs away.
        at_end = (shift // p.limb + rng.integers(-2, 3, vectors)) * p.limb - rng.integers(
            0, 2, vectors
        )
        near = np.where(rng.integers(0, 2, vectors) == 0, near, at_end)
        near = np.clip(near, *limits(signed(p.shift_bits)))
        values["old_shift"] = np.where(rng.integers(0, 8, vectors) > 0, near, values["old_shift"])
        if notes:
            notes.append("Most earlier terms are moved close to the new one.")
        return values, notes


testbench = PecTestbench(
    operands=lambda p: {
        "t": signed(p.width),
        "least": unsigned(p.margin_bits),
        "drop": unsigned(1),
        "old_valid": unsigned(1),
        "old_shift": signed(p.shift_bits),
        "old_significand": unsigned(p.precision),
    },
    results=lambda p: {
        "shift": signed(p.shift_bits),
        "significand": unsigned(p.precision),
        "limb": signed(p.limb_bits),
        "high": signed(p.limb + 1),
        "low": signed(p.limb + 1),
    },
    golden=golden,
)
