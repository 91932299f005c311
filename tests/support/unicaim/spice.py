"""Sense lines in ngspice, by the equations of ``golden.unicaim.sense_line`` or by a card."""

import re
import subprocess
from pathlib import Path

import numpy as np

from golden.unicaim.sense_line import THERMAL, LineParameters, thresholds

END = 1e-6
"""Time in s at which a line is expected to cross."""
STEPS = 400
"""Time steps until then, at least."""
ADVICE = "ngspice is not installed (Debian: apt-get install ngspice)"


def device_source(p: LineParameters, node: str, gate: float, vth: float, count: float = 1) -> str:
    """Expression for the current of `count` equal devices from a node to ground."""

    def square(over: str) -> str:
        return f"(ln(1+exp(({over})/{2 * p.n * THERMAL!r})))^2"

    over = f"{gate - vth!r}"
    return (
        f"{count * p.ispec!r}*({square(over)}-{square(f'{over}-{p.n!r}*v({node})')})"
        f"*(1+{p.lam!r}*v({node}))"
    )


def line_sources(
    p: LineParameters, node: str, products: np.ndarray, errors: np.ndarray | None
) -> list[str]:
    """A source for each kind of device of a row, products [d] and errors [d, 2] or None."""
    vth = thresholds(p)
    devices = [
        (gate, float(vth[p.levels + side * product] + (0 if errors is None else error[which])))
        for product, error in zip(products, products if errors is None else errors, strict=True)
        for which, (gate, side) in enumerate(((p.v_read, 1), (0.0, -1)))
    ]
    equal = sorted({(device, devices.count(device)) for device in devices})
    return [
        f"B{node}_{number} {node} 0 I={device_source(p, node, gate, at, count)}"
        for number, ((gate, at), count) in enumerate(equal)
    ]


def crossing_times(
    p: LineParameters,
    products: np.ndarray,
    errors: np.ndarray | None,
    expected: np.ndarray,
    folder: Path,
) -> np.ndarray:
    """Times of rows [rows, d] in s, by transient analysis.

    A time is proportional to the capacitance, so every line has the one with which it should cross
    at END by its time `expected`: lines of all speeds are in one analysis with one time step.
    """
    circuit = ["sense lines"]
    for row, cells in enumerate(products):
        node = f"n{row}"
        farads = p.capacitance(len(cells)) * END / float(expected[row])
        circuit.append(f"C{node} {node} 0 {farads!r} ic={p.vdd!r}")
        circuit += line_sources(p, node, cells, None if errors is None else errors[row])
        circuit.append(f".meas tran t{row} when v({node})={p.v_ref!r} fall=1")
    step = END / STEPS
    circuit += [
        f".tran {step!r} {1.2 * END!r} 0 {step!r} uic",
        ".options reltol=1e-6 vntol=1e-9 abstol=1e-15 numdgt=12 measdgt=10 interp=0",
        ".end",
    ]
    found = run("\n".join(circuit), folder)
    times = dict(re.findall(r"^t(\d+)\s*=\s*(\S+)", found, re.M))
    return np.array([float(times[str(row)]) for row in range(len(products))]) * expected / END


def run(circuit: str, folder: Path) -> str:
    """What ``ngspice -b`` prints for a circuit."""
    (folder / "line.cir").write_text(circuit + "\n")
    done = subprocess.run(
        ["ngspice", "-b", "line.cir"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return done.stdout
