"""The paper's figures of LAD's machine beside each other."""

import math

import pytest

from golden.studies.study import Verdict
from sim.studies.lad import figures, page, power
from sim.studies.lad.machine import BYTES_PER_S, GROUPS, MACS_PER_S, MODELS, SPEEDUP, TILES, cases

SEVEN = MODELS["LLaMA2 7B"]
HOLDS, ASSUMED, CONTRADICTS = Verdict.HOLDS, Verdict.ASSUMED, Verdict.CONTRADICTS


def test_figures_of_a_group():
    assert SPEEDUP == ((5.8, 6.2), (7.1, 10.7))
    assert [len(cases(group)) for group in GROUPS] == [16, 8]
    assert len(figures.named_cases()) == 24


def test_bytes_of_a_layer(monkeypatch):
    """0.377 GB of four square matrices and three wide ones; K and V as in the paper."""
    claim = figures.layer_claim()
    assert claim.verdict is Verdict.PARTLY and claim.ours.startswith("0.38 GB of weights, 0.50 GB")
    monkeypatch.setitem(figures.LAYER, "weights", 0.377)
    assert figures.layer_claim().verdict is Verdict.COUNTS


def test_bandwidth(monkeypatch):
    claim = figures.peak_claim()
    assert claim.verdict is HOLDS and claim.ours == "1536 GB/s, -1.2%"
    monkeypatch.setattr(figures, "GPU_BYTES_PER_S", 2039e9)
    assert figures.peak_claim().verdict is CONTRADICTS


def test_loops_of_algorithm_2():
    """AC.1 to AC.8, by hand: 2, 1, 2, 1, 4 · 2 and 3 · 2 cycles."""
    assert figures.loop_cycles(active=5, updated=4, d=4) == 2 + 1 + 2 + 1 + 4 * 2 + 3 * 2
    claim = figures.loop_claim()
    assert claim.verdict is CONTRADICTS and "1.01 times that with |U| = 3" in claim.ours
    assert figures.loop_claim(active=100_000).verdict is HOLDS


def test_reads_by_the_paper():
    """Caches and G twice, and a fifth of 10 % of K and V."""
    numbers = 2 * (128**2 + 3 * 128 + 2) + 2 * 4 * 1000 + 0.2 * 0.1 * 2 * 1000 * 128
    assert figures.own_share(1000, 128, 0.1) == pytest.approx(numbers / (2 * 1000 * 128))
    assert figures.own_share(1000, 128, 0.1, 1) < figures.own_share(1000, 128, 0.1)
    assert figures.reads_claim().verdict is ASSUMED


def test_reads_that_gain_more_than_the_paper(monkeypatch):
    """Fewer active positions than the paper has would make LAD faster than it is."""
    monkeypatch.setattr(figures, "OUTSIDE", (0.0, 0.0))
    assert figures.reads_claim().verdict is CONTRADICTS


def test_the_ideal_accelerator(monkeypatch):
    """What remains without attention is more than the paper's latency."""
    shares = [1 - sum(m.ideal(n)[:1]) / sum(m.ideal(n)) for m, n in cases(GROUPS[1])]
    claim = figures.floor_claim()
    floor = 1 - sum(shares) / len(shares)
    assert claim.verdict is CONTRADICTS and f"and {floor:.2f} remain" in claim.ours
    monkeypatch.setattr(figures, "LATENCY", ((0.78, 0.79), (0.56, 0.57)))
    assert figures.floor_claim().verdict is HOLDS


def test_bandwidth_that_fits_a_latency():
    """The more slowly both read, the less of the latency is left."""
    group = (4096,)
    assert figures.ideal_use(group, 0.9) == 1
    use = figures.ideal_use(group, 0.4)
    models = [m for m, _ in cases(group)]
    ratios = []
    for model in models:
        products, attention = model.ideal(4096)
        ours = attention * figures.own_share(4096, model.d, 0.1)
        ratios.append((products + ours / use) / (products + attention / use))
    assert 0.39 < sum(ratios) / len(ratios) <= 0.4 and 0 < use < 1
    assert figures.ideal_use(group, 0) == 0


def test_linear_layers_beside_the_gpu(monkeypatch):
    """Half of the time four times as fast, the rest twice: 2.67 times."""
    assert figures.linear_speed(1 / (0.5 / 4 + 0.5 / 2), 4, 0.5) == pytest.approx(2)
    claim = figures.whole_claim()
    assert claim.verdict is CONTRADICTS
    assert claim.ours == "linear layers 1.11 times as fast or more, and 1.24 times"
    monkeypatch.setattr(figures, "WHOLE", ((1.5, 1.5, 1.5), (1.8, 1.9, 1.9)))
    assert figures.whole_claim().verdict is HOLDS


def test_batches_that_a_memory_holds(monkeypatch):
    """A token of LLaMA2 7B has 0.5 MB of K and V, and 13.2 GB of weights."""
    assert figures.held(SEVEN, 4096) == int((40e9 - 2 * SEVEN.products) / (4096 * 2**19)) == 12
    claim = figures.linear_claim()
    assert claim.verdict is ASSUMED and "a batch of 6.9" in claim.ours
    assert "4 to 206 samples" in claim.why and "97% of that rate" in claim.why
    monkeypatch.setattr(figures, "held", lambda model, n: 6)
    assert figures.linear_claim().verdict is HOLDS


def test_rows_loaded_in_a_period():
    """Three matrices of 128 × 4096 numbers; with a batch of 7 they take all of the bandwidth."""
    numbers = 3 * 128 * 4096
    batch = 2 * MACS_PER_S / BYTES_PER_S
    assert figures.loaded(SEVEN, 4096, batch, 0.1) == pytest.approx(0, abs=1e-9)
    free = 10 * numbers / MACS_PER_S * BYTES_PER_S - 2 * numbers
    assert figures.loaded(SEVEN, 4096, 10, 0.25) == pytest.approx(free / (10 * 1024 * 512))
    assert figures.loaded(SEVEN, 512, 99, 0.1) == 1


@pytest.mark.parametrize(
    ("batch", "share", "verdict"), [(99, 0.05, HOLDS), (8, 0.26, ASSUMED), (99, 0.6, CONTRADICTS)]
)
def test_periods_that_are_long_enough(monkeypatch, batch, share, verdict):
    monkeypatch.setattr(figures, "held", lambda model, n: batch)
    monkeypatch.setattr(figures, "OUTSIDE", (share, share))
    assert figures.ahead_claim().verdict is verdict


def test_periods_of_the_paper():
    claim = figures.ahead_claim()
    assert claim.verdict is ASSUMED and claim.ours.startswith("17 of 24")
    assert (figures.active_share(3584), figures.active_share(4096)) == (0.26, 0.1)


def test_room_on_chip():
    """Rows of 8 samples of 12 for six tiles, two heads of these and of what else they have."""
    rows = 0.1 * 4096 * 512
    scalars = 2 * 16770 + 10 * 4096
    expected = 0.8 * rows * 12 / TILES + 2 * (rows + scalars)
    assert figures.tile_bytes(SEVEN, 4096, 0.1) == pytest.approx(expected)
    assert figures.sram_claim().verdict is ASSUMED


@pytest.mark.parametrize(("size", "verdict"), [(8e5, HOLDS), (3e6, CONTRADICTS)])
def test_room_that_limits(monkeypatch, size, verdict):
    monkeypatch.setattr(figures, "SRAM", (size, 2 * size, 3 * size))
    assert figures.sram_claim().verdict is verdict


def test_power(monkeypatch):
    """Table III's sums for a tile are 1.40, 1.58 and 2.03 W; HBM draws 47.9 W."""
    tiles = [sum(power.power(size)[:2]) for size in range(3)]
    assert tiles == pytest.approx([6 * 1.4004, 6 * 1.58437, 6 * 2.02819])
    assert power.power(0)[2] == pytest.approx(47.92, abs=0.01)
    claim = power.power_claim()
    assert claim.verdict is ASSUMED and "281 to 294 W" in claim.ours
    monkeypatch.setattr(power, "GPU_W", 300)
    assert power.power_claim().verdict is HOLDS
    monkeypatch.setattr(power, "GPU_W", 40)
    assert power.power_claim().verdict is CONTRADICTS


@pytest.mark.parametrize(("logic", "verdict"), [(5, Verdict.REPRODUCED), (15, Verdict.PARTLY)])
def test_energy_of_memories(logic, verdict):
    """Of memories 7 + 1, of the rest as much as `logic`; other designs do not count."""
    row = {"design": "lad.lad_tile", "memory": "hbm2,hash=on", "energy_pj": {"a": 3, "b": 4}}
    row |= {"chip_pj": {"memories": 1, "clock": logic}}
    other = row | {"design": "veda.veda_core", "chip_pj": {"memories": 0, "clock": 1e9}}
    claim = power.energy_claim([row, other])
    assert claim.verdict is verdict and f"{8 / (8 + logic):.0%} on hbm2" in claim.ours


def test_energy_of_the_tile_here():
    claim = power.energy_claim(page.compared())
    assert claim.verdict is Verdict.REPRODUCED and "on lpddr4_3200" in claim.ours


def test_what_cannot_be_checked_and_the_table():
    assert figures.gpu_claim().verdict is Verdict.UNKNOWN
    rows = figures.batches().rows
    assert ["LLaMA2 7B", "4096", "12", "89%", "0.90"] in rows and len(rows) == 10
    assert math.isclose(float(rows[-1][3].rstrip("%")), 0)
