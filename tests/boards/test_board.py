"""A whole board, simulated: testbenches through the cable, noise, resets, a user's mistakes."""

import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.boards.board_top import COUNTER_BITS
from hw.boards.protocol import Operation, Outcome
from hw.catalogue import find
from hw.parameters import ParameterError
from sim.core.memory import Memory
from sim.drivers.board import link as links
from sim.drivers.board.board import FEWEST, Board, BoardWasReset, runs
from sim.drivers.board.link import BoardError
from sim.drivers.board.run import BoardChoice, run_on_board, run_stimulus
from sim.drivers.board.serial_port import SerialPort
from sim.drivers.board.session import BoardSession
from sim.drivers.run import load_testbench
from tests.boards.conftest import design_of

STATUS, RESET, START = (bytes([op]) for op in (Operation.STATUS, Operation.RESET, Operation.START))
READER = find("stream.sequential_reader")


@pytest.mark.parametrize(
    ("name", "rows", "vectors"),
    [
        ("stream.sequential_reader", -1, 40),
        ("stream.sequential_reader", 0, 12),
        ("kllm.orizuru", -1, 12),
        ("stream.sequential_reader default", -1, 5),
        pytest.param("arith.float_add", -1, 200, marks=pytest.mark.campaign),
        pytest.param("veda.veda_core", -1, 8, marks=pytest.mark.campaign),
        pytest.param("veda.veda_core", 0, 2, marks=pytest.mark.campaign),
        pytest.param("topick.topick_core", -1, 8, marks=pytest.mark.campaign),
        pytest.param("lad.lad_tile", -1, 4, marks=pytest.mark.campaign),
        # As a ULX3S has it.
        pytest.param("lad.lad_tile small weights=0", -1, 4, marks=pytest.mark.campaign),
        pytest.param("unicaim.unicaim_core", -1, 4, marks=pytest.mark.campaign),
        pytest.param("kllm.kllm_core", -1, 4, marks=pytest.mark.campaign),
    ],
)
def test_a_testbench_through_the_cable(name, rows, vectors):
    name, *words = name.split()
    preset, *settings = words or ["first"]
    block = find(name)
    parameters = block.parameters_class.preset(preset).replace_from_text(settings)
    choice = BoardChoice(memory_rows=rows)
    result = run_on_board(block, preset, parameters, choice, vectors=vectors)
    assert result.passed, (result.first_mismatch, result.failures)
    assert result.transactions == 2 * vectors and result.cycles > 0
    assert not any("sent again" in note for note in result.notes)


class Noisy:
    """A line that damages some of what passes.

    damage
        Called with "to" or "from" and a byte; returns the bytes that arrive in its place.
    """

    def __init__(self, port: SerialPort, damage):
        self._port, self._damage = port, damage
        self.name, self.patience = port.name, 2.0

    def _pass(self, way: str, data: bytes) -> bytes:
        return b"".join(self._damage(way, byte) for byte in data)

    def write(self, data: bytes) -> None:
        self._port.write(self._pass("to", data))

    def read(self, timeout: float) -> bytes:
        return self._pass("from", self._port.read(timeout))

    def now(self) -> float:
        return self._port.now()

    def close(self) -> None:
        self._port.close()


def lossy(seed: int):
    """One byte in 1500 is lost, changed or doubled."""
    rng = np.random.default_rng(seed)

    def damage(way: str, byte: int) -> bytes:
        if rng.random() > 1 / 1500:
            return bytes([byte])
        return [b"", bytes([byte ^ 1 << rng.integers(8)]), bytes([byte, byte])][rng.integers(3)]

    return damage


def test_noise_is_detected_and_made_good(reader, reader_design):
    parameters = reader_design.parameters
    stimulus = load_testbench(READER).stimulus(parameters, None, 60, seed=4)
    board = Board(reader_design, Noisy(reader.transport(), lossy(7)))
    outcome = run_stimulus(board, stimulus, timeout=10**6, drain=100)
    assert outcome.failure is None
    for name, beats in stimulus.outputs.items():
        np.testing.assert_array_equal(outcome.outputs[name], beats)
    status = board.status(board.do(STATUS))
    assert board.link.repairs.resent > 0
    assert status.dropped + board.link.repairs.damaged > 0


def test_a_repeated_request_is_executed_once(reader, reader_design, monkeypatch):
    board = Board(reader_design, reader.transport())
    board.do(RESET)
    stream = next(iter(reader_design.inputs))
    write = board.write(stream, np.zeros((3, 1), np.uint32))
    room = board.status(board.do(STATUS)).inputs[stream][0]
    sequence = board.link._sequence % 255 + 1
    message = links.frame(bytes([sequence]) + write)
    for _ in range(3):
        board.link.transport.write(message)
        assert board.link.transport.read(5)
    board.link._sequence = sequence
    assert board.status(board.do(STATUS)).inputs[stream][0] == room - 3


def test_a_new_conversation_may_begin_with_any_number(reader, reader_design):
    """Its first requests are executed though an earlier one ended with their number."""
    port = reader.transport()
    for _ in range(2):
        board = Board(reader_design, port)
        reader_status = board.do(RESET, START, STATUS)
        assert board.link._sequence == 1
        assert board.status(reader_status).cycles < 1000


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xc0\x01\x00\x02\x03\x04\x05\x06\xc0",  # a wrong CRC
        b"\xc0\x01\xdb\x02\x00\x00\x00\x00\xc0",  # a wrong escape
        b"\xc0\x01\xc0",  # too short
        b"\xc0" + bytes(range(1, 100)) * 12 + b"\xc0",  # too long
        links.frame(b"\x05" + START)[:-1] + b"\xdb\xc0",  # ends with an escape
    ],
)
def test_a_damaged_frame_is_dropped_whole_and_counted(reader, reader_design, damaged):
    board = Board(reader_design, reader.transport())
    before = board.status(board.do(STATUS)).dropped
    board.link.transport.write(damaged)
    reply = board.link.request(STATUS)
    status = board.status(_reader(reply))
    assert status.dropped == before + 1
    assert not reply[0] & 0x80  # nothing of it was executed


def _reader(reply):
    from sim.drivers.board.board import _Reader

    return _Reader(reply[1], "port")


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        (b"\x77", Outcome.UNKNOWN_OPERATION),
        (bytes([Operation.WRITE, 0, 1]), Outcome.TRUNCATED),
        (bytes([Operation.WRITE, 0, 1, 0]), Outcome.TRUNCATED),
        (bytes([Operation.WRITE, 9, 1, 0, 0]), Outcome.NO_SUCH_STREAM),
        (bytes([Operation.READ, 9, 1, 0]), Outcome.NO_SUCH_STREAM),
        (bytes([Operation.DUMP, 7, 0, 0, 0, 0, 1, 0]), Outcome.NO_SUCH_STREAM),
        (STATUS * 40, Outcome.REPLY_TOO_LONG),
    ],
)
def test_a_wrong_operation_is_refused(reader, reader_design, operations, why):
    board = Board(reader_design, reader.transport())
    status, _ = board.link.request(operations)
    assert status == why
    assert board.link.request(STATUS)[0] == Outcome.DONE


def test_first_and_last_row_of_a_memory(reader, reader_design):
    board = Board(reader_design, reader.transport())
    name, memory = next(iter(reader_design.memories.items()))
    assert memory.rows > 2
    rows = np.arange(memory.rows, dtype=np.uint32)[:, None] * 0x01234567
    rows &= np.uint32((1 << min(32, memory.row_bits)) - 1)
    board.load(name, rows)
    np.testing.assert_array_equal(board.dump(name, memory.rows), rows)
    beyond = board._rows(Operation.DUMP, name, memory.rows, 1)
    assert board.link.request(beyond)[0] == Outcome.NO_SUCH_ROW


@pytest.mark.parametrize("seed", range(3))
def test_equal_rows_are_sent_once(reader, reader_design, seed):
    """Runs of all lengths among others; few bytes for long ones, and no row beyond."""
    rng = np.random.default_rng(seed)
    board = Board(reader_design, reader.transport())
    name, memory = next(iter(reader_design.memories.items()))
    lengths = rng.choice([1, 2, FEWEST, FEWEST + 1, 9, 30], 200)
    values = rng.integers(1 << min(32, memory.row_bits), size=len(lengths), dtype=np.uint32)
    rows = np.repeat(values, lengths)[: memory.rows - 2, None]
    board.load(name, np.zeros((memory.rows, 1), np.uint32))
    start = int(rng.integers(1, memory.rows - len(rows)))
    board.load(name, rows, start)
    found = board.dump(name, memory.rows)
    np.testing.assert_array_equal(found[start : start + len(rows)], rows)
    assert not found[:start].any() and not found[start + len(rows) :].any()


def test_a_fill_beyond_the_last_row_is_refused(reader, reader_design):
    board = Board(reader_design, reader.transport())
    name, memory = next(iter(reader_design.memories.items()))
    fill = board._rows(Operation.FILL, name, memory.rows - 3, 4)
    row = bytes(board.memories and -(-memory.row_bits // 8))
    assert board.link.request(fill + row)[0] == Outcome.NO_SUCH_ROW


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), max_size=20), st.integers(5, 12))
def test_runs_are_all_rows_in_order(parts, most):
    values, lengths = zip(*parts, strict=True) if parts else ((), ())
    rows = np.repeat(np.array(values, np.uint32), np.array(lengths, int))[:, None]
    found = runs(rows, most)
    assert [row for first, last, _ in found for row in range(first, last)] == [*range(len(rows))]
    for first, last, equal in found:
        assert last > first
        if equal:
            assert FEWEST < last - first <= most and not np.ptp(rows[first:last])


def test_a_block_that_was_not_started_does_nothing(reader, reader_design):
    """Beats wait in their queues, and are accepted after START only."""
    board = Board(reader_design, reader.transport())
    stream = next(iter(reader_design.inputs))
    board.do(RESET)
    board.do(board.write(stream, np.zeros((2, 1), np.uint32)))
    status = board.status(board.do(STATUS))
    assert status.inputs[stream][1] == 0 and status.cycles == status.last == 0
    board.do(START)
    status = board.status(board.do(STATUS))
    assert status.inputs[stream][1] > 0 and status.first > 0


def test_reset_reaches_the_block(reader, reader_design):
    """A block that was stopped in the middle of its work has nothing left to say."""
    board = Board(reader_design, reader.transport())
    p = reader_design.parameters
    stimulus = load_testbench(READER).stimulus(p, None, 60, seed=3)
    (memory,) = stimulus.memories.values()
    board.do(RESET)
    board.load(memory.request, memory.contents)
    longest = np.bincount(stimulus.transaction_of["o"]).argmax()
    commands = np.repeat(stimulus.inputs["command"][longest : longest + 1], 200, axis=0)
    board.do(board.write("command", commands), START)
    before = board.status(board.do(STATUS))
    assert before.inputs["command"][1] > 0 and before.outputs["o"][1] > 0
    assert before.inputs["command"][1] < len(commands) and before.fault is False
    board.do(RESET, START)
    after = board.status(board.do(STATUS))
    assert after.cycles > 20
    assert after.outputs["o"] == (0, 0) and after.memories[memory.request] == (0, 0)


def test_writing_beyond_the_room_is_refused_and_loses_nothing(reader, reader_design):
    board = Board(reader_design, reader.transport())
    stream = next(iter(reader_design.inputs))
    board.do(RESET)
    size, room = board.beat_bytes[stream], board.status(board.do(STATUS)).inputs[stream][0]
    assert room * size <= reader_design.board.stream_bytes
    step = (board.room - 8) // size
    left = room
    while left:
        count = min(step, left)
        board.do(board.write(stream, np.zeros((count, 1), np.uint32)))
        left -= count
    status, _ = board.link.request(board.write(stream, np.zeros((1, 1), np.uint32)))
    assert status == Outcome.NO_ROOM
    assert board.status(board.do(STATUS)).inputs[stream] == (0, 0)


def test_a_reset_in_mid_run_is_seen(reader, reader_design):
    """Power-on resets the link and the block alike; the next reply tells."""
    board = Board(reader_design, reader.transport(patience=2.0))
    board.do(RESET, START)
    reader.process.send_signal(signal.SIGUSR1)
    with pytest.raises(BoardWasReset, match="was reset in mid-run"):
        board.do(STATUS)


def test_a_run_begins_again_after_a_reset(reader, reader_design):
    stimulus = load_testbench(READER).stimulus(reader_design.parameters, None, 30, seed=2)
    resets = []

    def damage(way: str, byte: int) -> bytes:
        resets.append(byte)
        if len(resets) == 700:
            reader.process.send_signal(signal.SIGUSR1)
        return bytes([byte])

    board = Board(reader_design, Noisy(reader.transport(patience=2.0), damage))
    outcome = run_stimulus(board, stimulus, timeout=10**6, drain=100)
    assert outcome.failure is None and len(resets) > 1800
    for name, beats in stimulus.outputs.items():
        np.testing.assert_array_equal(outcome.outputs[name], beats)


def test_a_hang_is_a_failure(reader, reader_design):
    """One beat more is awaited than the block makes."""
    stimulus = load_testbench(READER).stimulus(reader_design.parameters, None, 4, seed=2)
    session = BoardSession(
        Board(reader_design, reader.transport()), stimulus.memories, timeout=3000
    )
    name = next(iter(stimulus.outputs))
    bound = {m.response for m in stimulus.memories.values()}
    inputs = {n: b for n, b in stimulus.inputs.items() if n not in bound}
    outcome = session.step(inputs, {name: len(stimulus.outputs[name]) + 1})
    assert "no transfer for" in outcome.failure


def test_a_memory_of_more_rows_than_the_board_has(reader, reader_design):
    board = Board(reader_design, reader.transport())
    (rows,) = (memory.rows for memory in reader_design.memories.values())
    memory = Memory(np.zeros((rows + 1, 1), np.uint32), "request", "response")
    why = f"words has {rows} rows on the board and needs {rows + 1}: --memory-rows {rows + 1}, "
    with pytest.raises(ParameterError, match=why):
        BoardSession(board, {"words": memory}, timeout=100)


def test_another_build_is_refused(reader):
    other = design_of("stream.sequential_reader", stream_bytes=512)
    with pytest.raises(BoardError, match=r"holds build [0-9a-f]{16}, not .*`python -m hw fpga`"):
        Board(other, reader.transport())


def test_status_bytes(reader, reader_design):
    """The host's and the board's count of them agree, and all are told apart."""
    board = Board(reader_design, reader.transport())
    _, results = board.link.request(STATUS)
    assert len(results) == board.status_bytes
    assert COUNTER_BITS % 8 == 0
