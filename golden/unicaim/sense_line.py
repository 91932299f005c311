"""The sense line of a row as a circuit: currents, times, voltages, energies (section III-B).

A row is `d` cells on one line of constant capacitance C, precharged to V_DD. A cell is two FeFETs
from the line to ground. It stores the key level m of -L .. +L as the thresholds V_TH(m) of the one
and V_TH(-m) of the other; digit +1 reads the first, with V_R at its gate and 0 V at the other's,
and digit -1 the second. So the device read has V_TH(product) and the one not read, which leaks,
V_TH(-product), where the product is level times digit. The higher it is, the lower the current.

A device follows the EKV equation, its source at ground::

    I(vg, vth, vd) = Ispec (F(vp)^2 - F(vp - n vd)^2) (1 + lambda vd)
    F(x) = ln(1 + exp(x / (2 n U_T))), vp = vg - vth

and a line C dV/dt = -sum of I(V), so the time at which it falls through V1 is an integral over V,

    t(V1) = C * integral of dV / I(V) from V1 to V_DD

taken by Gauss-Legendre quadrature, within 0.01 % for all parameters. Without errors of devices, I
depends only on how many cells have each product.

Everywhere `products` are integers [rows, d] of -L .. +L, and `errors` shifts of threshold voltages
in V, [rows, d, 2] for the device read and the one not read, or None. Volts, amperes, seconds,
farads and joules, float64. Raises ``ValueError``, one sentence, for values outside these.

Not modelled: switching of the ferroelectric (a threshold is a constant), resistance and inductance
of wires, the series transistor of a cell, noise.
"""

import dataclasses

import numpy as np

from golden.unicaim.cells import key_limit

THERMAL = 0.025852
"""U_T in V at 300 K."""
RULES = ("current", "voltage")
NODES, LONGEST, WIDEST = 5, 0.7, 3.0
"""Nodes of the quadrature in a panel of voltages, its greatest length in V, and how many times the
lower end the upper one is at most. V_DD to V_DD / 2 is one panel up to 1.4 V."""
_MOST_VOLTS = 10
_CAPACITANCES = ("c_cell", "c_fixed", "c_bit")
_PANELS = np.concatenate([np.arange(16, 1, -1) / 16, 2.0 ** -np.arange(4, 11)])
"""Edges of the voltages at which :func:`voltages` knows the time, as parts of V_DD."""
_PANEL_NODES = 3
_SLIGHT = 1e-4
"""V, for a derivative."""


@dataclasses.dataclass(frozen=True)
class LineParameters:
    """Constants of a line and its cells. The paper's text has none of them.

    vdd, v_ref
        Supply, to which a line is precharged, and the threshold of its detector (section III-B3:
        V_DD / 2), V. 1.0 V is the supply in the header of the predictive 45 nm card.
    v_read
        V_R at the gate of a device that is read, V. "Relatively small" in the text.
    vth_low, vth_high
        Ends of the memory window, the thresholds of levels -L and +L, V. Assumed.
    n, ispec, lam
        Slope factor, specific current in A and channel-length modulation in 1/V: from DC curves of
        the card for W = L = 90 nm, the slope from 1 nA to 1 uA, the others by least squares of the
        logarithm of currents above 3 nA.
    c_cell, c_fixed
        Capacitance of the line for each cell, and apart from them (detector, precharge), F.
    rule
        How levels are spaced: `voltage`, by equal steps of the threshold; `current`, by equal steps
        of the current of a device that is read at `v_verify`, as by program and verify.
    key_bits
        As in ``golden.unicaim.cells``: L is 2^(key_bits - 1).
    c_bit
        Capacitance of a pair of bit lines for each cell, F.
    """

    vdd: float = 1.0
    v_ref: float = 0.5
    v_read: float = 1.0
    vth_low: float = 0.2
    vth_high: float = 1.4
    n: float = 1.63
    ispec: float = 1.1e-6
    lam: float = 0.18
    c_cell: float = 0.3e-15
    c_fixed: float = 1e-15
    rule: str = "current"
    key_bits: int = 3
    c_bit: float = 0.2e-15

    def __post_init__(self) -> None:
        volts = f"above 0 and at most {_MOST_VOLTS} V"
        for name, right, what in (
            ("vdd", 0 < self.vdd <= _MOST_VOLTS, volts),
            ("v_ref", 0 < self.v_ref < self.vdd, "above 0 and below vdd"),
            ("v_read", 0 < self.v_read <= _MOST_VOLTS, volts),
            ("n", 1 <= self.n <= 10, "1 to 10"),
            ("ispec", 0 < self.ispec <= 1, "above 0 and at most 1 A"),
            ("lam", 0 <= self.lam <= 10, "0 to 10 per volt"),
            *((name, 0 <= getattr(self, name) <= 1, "0 to 1 F") for name in _CAPACITANCES),
        ):
            if not right:  # NaN is not right either
                raise ValueError(f"{name} must be {what}, not {getattr(self, name):g}")
        if not self.c_cell + self.c_fixed > 0:
            raise ValueError("c_cell and c_fixed must not both be 0")
        if not -_MOST_VOLTS <= self.vth_low < self.vth_high <= _MOST_VOLTS:
            raise ValueError(
                f"vth_low must be below vth_high, both within {_MOST_VOLTS} V of 0, not"
                f" {self.vth_low:g} and {self.vth_high:g}"
            )
        if self.rule not in RULES:
            raise ValueError(f"rule must be {' or '.join(RULES)}, not {self.rule}")
        if self.key_bits not in range(1, 9):
            raise ValueError(f"key_bits must be 1 to 8, not {self.key_bits}")

    @property
    def levels(self) -> int:
        """L, the highest key level."""
        return key_limit(self.key_bits)

    @property
    def v_verify(self) -> float:
        """Voltage of the line at which levels are programmed: the middle of a discharge."""
        return (self.vdd + self.v_ref) / 2

    def capacitance(self, cells: int) -> float:
        """C of a line of `cells` cells, F."""
        return self.c_cell * cells + self.c_fixed


def device_current(p: LineParameters, over: np.ndarray, v: float | np.ndarray) -> np.ndarray:
    """Drain current in A of devices at a line of `v`; `over` is gate minus V_TH; both broadcast."""
    return p.ispec * (_f_squared(p, over) - _f_squared(p, over - p.n * v)) * (1 + p.lam * v)


def thresholds(p: LineParameters) -> np.ndarray:
    """V_TH of levels -L .. +L in V, rising: [2 L + 1]."""
    steps = np.linspace(0, 1, 2 * p.levels + 1)
    if p.rule == "voltage":
        return p.vth_low + steps * (p.vth_high - p.vth_low)
    ends = device_current(p, p.v_read - np.array([p.vth_low, p.vth_high]), p.v_verify)
    wanted = ends[0] + steps * (ends[1] - ends[0])
    low, high = np.full(len(steps), p.vth_low), np.full(len(steps), p.vth_high)
    for _ in range(60):  # halves the window down to float64's last bits
        middle = (low + high) / 2
        above = device_current(p, p.v_read - middle, p.v_verify) > wanted
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    low[0], low[-1] = p.vth_low, p.vth_high
    return low


def level_currents(p: LineParameters, v: float) -> np.ndarray:
    """Current of a cell by its product -L .. +L, both devices, at a line of `v`: [2 L + 1]."""
    vth = thresholds(p)
    return _Cells(p, vth[None], vth[None, ::-1]).currents(np.array([v]))[0]


def even_times(p: LineParameters, cells: int, means: np.ndarray) -> np.ndarray:
    """Crossing times in s of rows without errors whose `cells` products are as equal as possible.

    means
        Mean products [...], -L to L, whole or not.
    """
    integral, levels = np.zeros(np.shape(means)), np.arange(-p.levels, p.levels + 1)
    for weight, v in _discharge(p, 0.0):
        integral += weight / (cells * np.interp(means, levels, level_currents(p, float(v[0]))))
    return p.capacitance(cells) * integral


def level_shifts(p: LineParameters) -> np.ndarray:
    """Levels by which a product -L .. +L moves for each V of its device's threshold: [2 L + 1]."""
    vth = thresholds(p)
    above, below = (device_current(p, p.v_read - vth + e, p.v_verify) for e in (_SLIGHT, -_SLIGHT))
    cell = level_currents(p, p.v_verify)
    return (above - below) / (2 * _SLIGHT) / ((cell[0] - cell[-1]) / (2 * p.levels))


def currents(
    p: LineParameters, products: np.ndarray, v: float | np.ndarray, errors: np.ndarray | None = None
) -> np.ndarray:
    """Currents of the lines in A at voltages `v` [...]: [..., rows]."""
    line = _Line(p, products, errors)
    at = np.asarray(v, float)
    found = [line.current(one) for one in at.reshape(-1, 1)]
    return np.array(found).reshape(*at.shape, len(products))


def crossing_times(
    p: LineParameters,
    products: np.ndarray,
    errors: np.ndarray | None = None,
    *,
    detector: np.ndarray | float = 0.0,
    capacitance: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Times in s at which the lines' detectors drop: [rows].

    detector
        Error of each detector's threshold in V, [rows] or one for all.
    capacitance
        Relative error of each line's C, [rows] or one for all.
    """
    line = _Line(p, products, errors)
    integral = sum(weight / line.current(v) for weight, v in _discharge(p, detector))
    return line.farads * (1 + np.asarray(capacitance)) * integral


def search_times(
    p: LineParameters,
    keys: np.ndarray,
    digits: np.ndarray,
    errors: np.ndarray | None = None,
    *,
    detector: np.ndarray | float = 0.0,
    capacitance: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Crossing times of the rows of an array for many queries, s: [queries, rows].

    They are what :func:`crossing_times` gives for each query, by products of matrices.

    keys, digits
        Levels [rows, d] and the digits +1 and -1 of queries, [queries, d].
    errors
        [rows, d, 2] for the device that +1 reads and the one that -1 reads, or None.
    """
    if not np.isin(digits, (-1, 1)).all():
        raise ValueError("digits must be +1 or -1: a 0 is a +1 and a -1 on two cells of one key")
    other = None if errors is None else errors[..., ::-1]
    cells = _cells(p, keys, errors), _cells(p, -keys, other)
    plus = (digits > 0).astype(float)
    integral = np.zeros((len(digits), len(keys)))
    for weight, v in _discharge(p, detector):
        of_plus, of_minus = (of.currents(v) for of in cells)
        integral += weight / (plus @ of_plus.T + (1 - plus) @ of_minus.T)
    return p.capacitance(keys.shape[1]) * (1 + np.asarray(capacitance)) * integral


def voltages(
    p: LineParameters,
    products: np.ndarray,
    t: float | np.ndarray,
    errors: np.ndarray | None = None,
) -> np.ndarray:
    """Voltages of the lines at times `t` [...] in s: [..., rows].

    The times of fixed voltages are known by quadrature; between two of them a cubic follows both
    slopes. A line does not fall below V_DD / 1024 here.
    """
    line = _Line(p, products, errors)
    edges = p.vdd * _PANELS
    x, weights = np.polynomial.legendre.leggauss(_PANEL_NODES)
    passed = [np.zeros(len(products))]
    for high, low in zip(edges, edges[1:], strict=False):
        nodes = (high + low) / 2 + (high - low) / 2 * x
        panel = sum(w / line.current(v) for w, v in zip(weights, nodes[:, None], strict=True))
        passed.append(passed[-1] + line.farads * (high - low) / 2 * panel)
    known = np.array(passed)
    slope = -np.array([line.current(edge) for edge in edges[:, None]]) / line.farads
    at = np.asarray(t, float)[..., None]
    after = np.clip((known <= at[..., None, :]).sum(axis=-2), 1, len(edges) - 1)
    before, rows = after - 1, np.arange(len(products))
    span = known[after, rows] - known[before, rows]
    s = np.clip((at - known[before, rows]) / span, 0, 1)
    return (
        (1 + 2 * s) * (1 - s) ** 2 * edges[before]
        + s**2 * (3 - 2 * s) * edges[after]
        + s * (1 - s) * span * ((1 - s) * slope[before, rows] - s * slope[after, rows])
    )


def stop_time(times: np.ndarray, k: int, late: float = 0.0) -> np.ndarray:
    """When a search for the top `k` ends, s: `times` [..., rows] of drops to [...].

    That is when the (k + 1)-th last line drops (section III-B3). Comparator, latch and bit lines
    take `late`, a part of that time, until the discharge ends. Lines with later times are high.
    """
    rows = times.shape[-1]
    if not 1 <= k < rows:
        raise ValueError(f"k must be 1 to {rows - 1}, one less than the rows, not {k}")
    return np.partition(times, rows - k - 1, axis=-1)[..., rows - k - 1] * (1 + late)


def ideal_law(p: LineParameters, cells: int) -> tuple[float, float]:
    """A in s and S0 of the law t = A / (S0 - S) of a row of score S, for rule `current`.

    It takes each cell's current as linear in its product and constant from V_DD to `v_ref`, and
    leaves out the device that is not read.
    """
    ends = device_current(p, p.v_read - np.array([p.vth_low, p.vth_high]), p.v_verify)
    step = (ends[0] - ends[1]) / (2 * p.levels)
    centre = cells * (ends[0] + ends[1]) / 2
    return p.capacitance(cells) * (p.vdd - p.v_ref) / step, centre / step


def share(v: np.ndarray, acc: np.ndarray, ratio: float) -> np.ndarray:
    """Accumulations in V after they share charge with lines of `v` (section III-B4), broadcast.

    ratio
        C_sl / (C_acc + C_sl).
    """
    if not 0 < ratio < 1:
        raise ValueError(f"ratio must be above 0 and below 1, not {ratio:g}")
    return acc + (v - acc) * ratio


def search_energy(
    p: LineParameters,
    products: np.ndarray,
    t: float | np.ndarray,
    errors: np.ndarray | None = None,
) -> np.ndarray:
    """Energy to charge the lines again after a discharge of `t` [...], J: [..., rows]."""
    swing = p.vdd - voltages(p, products, t, errors)
    return p.capacitance(products.shape[1]) * p.vdd * swing


def bit_line_energy(p: LineParameters, rows: int, cells: int) -> float:
    """Energy of a query's bit lines in J: one of each pair is charged to V_R."""
    return rows * cells * p.c_bit * p.v_read**2


def conversion_energy(p: LineParameters, current: np.ndarray, t: float) -> np.ndarray:
    """Energy in J of lines that carry `current` for the `t` seconds of a conversion (III-B5)."""
    return current * p.vdd * t


class _Cells:
    """Cells whose devices have the thresholds `read` and `other`, [rows, d] or [1, d]."""

    def __init__(self, p: LineParameters, read: np.ndarray, other: np.ndarray) -> None:
        self._p = p
        self._over = np.stack([p.v_read - read, -other])
        self._source = _f_squared(p, self._over).sum(axis=0)

    def currents(self, v: np.ndarray) -> np.ndarray:
        """At lines of `v`, [rows] or [1]: [rows, d], or [1, d] where all are one."""
        p, at = self._p, v[..., None]
        drain = _f_squared(p, self._over - p.n * at).sum(axis=0)
        return p.ispec * (self._source - drain) * (1 + p.lam * at)


class _Line:
    """Rows of cells: their current at a voltage for each row, [rows], or one for all, [1]."""

    def __init__(self, p: LineParameters, products: np.ndarray, errors: np.ndarray | None) -> None:
        _check(p, products)
        self.farads = p.capacitance(products.shape[1])
        self._count: np.ndarray | float = 1.0
        if errors is not None:
            self._cells = _cells(p, products, errors)
            return
        vth, levels = thresholds(p), np.arange(-p.levels, p.levels + 1)
        self._cells = _Cells(p, vth[None], vth[None, ::-1])
        self._count = np.stack([(products == level).sum(axis=1) for level in levels], axis=1)

    def current(self, v: np.ndarray) -> np.ndarray:
        return (self._cells.currents(v) * self._count).sum(axis=1)


def _cells(p: LineParameters, products: np.ndarray, errors: np.ndarray | None) -> _Cells:
    _check(p, products)
    shape = (*products.shape, 2)
    if errors is None:
        errors = np.zeros(shape)
    if errors.shape != shape or not (np.abs(errors) <= _MOST_VOLTS).all():
        raise ValueError(f"errors must be within {_MOST_VOLTS} V of 0 and of shape {shape}")
    vth, at = thresholds(p), products.astype(np.int64)
    return _Cells(p, vth[p.levels + at] + errors[..., 0], vth[p.levels - at] + errors[..., 1])


def _check(p: LineParameters, products: np.ndarray) -> None:
    if products.ndim != 2 or products.size == 0:
        raise ValueError(f"products must be [rows, d], not of shape {products.shape}")
    if not np.isin(products, np.arange(-p.levels, p.levels + 1)).all():
        raise ValueError(f"products must be whole numbers of -{p.levels} to {p.levels}")


def _discharge(
    p: LineParameters, detector: np.ndarray | float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights in V and nodes of the integral from V_DD to the detectors' thresholds, [rows | 1].

    1 / I bends over some tenths of a volt where devices saturate, and has a pole at 0 V.
    """
    low = p.v_ref + np.atleast_1d(np.asarray(detector, float))
    if not ((low > 0) & (low < p.vdd)).all():
        raise ValueError("detectors must have thresholds above 0 and below V_DD")
    x, weights = np.polynomial.legendre.leggauss(NODES)
    found = []
    while (low < p.vdd).any():
        high = np.minimum(np.minimum(WIDEST * low, low + LONGEST), p.vdd)
        swing = (high - low) / 2
        found += [(w * swing, low + swing * (1 + at)) for at, w in zip(x, weights, strict=True)]
        low = high
    return found


def _f_squared(p: LineParameters, over: np.ndarray) -> np.ndarray:
    # Voltages are bounded, so the exponential does not overflow.
    return np.square(np.log1p(np.exp(over / (2 * p.n * THERMAL))))
