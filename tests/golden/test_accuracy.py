"""How close each core's results are to exact ones, by the bit-exact models: docs/accuracy.md."""

import re

import numpy as np
import pytest

from golden.arith.float_multiply import float_multiply
from golden.attention.pe_array import inner_products, outer_product
from golden.attention.special_function_unit import softmax
from golden.kllm.kllm_core import front_end, multiply, tables_of
from golden.kllm.softmax import softmax as kllm_softmax
from hw.kllm.kllm_core import KllmCoreParameters
from hw.unicaim.core_parameters import TILE
from hw.unicaim.unicaim_core import UnicaimCoreParameters
from hw.veda.veda_core import VedaCoreParameters
from sim.core.tools import ROOT

PAGE = ROOT / "docs/accuracy.md"
ROW = re.compile(
    r"\| `(veda|unicaim|kllm)\.\w+` ([\w ]+) \| ([\w ]+) \| (\d+) \| ([\de.-]+) \| ([\de.-]+) \|"
)


def heads(case: str, n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``q [d]``, ``k [n, d]`` and ``v [n, d]`` in FP16 whose scores are as the case says."""
    rng = np.random.default_rng(n)
    q = rng.standard_normal(d) / np.sqrt(d)
    k, v = rng.standard_normal((2, n, d))
    along = q / (q @ q)  # a key that adds 1 to a score
    if case == "flat":
        k[:], v[:] = k[0], 100
    elif case == "sharp":
        k[n // 2] += 20 * along
    elif case == "offset":
        k += 1000 * along
    elif case == "first far below":
        k[1:] += 60 * along
    elif case == "huge":
        q *= 100
    return q.astype(np.float16), k.astype(np.float16), v.astype(np.float16)


def attention_error(case: str, n: int, d: int, longest: int) -> float:
    """Largest error of o, of attention over n rows, relative to the largest element of V.

    longest
        Scores that the softmax is built for.
    """
    q, k, v = heads(case, n, d)
    scores = inner_products(q[None], k[None], relative=True)[0]
    p, invalid = softmax(scores, longest, TILE)
    o = outer_product(p[None], v[None])[0].astype(np.float64)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    exact = exact_softmax(k @ q) @ v
    assert not invalid
    return np.abs(o - exact).max() / np.abs(v).max()


def exact_softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max())
    return e / e.sum()


def softmax_error(case: str, n: int) -> float:
    """Sum of the errors of all probabilities: of o, relative to the largest element of V."""
    scores = np.random.default_rng(n).standard_normal(n)
    if case == "flat":
        scores[:] = 3.3
    elif case == "sharp":
        scores[n // 2] = 20
    elif case == "offset":
        scores += 1000
    elif case == "huge":
        scores *= 10_000
    scores = scores.astype(np.float16)
    p, _ = kllm_softmax(scores[None], np.ones((1, n), bool), n)
    return float(np.abs(p[0] - exact_softmax(scores.astype(np.float64))).sum())


def weights_error(case: str, n: int) -> float:
    """Error of the sum of equal probabilities times a scale of V, relative to the scale."""
    scale = np.float16({"scale of 1": 1, "scale of a hundredth": 0.01}[case])
    p, _ = kllm_softmax(np.zeros((1, n), np.float16), np.ones((1, n), bool), n)
    weights = float_multiply(p, scale).astype(np.float64)
    return float(abs(weights.sum() / float(scale) - 1))


def product_error(case: str, k: int) -> float:
    """Largest error of a product with K values, relative to the sum of its terms' magnitudes.

    Exact are the products of the centroids and outliers that the core chose, without rounding.
    """
    rng = np.random.default_rng(k)
    a, b = (np.sort(rng.standard_normal(16)).astype(np.float16) for _ in range(2))
    x = rng.standard_normal((1, k))
    if case == "flat":
        x[:] = 1
    elif case == "sharp":
        x[0, k // 2] = 1000
    elif case == "offset":
        x += 30
    elif case == "huge":
        x *= 10_000
    x, weight = x.astype(np.float16), rng.integers(0, 16, (k, 8))
    tables, scale = tables_of(a, b), np.full(8, 2.0**-12, np.float16)
    vectors = front_end(x, tables, 3)
    y, invalid = multiply(vectors, tables, weight, scale)
    values = a[vectors.activation].astype(np.float64) * vectors.scale[:, None].astype(np.float64)
    values = np.where(vectors.outlier, vectors.value.astype(np.float64), values)
    terms = values[:, :, None] * b.astype(np.float64)[weight] * float(scale[0])
    assert not invalid.any()
    return np.abs((y - terms.sum(axis=1)) / np.abs(terms).sum(axis=1)).max()


def rows_of_page() -> list[tuple]:
    return [(*row[:3], int(row[3]), *map(float, row[4:])) for row in ROW.findall(PAGE.read_text())]


def measured(folder: str, what: str, case: str, n: int) -> float:
    """The worst of several numbers of scores up to n."""
    lengths = (n, n - 1, n * 5 // 8 + 1)
    if folder == "kllm":
        error = {"product": product_error, "softmax": softmax_error, "weights": weights_error}[what]
        return max(error(case, length) for length in lengths)
    if folder == "veda":
        core = next(p for p in VedaCoreParameters.presets().values() if p.capacity == n)
        d = core.array.lanes
    else:
        d = next(p.d for p in UnicaimCoreParameters.presets().values() if p.rows == n)
    return max(attention_error(case, length, d, n) for length in lengths)


@pytest.mark.parametrize(("folder", "what", "case", "n", "worst", "bound"), rows_of_page())
def test_the_page_s_errors(folder, what, case, n, worst, bound):
    found = measured(folder, what, case, n)
    print(f"{found:.1e}")
    assert found <= bound
    assert found == pytest.approx(worst, rel=0.06, abs=1e-9)


def test_the_page_has_the_largest_size_of_each_preset():
    sizes: dict[tuple, set] = {}
    for folder, what, _, n, *_ in rows_of_page():
        sizes.setdefault((folder, what), set()).add(n)
    scores = {p.scores for p in KllmCoreParameters.presets().values()}
    assert sizes == {
        ("veda", "attention"): {p.capacity for p in VedaCoreParameters.presets().values()},
        ("unicaim", "attention"): {p.rows for p in UnicaimCoreParameters.presets().values()},
        ("kllm", "softmax"): scores,
        ("kllm", "weights"): scores,
        ("kllm", "product"): {p.k for p in KllmCoreParameters.presets().values()},
    }
