"""A language model that speaks through a board's cable, and sessions that share one board."""

import dataclasses
import json
import signal

import numpy as np
import pytest

from hw.kllm.kllm_core import KllmCoreParameters
from sim.core.design import generate
from sim.core.memory import FASTEST, Memory
from sim.drivers.board.board import Board
from sim.drivers.board.shared import DesignOnBoard, LayerSession, open_session
from sim.drivers.board.simulated import SimulatedBoard
from sim.testbenches.stream.sequential_reader import build
from tests.boards.conftest import design_of
from tests.boards.test_board import READER
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Two layers, four heads of eight elements, two kv heads."""
    sizes = SIZES | {"layers": 2, "heads": 4, "dim": 32}
    path = tmp_path_factory.mktemp("board") / "tiny.gguf"
    return write_gguf(path, random_tensors(sizes=sizes), sizes=sizes)


def settings(parameters: dict) -> str:
    return " ".join(f"--set {name}={value}" for name, value in parameters.items())


VEDA = settings(
    {"heads": 4, "kv_heads": 2, "rows": 2, "columns": 2, "arrays": 2, "capacity": 32}
    | {"depth": 8, "position_bits": 8, "count_bits": 4}
)
PRODUCTS = settings(dataclasses.asdict(KllmCoreParameters.preset("first")))
KLLM = f"--linear kllm.kllm_core {PRODUCTS}"
TOPICK = "--attention topick.topick_core --set tokens=32 --set entries=8"
SETTINGS = {
    "veda": f"--capacity 6 {VEDA}",
    "veda, memory over the cable": f"--capacity 6 --memory-rows 0 {VEDA}",
    "veda, all layers in SDRAM": f"--capacity 6 --memory sdram {VEDA} --set contexts=3",
    "topick": TOPICK,
    "unicaim": "--attention unicaim.unicaim_core --capacity 16 --set parallel=4 --set observe=1",
    "lad": "--attention lad.lad_tile --set positions=32 --memory-rows 1024",
    "kllm": f"--attention none {KLLM}",
    "kllm, attention too": f"--attention kllm.kllm_core {KLLM}",
}


@pytest.mark.parametrize(
    "which",
    [
        "topick",
        *(pytest.param(w, marks=pytest.mark.campaign) for w in SETTINGS if w != "topick"),
    ],
)
def test_text_through_the_cable(run, tiny, which):
    """That of a simulation without a board, every output bit compared; memories as much used."""
    board = "--board simulated"
    options = SETTINGS[which]
    rows = options.partition("--memory-rows ")[2].split()[:1]
    alone = options.replace(f"--memory-rows {rows[0]}", "") if rows else options
    alone = alone.replace("--memory sdram", "")
    results = []
    for line in (f"{options} {board}", alone):
        status, out, err = run(f"generate --gguf {tiny} --prompt 'a the' --tokens 2 --json {line}")
        assert (status, err) == (0, "")
        results.append(json.loads(out))
    cable, simulation = results
    assert cable["board"] == "simulated" and simulation["board"] is None
    assert cable["mismatches"] == 0 and cable["bits_compared"] > 1000
    for name in ("tokens", "bits_compared", "bytes", "evicted", "rows_kept"):
        assert cable[name] == simulation[name], name
    assert cable["cycles"] > simulation["cycles"]


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("memory", "context_bits"),
    [("--memory-rows 2048", 1), ("--memory sdram --set contexts=30", 5)],
)
def test_a_model_that_people_use(run, memory, context_bits):
    """SmolLM2-135M's next token by VEDA's core of 64 PEs, its cache in the board's memory.

    Layers take turns on block memory, or all have their rows in SDRAM.
    """
    line = "generate --prompt A --tokens 1 --capacity 16 --json"
    status, out, _ = run(f"{line} --board simulated {memory}")
    assert status == 0
    result = json.loads(out)
    # Each layer's report names its context.
    assert result["bits_compared"] == 278370 + 30 * context_bits and result["mismatches"] == 0
    assert result["text"] == result["reference_text"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--verilog x.v", "--board and --verilog do not go together"),
        ("--memory latency=3", "--board has --memory block or sdram, not 'latency=3'"),
        ("--trace-out x.npz", "--board and --trace-out do not go together"),
        (KLLM, "--board holds one block: --attention or --linear must be none"),
    ],
)
def test_wrong_options(run, tiny, options, message):
    line = f"generate --gguf {tiny} --prompt a --tokens 1 --board simulated"
    status, out, err = run(f"{line} {options}")
    assert status == 2 and err.splitlines()[-1].startswith(f"error: {message}")


def test_options_of_a_board_need_one(run, tiny):
    status, out, err = run(f"generate --gguf {tiny} --prompt a --tokens 1 --memory-rows 8")
    assert (status, out, err) == (2, "", "error: --memory-rows needs --board\n")


def test_no_such_port(run, tiny):
    line = f"generate --gguf {tiny} --prompt a --tokens 1 {TOPICK}"
    status, out, err = run(f"{line} --board /dev/none")
    assert status == 2 and not out
    assert err.splitlines()[-1] == "error: there is no port /dev/none"


@pytest.mark.parametrize("memory_rows", [-1, 0])
def test_sessions_take_turns_on_one_board(memory_rows):
    """Each sees its own memory, with all that the host has changed in it."""
    made = design_of("stream.sequential_reader", memory_rows=memory_rows)
    p, rng = made.parameters, np.random.default_rng(3)
    rows = min(64, 1 << p.address_width)
    simulated = SimulatedBoard(made)
    try:
        # The button may swallow a packet, which is sent again after the patience.
        board = Board(made, simulated.transport(patience=2.0))
        design = DesignOnBoard.of(generate(READER, p), board)
        sessions, expected_uses = [], [0, 0]
        for _ in range(2):
            contents = rng.integers(1 << p.data_width, size=(rows, 1), dtype=np.uint32)
            memory = Memory(contents, "request", "response")
            sessions.append(open_session(design, {"words": memory}, FASTEST))
        assert isinstance(sessions[0], LayerSession)
        turns = [0, 0, 1, 0, 1, 1]
        while turns:
            turn = turns.pop(0)
            session = sessions[turn]
            words = session.contents["words"]
            words[rng.integers(rows, size=5)] = rng.integers(1 << p.data_width, size=(5, 1))
            if not turns:  # the button, between two steps of one session
                simulated.process.send_signal(signal.SIGUSR1)
            start, count = rng.integers(0, rows - 8, 3), rng.integers(1, 8, 3)
            stimulus = build(p, words, start, count, [])
            expected = {"o": len(stimulus.outputs["o"])}
            outcome = session.step(stimulus.inputs, expected)
            assert outcome.failure is None
            np.testing.assert_array_equal(outcome.outputs["o"], stimulus.outputs["o"])
            expected_uses[turn] += int(count.sum())
            use = session.uses()["words"]
            assert use.rows_read == expected_uses[turn]
            np.testing.assert_array_equal(use.contents, words)
        if memory_rows:  # the other one's are on the board
            assert len(sessions[0].uses()["words"].contents) == 0
        assert sessions[0].uses()["words"].rows_read == expected_uses[0]
        # Steps of session 0, steps of session 1, and the steps of session 1 that the reset undid.
        assert design.shared.replayed == 2 + 1 + 2
    finally:
        simulated.close()
