"""Faults in a block that a language model uses stop the text, and are located.

A fault is in one sub-block of the RTL, or in the data of one layer's memory. The message names the
layer, the token, the field, the expected and the received value.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest

from golden.lm.commands import open_model
from hw.catalogue import find
from hw.kllm.core.core_parameters import BEAT
from hw.kllm.kllm_core import KllmCoreParameters
from hw.parameters import Parameters
from hw.veda.veda_core import VedaCoreParameters
from sim.commands.engines import linear_engine
from sim.core.design import generate
from sim.core.user_verilog import generated_ports
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf
from tests.support.mutant_file import MutantFile, wrapped
from tests.support.sim.generated import COUNT, PROMPT, TOKENS, upset_memory

ROWS = 6
MODEL = SIZES | {"layers": 2, "heads": 4, "dim": 32}

DIFFERENCE = re.compile(
    r"error: (?P<block>[\w.]+), layer (?P<layer>\d), token (?P<token>\d+): (matrix \w+: )?"
    r"transaction \d, stream \w+, beat \d+, field (?P<field>[\w.\[\]]+), cycle \d+: "
    r"expected (?P<expected>\d+), got (?P<got>\d+)\n"
)
STOPPED = re.compile(
    r"error: (?P<block>[\w.]+), layer (?P<layer>\d), token \d+: (matrix [\w, ]+: )?"
    r"(no transfer|only memories transferred|memory \w+: request \d+ reads row"
    r"|stream \w+: the payload changed|took \d+ cycles where) .*\n"
)


@dataclasses.dataclass(frozen=True)
class Core:
    """A block in the path of a model, in the configuration of these tests.

    options
        Of ``sim generate``, which give these parameters.
    instances
        Sub-blocks whose mutants are run; of equal ones a few.
    flow
        Those that carry no data: their mutants stop the core.
    factors, port
        Factors of a layer's weights that make its input of this port large, and no other's.
    memory, upset
        Name of its memory; word and bit of each row that an upset inverts.
    first_step
        Of a layer's token, in the layer's session.
    rows
        Of a layer in the one session of all layers; 0: each layer has a session.
    joint
        Whether the prompt's three tokens share steps, so that differences are told of the last.
    """

    parameters: Parameters
    options: str
    instances: tuple[str, ...]
    flow: tuple[str, ...]
    factors: dict[str, float]
    port: str
    memory: str
    upset: tuple[int, int]
    first_step: Callable[[int, int], int]
    rows: int = 0
    joint: bool = False


CORES = {
    "veda.veda_core": Core(
        VedaCoreParameters.preset("first"),  # whose contexts are the layers
        "--set rows=2 --set columns=2 --set arrays=2 --set capacity=32 --set depth=16"
        " --set position_bits=8 --set count_bits=4 --set contexts=2",
        (
            "",
            "scheduler",
            "scheduler.map",
            "scheduler.sequence",
            "scheduler.sequence.order",
            "scheduler.sequence.keys",
            "port",
            "attention",
            "reader",
            "reader.reorder",
            "attention.pe_array",
            "attention.pe_array.pe_3",
            "attention.pe_array.pe_4.convert",
            "attention.pe_array.pe_5.multiply",
            "attention.pe_array.pe_8.add",
            # Not the units of the mean and the variance, which a softmax leaves idle.
            "attention.special_function_unit",
            "attention.special_function_unit.softmax",
            "attention.special_function_unit.softmax.exponent",
            "attention.special_function_unit.softmax.term",
            "attention.special_function_unit.softmax.tile.fifo",
            "attention.special_function_unit.normalisation",
            "attention.special_function_unit.normalisation.exponent",
            "attention.special_function_unit.normalisation.term",
            "attention.special_function_unit.results.fifo",
            "attention.special_function_unit.credits",
            "voting_engine",
            "voting_engine.buffer",
            "voting_engine.fifo",
            "voting_engine.threshold",
        ),
        flow=("attention", "attention.special_function_unit.credits", "scheduler.sequence"),
        factors={"attn_v": 100},
        port="kv",
        memory="memory",
        upset=(2, 30),  # the exponent of element 5
        # The prompt's three tokens, layer by layer; then the layers, token by token.
        first_step=lambda layer, token: 3 * layer + token if token < 3 else 2 * token + layer,
        rows=2 * 2 * 32,
    ),
    "kllm.kllm_core": Core(
        KllmCoreParameters.preset("first"),
        "--attention none --linear kllm.kllm_core "
        + " ".join(
            f"--set {name}={value}"
            for name, value in dataclasses.asdict(KllmCoreParameters.preset("first")).items()
        ),
        (
            "",
            "dispatch",
            "dispatch.results_commands.fifo",
            "fetch",
            "fetch.reorder",
            "fetch.repeats.fifo",
            "split",
            "split.finder",
            "split.finder.leaf_0",
            "split.finder.leaf_1.max_tree",
            "split.finder.output",
            "cluster",
            "cluster.multiply",
            "index_buffer",
            "index_buffer.words",
            "outlier_list",
            "outlier_list.replay",
            "table",
            "join",
            "replace",
            "norm",
            "lane_0",
            "lane_0.counter",
            "lane_0.counter.accumulators_3",
            "lane_0.counter.counter_0",
            "lane_0.counter.counter_0.number_7",
            "lane_0.counter.counter_0.row_2_counts",
            "lane_0.counter.counter_0.row_2_counts.ones_5",
            "lane_0.reduction",
            "lane_0.reduction.sum",
            "lane_0.reduction.sum.credits",
            "lane_0.reduction.sum.queue.fifo",
            "lane_0.scale",
            "lane_0.scale.add_sparse",
            "lane_0.scale.narrow",
            "lane_0.scale.scale",
            "lane_0.scale.scale_dense",
            # Not the scales' conversions to FP32: these scales are neither subnormal nor NaN.
            "lane_0.scales.fifo",
            "lane_0.sparse",
            "lane_0.sparse.sum",
            "lane_0.sparse.sum.queue.fifo",
            "lane_0.sparse_sums.fifo",
            "scales.fifo",
            "scale_replay",
        ),
        flow=(
            "dispatch",
            "fetch.repeats.fifo",
            "join",
            "lane_0",
            "lane_0.reduction.sum.credits",
        ),
        factors={"ffn_up": 100, "ffn_down": 0.01},
        port="x",
        memory="memory",
        upset=(0, 3),  # the index of the first weight
        # The prompt takes four steps, and so does each token after it.
        first_step=lambda layer, token: 4 * max(0, token - 2),
        joint=True,
    ),
}


def command(model, options: str) -> str:
    return (
        f"generate --gguf {model} --prompt '{PROMPT}' --tokens {TOKENS} --capacity {ROWS} --json"
        f" {options}"
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random Llama of two layers with four heads of eight elements, two kv heads."""
    path = tmp_path_factory.mktemp("mutants") / "tiny.gguf"
    return write_gguf(path, random_tensors(sizes=MODEL), sizes=MODEL)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Folder of quantised models."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(cache, monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", str(cache))


@pytest.fixture(scope="module")
def made():
    """Files of mutants by core."""
    return {}


@pytest.fixture
def mutants_of(made, tmp_path_factory, monkeypatch):
    """The mutants of a core, made once; the test runs in their folder."""

    def mutants(name: str) -> MutantFile:
        if name not in made:
            core, folder = CORES[name], tmp_path_factory.mktemp("mutants")
            made[name] = MutantFile(folder, find(name), core.parameters, COUNT, core.instances)
        monkeypatch.chdir(made[name].folder)
        return made[name]

    return mutants


@pytest.mark.campaign
@pytest.mark.parametrize("name", CORES)
def test_the_file_of_mutants_without_a_mutant_is_the_core(run, model, mutants_of, name):
    file = mutants_of(name)
    file.select(0)
    status, _, err = run(command(model, f"{CORES[name].options} --verilog {file.path} --trust"))
    assert (status, err) == (0, "")


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "instance"),
    [(name, instance) for name, core in CORES.items() for instance in core.instances],
)
def test_a_mutant_in_each_sub_block_stops_the_text(run, model, mutants_of, name, instance):
    core, file = CORES[name], mutants_of(name)
    line = command(model, f"{core.options} --verilog {file.path} --trust")
    assert len(file.mutants[instance]) == COUNT
    for mutant in file.mutants[instance]:
        file.select(mutant.number)
        status, out, err = run(line)
        if status == 0:  # these data do not excite it
            continue
        assert (status, out) == (1, "") and err.count("\n") == 1, mutant
        found = DIFFERENCE.fullmatch(err)
        if found is None:
            stopped = STOPPED.fullmatch(err)
            assert stopped and stopped["block"] == name, f"{mutant}: {err}"
            if instance in core.flow:
                return
            continue
        assert found["block"] == name and found["expected"] != found["got"], mutant
        return
    pytest.fail(f"no mutant of {instance or name} changes a field of an output")


def large(name: str, path) -> list[np.ndarray]:
    """Per layer, for each token of the prompt: whether a faulty input of the core is 64 or more."""
    model, tokenizer, about = open_model(path)
    core, prompt, seen = CORES[name], tokenizer.encode(PROMPT), {}
    if core.port == "x":  # it multiplies
        model = linear_engine(name).quantise(model, tokenizer, about, core.parameters)
    model.hidden(prompt, observer=lambda layer, what, x: seen.update({(layer, what): abs(x) >= 64}))
    layers = range(MODEL["layers"])
    if core.port == "x":  # it multiplies
        return [seen[layer, "down"][:, ::BEAT].any(axis=1) for layer in layers]
    return [(seen[layer, "k"] | seen[layer, "v"])[:, :, 0].any(axis=0) for layer in layers]


@pytest.mark.campaign
@pytest.mark.parametrize("layer", range(MODEL["layers"]))
@pytest.mark.parametrize("name", CORES)
def test_a_fault_is_named_in_the_layer_whose_data_excite_it(run, tmp_path, name, layer):
    """Element 0 of an input's beats changes its sign if it is 64 or more, as in one layer alone."""
    core, block = CORES[name], find(name)
    tensors = random_tensors(sizes=MODEL)
    for tensor, factor in core.factors.items():
        tensors[f"blk.{layer}.{tensor}.weight"] *= factor
    model = write_gguf(tmp_path / "large.gguf", tensors, sizes=MODEL)
    excited = large(name, model)
    assert [of.any() for of in excited] == [index == layer for index in range(MODEL["layers"])]
    token = 2 if core.joint else int(excited[layer].argmax())

    design, port = generate(block, core.parameters), f"{core.port}__payload"
    path, ports = tmp_path / "faulty.v", generated_ports(design.verilog, design.module)
    top = ports[port][1] - 1
    # FP16 from 2^6 on has an exponent field of 15 + 6 or more.
    turned = f"{{{port}[{top}:16], {port}[15] ^ ({port}[14:10] >= 21), {port}[14:0]}}"
    path.write_text(wrapped(design.verilog, ports, design.module, {port: turned}))
    status, out, err = run(command(model, f"{core.options} --verilog {path}"))
    found = DIFFERENCE.fullmatch(err)
    assert (status, out) == (1, "") and found, err
    assert (found["block"], found["layer"], found["token"]) == (name, str(layer), str(token))


@pytest.mark.parametrize(
    ("name", "layer", "token"),
    [
        ("veda.veda_core", 0, 1),
        ("veda.veda_core", 1, 6),
        ("veda.veda_core", 1, 11),
        ("kllm.kllm_core", 1, 2),
        pytest.param("kllm.kllm_core", 0, 7, marks=pytest.mark.campaign),
    ],
)
def test_a_bit_upset_in_a_layer_s_memory_is_located(monkeypatch, run, model, name, layer, token):
    """The design is that of other tests, so this costs little."""
    core = CORES[name]
    word, bit = core.upset

    def flip(session):
        contents = session.contents[core.memory]
        rows = contents[layer * core.rows :][: core.rows] if core.rows else contents
        rows[:, word] ^= 1 << bit

    session = 0 if core.rows else layer
    upset_memory(monkeypatch, session, core.first_step(layer, token), flip)
    status, out, err = run(command(model, core.options))
    found = DIFFERENCE.fullmatch(err)
    assert (status, out) == (1, "") and found, err
    assert (found["block"], found["layer"], found["token"]) == (name, str(layer), str(token))
