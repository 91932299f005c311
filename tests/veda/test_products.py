# amaranth: UnusedElaboratable=no
"""Matrix products and norms on the core: their accuracy, their bits in RTL, a whole layer."""

import dataclasses
import json

import numpy as np
import pytest

from golden.algorithms.veda.half_model import HalfLlama
from golden.algorithms.veda.voting import VotingAttention
from golden.lm.commands import open_model
from golden.veda.veda_core import VedaCore
from hw.parameters import ParameterError
from hw.veda.core_work import ProductWork
from hw.veda.veda_core import VedaCoreParameters
from sim import __main__ as cli
from sim.commands.engines.veda.veda_core import products as engine
from sim.core.stalls import PATTERNS
from sim.testbenches.veda.veda_core import Steps, random_steps, real_steps, testbench
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf
from tests.veda.test_veda_core import FAR, RNG, SLOW, Core

PRODUCTS = VedaCoreParameters.preset("products")
# A layer of two heads of four elements, on a core that is soon compiled.
TINY = SIZES | {
    "layers": 1,
    "d": 4,
    "key_length": 4,
    "heads": 2,
    "kv_heads": 1,
    "dim": 8,
    "ffn": 12,
    "sliding_window": 8,
}
SETTINGS = {"rows": 2, "columns": 2, "arrays": 1, "capacity": 16, "depth": 16, "tokens": 2}
SETTINGS |= {"position_bits": 8, "count_bits": 4, "vector_lanes": 0, "rotary_pairs": 0}
UNITS = "--set vector_lanes=1 --set rotary_pairs=2"
ROWS = 6


def written(folder, arch, **more):
    path, sizes = folder / "tiny.gguf", TINY | more
    return write_gguf(path, random_tensors(sizes=sizes, arch=arch), sizes=sizes, arch=arch)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return written(tmp_path_factory.mktemp("products"), "llama")


@pytest.fixture(scope="module")
def tiny(model):
    """The core of :func:`command`."""
    made = engine.parameters(open_model(model)[0].config, ROWS)
    return Core(made.replace_from_text([f"{name}={value}" for name, value in SETTINGS.items()]))


def command(model, options: str = "") -> str:
    settings = " ".join(f"--set {name}={value}" for name, value in SETTINGS.items())
    blocks = "--attention veda.veda_core --linear veda.veda_core"
    story = f"--prompt 'the a the' --tokens 5 --capacity {ROWS} --json"
    return f"generate --gguf {model} {story} {blocks} {settings} {options}"


def test_products_are_near_the_exact_ones():
    """An FP32 sum rounded once, of normalised vectors with one rounding more."""
    rng, core = RNG(1), VedaCore(2)
    for rows, scale in ((1, 1.0), (40, 1.0), (576, 30.0), (1536, 1e-2)):
        x = (rng.standard_normal((3, rows)) * scale).astype(np.float16)
        w = rng.standard_normal((2, rows, 8)).astype(np.float16)
        exact, size = (np.einsum("vr,brd->bvd", a, b) for a, b in both(x, w))
        o = core.product(x, w).o.reshape(exact.shape).astype(float)
        assert (abs(o - exact) <= 2**-11 * abs(exact) + rows * 2**-24 * size + 2**-24).all()
        eps = 1e-5
        y = x.astype(float) / np.sqrt((x.astype(float) ** 2).mean(axis=1, keepdims=True) + eps)
        exact, size = (np.einsum("vr,brd->bvd", a, b) for a, b in both(y, w))
        norm = np.float32(1 / rows), np.float32(eps)
        o = core.product(x, w, norm).o.reshape(exact.shape).astype(float)
        assert (abs(o - exact) <= 2**-11 * abs(exact) + 2**-9.9 * size + 2**-20).all()


def both(x: np.ndarray, w: np.ndarray):
    """Factors in float64, and their magnitudes."""
    x, w = x.astype(float), w.astype(float)
    return (x, w), (abs(x), abs(w))


def test_random_products_and_steps(tiny):
    """In any order, under stalls; refused ones between."""
    steps = random_steps(tiny.design.parameters, 120, RNG(1))
    products = [work for work in steps.work if isinstance(work, ProductWork)]
    assert {work.norm for work in products} == {False, True} and len(products) > 30
    assert sum(result.refused for result in steps.results) > 5
    stimulus = steps.stimulus([])
    assert stimulus.wrong_cycles(tiny.check(stimulus)) is None
    for stall in PATTERNS:
        tiny.check(stimulus, stall, SLOW)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma3"])
def test_a_layer_of_everything_speaks(call, tmp_path, tiny, arch):
    """All products and norms, attention and evictions, equal to the model that NumPy runs.

    Biases and the norms of products, which Llama does not have, are the host's.
    """
    model = written(tmp_path, arch)
    status, out, err = call(cli.main, command(model))
    assert (status, err) == (0, "")
    result, llama = json.loads(out), open_model(model)[0]
    half = HalfLlama(llama, 4)
    options = {"reserved": 4, "protect_reserved": True, "bit_exact": True, "rows": 16}
    attentions, tokens = [VotingAttention(ROWS, **options)], []
    new, start = [257, 259, 258], 0
    while len(tokens) < 5:
        hidden = half.hidden(new, attentions, start=start)
        start, new = start + len(new), [int(half.logits(hidden[-1:]).argmax())]
        tokens += new
    assert result["tokens"] == tokens and result["mismatches"] == 0
    # A prompt of three tokens reads the matrices twice, as two tokens share their rows.
    rows = tiny.design.parameters.weights
    assert result["bytes"]["weights_read"] == (2 + 4) * rows * 4 * 2
    status, out, _ = call(cli.main, command(model, "--check none"))
    assert status == 0 and json.loads(out)["tokens"] == tokens


def test_refusals(call, model):
    for option, message in (
        ("--set vector=11 --set weights=120", "vector must be at least 12, not 11"),
        ("--set normed=7", "normed must be at least 8, not 7"),
        ("--set weights=100", "weights must be at least 120, not 100"),
        ("--check attention", "check must be all or none where one core computes attention and"),
    ):
        status, out, err = call(cli.main, command(model, option))
        assert (status, out) == (2, "") and err.startswith(f"error: {message}"), option
    for wrong in ({"vector": 8}, {"weights": 4}, {"vector": 8, "weights": 4, "dataflow": "tree"}):
        with pytest.raises(ParameterError):
            VedaCoreParameters(parallel=1, **wrong)


def test_norms_are_hidden_beside_products(tiny):
    """Only the first of many normalised products waits for its norm."""
    p, rng, cycles = tiny.design.parameters, RNG(5), []
    n = p.normed
    for norm in (None, (np.float32(1 / n), np.float32(1e-5))):
        steps = Steps(p)
        for _ in range(12):
            x = rng.standard_normal((1, n)).astype(np.float16)
            steps.add_product(x, 0, 4, norm)
        cycles.append(tiny.check(steps.stimulus([])).cycles)
    assert cycles[0] == p.cycles([ProductWork(n, 1, 4, norm=False)] * 12)
    assert cycles[1] - cycles[0] == n + 22


def test_the_port_is_in_use():
    """A row of the matrix comes in 95 % of a product's cycles, for sizes of the papers' models."""
    p = VedaCoreParameters(contexts=30, vector=11008, tokens=1, normed=4096, weights=1 << 20)
    for rows, columns in ((128, 11008), (576, 960), (576, 3072), (4096, 4096), (11008, 4096)):
        work = ProductWork(rows, 1, columns // p.d, norm=False)
        used = rows * work.blocks / p.cycles([work])
        assert used > 0.95, (rows, columns)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_products_under_every_stall(shipped_trace, seed):
    core = Core(PRODUCTS)
    for steps in (
        random_steps(PRODUCTS, 200, RNG(seed)),
        real_steps(PRODUCTS, shipped_trace, 90)[0],
    ):
        stimulus = steps.stimulus([])
        assert stimulus.wrong_cycles(core.check(stimulus)) is None
        for stall in PATTERNS:
            for timing in (SLOW, FAR):
                core.check(stimulus, stall, timing, seed)


@pytest.mark.campaign
def test_operations_on_vectors_beside_the_core():
    """None waits for the other: under every stall, and the longer one's cycles without any."""
    p = dataclasses.replace(PRODUCTS, vector_lanes=3, rotary_pairs=5)
    core = Core(p)
    for seed, vectors in ((1, 12), (2, 120)):
        stimulus = testbench.stimulus(p, None, vectors, seed)
        assert len(stimulus.outputs["elements"]) > vectors < len(stimulus.outputs["turned"])
        assert stimulus.wrong_cycles(core.check(stimulus)) is None
        for stall in PATTERNS:
            core.check(stimulus, stall, FAR, seed)


@pytest.mark.campaign
def test_products_of_the_paper_s_sizes():
    """On 128 PEs: vectors of 128 to 11008 elements, the longest ones that are normalised, 4096."""
    p = VedaCoreParameters(
        8, 8, 2, 32, 2, 1, 16, parallel=2, vector=11008, normed=4096, weights=22016
    )
    core, rng = Core(p), RNG(3)
    for rows, norm in ((128, False), (128, True), (4096, False), (4096, True), (11008, False)):
        steps = Steps(p)
        steps.weights[:] = rng.standard_normal(steps.weights.shape)
        x = rng.standard_normal((1, rows)).astype(np.float16)
        steps.add_product(x, 0, 2, (np.float32(1 / rows), np.float32(1e-5)) if norm else None)
        stimulus = steps.stimulus([])
        assert core.check(stimulus).cycles == stimulus.cycles


@pytest.mark.campaign
def test_cycles_of_a_product_alone():
    """Exactly the formula's, of any size, and rows read once for vectors that share them."""
    core, rng = Core(PRODUCTS), RNG(2)
    for _ in range(150):
        norm = bool(rng.integers(2))
        rows = int(rng.integers(1, (PRODUCTS.normed if norm else PRODUCTS.vector) + 1))
        vectors, blocks = (int(rng.integers(1, most + 1)) for most in (2, min(9, 512 // rows)))
        steps = Steps(PRODUCTS)
        x = rng.standard_normal((vectors, rows)).astype(np.float16)
        moments = (np.float32(1 / rows), np.float32(1e-5)) if norm else None
        steps.add_product(x, 0, blocks, moments)
        stimulus = steps.stimulus([])
        outcome = core.check(stimulus)
        assert outcome.cycles == stimulus.cycles
        read = blocks * rows * (vectors if rows > PRODUCTS.depth else 1)
        assert outcome.memories["memory"].rows_read == read


@pytest.mark.campaign
def test_layers_on_one_core_have_their_own_turns(call, tmp_path):
    """Of Gemma 3 the sixth layer sees all tokens, and has another base than those before it."""
    model = written(tmp_path, "gemma3", layers=6)
    config = open_model(model)[0].config
    assert len({config.window(layer) for layer in range(6)}) == 2
    for option in ("", "--check none"):
        options = f"--set contexts=6 {UNITS} {option}"
        status, out, err = call(cli.main, command(model, options))
        assert (status, err) == (0, "") and json.loads(out)["mismatches"] == 0


@pytest.mark.campaign
def test_a_language_model_on_one_core(call, smollm2):
    """Eight tokens of SmolLM2: all layers' products, norms and attention, each bit equal."""
    blocks = "--attention veda.veda_core --linear veda.veda_core"
    status, out, _ = call(cli.main, f"generate --prompt A --tokens 8 --json {blocks}")
    result = json.loads(out)
    assert (status, result["mismatches"], len(result["tokens"])) == (0, 0, 8)
    half = HalfLlama(open_model(smollm2)[0], 64)
    rows = sum(matrix.size // 64 for layer in half.matrices for matrix in layer)
    assert result["bytes"]["weights_read"] == 8 * rows * 64 * 2
    # Steps of attention of few rows are added to 1,703,130 cycles of products and norms.
    assert all(1_703_130 < cycles < 1_703_130 * 1.02 for cycles in result["cycles_per_token"])
