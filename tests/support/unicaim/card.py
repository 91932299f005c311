"""The sense line of BSIM4 transistors of a card, and constants of the line from its DC curves.

The card is not in the project, as its terms are unknown: ``45nm_HP.pm`` of ngspice's
``examples/klu/Circuits/technology``. A FeFET is a transistor with a voltage source at its gate,
which shifts its threshold; the current that the gate's field induces from drain to body (`agidl`)
is left out, or that source would add microamperes to a device that is not read.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from golden.unicaim.sense_line import THERMAL, LineParameters
from tests.support.unicaim.spice import END, STEPS, run

SIZE = "w=90n l=90n"
LEAST = 3e-9
"""Currents that are fitted, in A, from here on."""
GATE, DRAIN = np.arange(-40, 161, 2) / 100, np.arange(10, 101, 5) / 100
HIGHEST = 1.25
"""Gate voltage up to which currents are fitted: a device at its lowest threshold, read at 1 V."""


def dc_curves(card: Path, folder: Path) -> np.ndarray:
    """Drain currents in A: [DRAIN, GATE]."""
    run(
        f"""DC curves
{model(card)}
vg g 0 0
vd d 0 0
m1 d g 0 0 nmos {SIZE}
.control
option gmin=1e-16
dc vg {GATE[0]} {GATE[-1]} 0.02 vd {DRAIN[0]} {DRAIN[-1]} 0.05
wrdata dc.txt -i(vd)
quit 0
.endc
.end""",
        folder,
    )
    return np.loadtxt(folder / "dc.txt")[:, 1].reshape(len(DRAIN), len(GATE))


def model(card: Path) -> str:
    """The card's transistors without gate-induced drain leakage."""
    return re.sub(r"agidl\s*=\s*\S+", "agidl = 0", card.read_text())


def fit(current: np.ndarray, low: float) -> tuple[float, float, float, float]:
    """n, ispec, lam of :class:`LineParameters`, and the card's threshold, at lines above `low`.

    The slope factor is the subthreshold slope from 1 nA to 1 uA at 0.75 V, the others are least
    squares of the logarithm of the current.
    """
    at = np.log(current[np.argmin(abs(DRAIN - 0.75))])
    part = (at > np.log(1e-9)) & (at < np.log(1e-6))
    n = 1 / (np.polyfit(GATE[part], at[part], 1)[0] * THERMAL)
    v, vg = np.meshgrid(DRAIN, GATE, indexing="ij")
    fitted = (current > LEAST) & (v > low - 1e-6) & (vg < HIGHEST + 1e-6)
    v, vg, wanted = v[fitted], vg[fitted], np.log(current[fitted])

    def error(x: np.ndarray) -> np.ndarray:
        vth, log_ispec, lam = x
        over = vg - vth
        a, b = (np.logaddexp(0, part / (2 * n * THERMAL)) ** 2 for part in (over, over - n * v))
        return log_ispec + np.log(a - b) + np.log1p(lam * v) - wanted

    x, damping = np.array([0.45, -14.0, 0.1]), 1e-2
    for _ in range(200):  # Levenberg-Marquardt
        e = error(x)
        slope = np.stack([(error(x + h) - e) / 1e-6 for h in 1e-6 * np.eye(3)], axis=1)
        square = slope.T @ slope
        step = np.linalg.solve(square + damping * np.diag(square.diagonal()), -slope.T @ e)
        better = np.sum(error(x + step) ** 2) < np.sum(e**2)
        x, damping = (x + step, damping / 3) if better else (x, damping * 4)
    return float(n), float(np.exp(x[1])), float(x[2]), float(x[0])


def programmed(current: np.ndarray, p: LineParameters, zero: float) -> np.ndarray:
    """Thresholds of levels -L .. +L by program and verify of the card's own device: [2 L + 1].

    zero
        The card's threshold, as :func:`fit` has it.
    """
    at = current[np.argmin(abs(DRAIN - p.v_verify))]
    gate = p.v_read - np.array([p.vth_low, p.vth_high]) + zero
    ends = np.interp(gate, GATE, at)
    wanted = np.linspace(ends[0], ends[1], 2 * p.levels + 1)
    low = np.argmax(at > 1e-12)
    return p.v_read + zero - np.interp(wanted, at[low:], GATE[low:])


def line_times(
    p: LineParameters,
    products: np.ndarray,
    expected: np.ndarray,
    shifts: np.ndarray,
    card: Path,
    folder: Path,
) -> np.ndarray:
    """Times of rows [rows, d] in s, as ``spice.crossing_times``; gates shifted by `shifts`."""

    def circuit() -> Iterator[str]:
        yield f"sense lines\n{model(card)}"
        for row, cells in enumerate(products):
            node = f"n{row}"
            farads = p.capacitance(len(cells)) * END / float(expected[row])
            yield f"C{node} {node} 0 {farads!r} ic={p.vdd!r}"
            for product in np.unique(cells):
                count = np.count_nonzero(cells == product)
                for side, gate in ((1, p.v_read), (-1, 0.0)):
                    name = f"{row}_{product + p.levels}_{side + 1}"
                    yield f"V{name} g{name} 0 {float(gate - shifts[p.levels + side * product])!r}"
                    yield f"M{name} {node} g{name} 0 0 nmos {SIZE} m={count}"
            yield f".meas tran t{row} when v({node})={p.v_ref!r} fall=1"
        step = END / STEPS
        yield f".tran {step!r} {3 * END!r} 0 {step!r} uic"
        yield ".options reltol=1e-5 vntol=1e-8 abstol=1e-15\n.end"

    found = run("\n".join(circuit()), folder)
    times = dict(re.findall(r"^t(\d+)\s*=\s*(\S+)", found, re.M))
    return np.array([float(times[str(row)]) for row in range(len(products))]) * expected / END
