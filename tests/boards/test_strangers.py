"""Devices at a port that are no board: each ends in one sentence."""

import os
import re
import threading

import numpy as np
import pytest

from hw.boards.protocol import VERSION, Operation
from sim.core.stimulus import Outcome
from sim.drivers.board import serial_port
from sim.drivers.board.board import RUNNING, Board
from sim.drivers.board.link import LONGEST, BoardError, Deframer, Repairs, frame
from sim.drivers.board.run import run_stimulus
from sim.drivers.board.serial_port import SerialPort
from sim.drivers.run import load_testbench
from tests.boards.test_board import READER

PACKETS = 3000
"""Requests after which a conversation with a stranger counts as endless."""

AFTER = {Operation.RESET: 0, Operation.START: RUNNING}
"""Status byte after an operation."""


class Device:
    """A transport to a device that `answer` makes of each request; silence takes no time."""

    name, patience = "port", 1.0

    def __init__(self, answer):
        self._answer, self._waiting, self._time, self.requests = answer, b"", 0.0, 0

    def write(self, data: bytes) -> None:
        self.requests += 1
        assert self.requests < PACKETS, "the host never ends"
        self._waiting += self._answer(data)

    def read(self, timeout: float) -> bytes:
        data, self._waiting = self._waiting, b""
        self._time += 1e-3 if data else timeout
        return data

    def now(self) -> float:
        return self._time

    def close(self) -> None:
        pass


def body(request: bytes) -> bytes:
    (only,) = Deframer(Repairs()).feed(request)
    return only


def replies(status: int, results: bytes):
    return lambda request: frame(body(request)[:1] + bytes([status]) + results)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda request: request, "the device at port echoes: not a Senbazuru board"),
        (replies(0, b""), "the device at port echoes: not a Senbazuru board"),
        (replies(5, b""), "the device at port does not tell its status: not a Senbazuru board"),
        (replies(0, b"\x63"), f"port: the board speaks version 99 of the protocol, not {VERSION}"),
        (
            replies(0, bytes([VERSION, 1, 2])),
            "port: a reply of 3 bytes is too short: no Senbazuru board, or one of another version",
        ),
    ],
)
def test_what_does_not_tell_its_status(reader_design, answer, sentence):
    with pytest.raises(BoardError) as error:
        Board(reader_design, Device(answer))
    assert str(error.value) == sentence


def whole_status(design, filling: bytes) -> bytes:
    """The results of STATUS that a board of this build tells, its counts from `filling`."""
    return bytes([VERSION]) + design.build.to_bytes(8, "little") + filling


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (99, "refused an operation: 99 is none of its reasons: no Senbazuru board"),
        (2, "refused an operation: a stream had no room"),
    ],
)
def test_an_outcome_that_no_board_knows(reader_design, status, why):
    told = iter([0])
    results = whole_status(reader_design, bytes(80))

    def answer(request: bytes) -> bytes:
        return replies(next(told, status), results)(request)

    board = Board(reader_design, Device(answer))
    with pytest.raises(BoardError, match=why):
        board.do(b"\x01")


def test_a_count_of_cycles_that_stands_still(reader_design):
    """The host would wait without end."""
    stimulus = load_testbench(READER).stimulus(reader_design.parameters, None, 4, seed=2)
    state = 0

    def stands_still(request: bytes) -> bytes:
        nonlocal state
        state = AFTER.get(body(request)[1], state)
        return replies(state, whole_status(reader_design, bytes(200)))(request)

    board = Board(reader_design, Device(stands_still))
    with pytest.raises(BoardError, match="count of cycles stands still"):
        run_stimulus(board, stimulus, timeout=1000, drain=10)


def stranger(rng, design):
    """A device that is right, cut short, an echo, noise or any frame, each at random."""
    size = 200
    state = 0

    def answer(request: bytes) -> bytes:
        nonlocal state
        asked = body(request)
        state = AFTER.get(asked[1], state)
        right = frame(
            asked[:1] + bytes([state]) + whole_status(design, rng.bytes(int(rng.integers(size))))
        )
        any_frame = asked[:1] + rng.bytes(int(rng.integers(1, 40)))
        choice = rng.choice(6, p=[0.72, 0.06, 0.06, 0.05, 0.05, 0.06])
        return [
            right,
            right[: int(rng.integers(len(right)))],
            request,
            rng.bytes(int(rng.integers(60))),
            frame(any_frame),
            right + request[:5],
        ][choice]

    return answer


def test_strangers_end_in_one_sentence(reader_design):
    """Random, truncated and echoed bytes: an error of the board, or a run that failed."""
    stimulus = load_testbench(READER).stimulus(reader_design.parameters, None, 4, seed=2)
    said = set()
    for seed in range(120):
        device = Device(stranger(np.random.default_rng(seed), reader_design))
        try:
            outcome = run_stimulus(Board(reader_design, device), stimulus, timeout=1000, drain=10)
            assert isinstance(outcome, Outcome)
        except BoardError as error:
            assert str(error).startswith(("port: ", "the device at port ")), error
            said.add(re.sub(r"\d+", "n", str(error)))
    assert len(said) > 4, said


def test_noise_is_no_packet_and_is_not_kept():
    """An endless frame is dropped, and a good one behind it is found."""
    rng, repairs = np.random.default_rng(1), Repairs()
    deframer = Deframer(repairs)
    noise = rng.integers(0xC0, size=3 * LONGEST).astype(np.uint8).tobytes()
    found = [one for at in range(0, len(noise), 4096) for one in deframer.feed(noise[at:][:4096])]
    assert not found and repairs.damaged >= 2
    good = b"\x01\x00good"
    assert deframer.feed(b"\xc0" + frame(good)) == [good]


@pytest.fixture
def terminal():
    """A pseudo-terminal: the far end, and the name of its port."""
    master, slave = os.openpty()
    yield master, os.ttyname(slave)
    os.close(slave)
    os.close(master)


def test_the_command_at_a_port_that_echoes(run, terminal):
    far_end, port = terminal

    def echo() -> None:
        while data := os.read(far_end, 4096):
            os.write(far_end, data)
            if b"stop" in data:
                return

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    # Four cycles a bit, as of the design that is there already.
    command = f"run stream.sequential_reader --preset first --clock 4 --board {port} --vectors 2"
    status, out, err = run(command)
    with open(port, "wb", buffering=0) as file:
        file.write(b"stop")
    thread.join(5)
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == f"error: the device at {port} echoes: not a Senbazuru board"


def test_a_port_that_takes_no_bytes(terminal, monkeypatch):
    """Nobody reads at the far end."""
    monkeypatch.setattr(serial_port, "WRITE_S", 0.05)
    port = SerialPort(terminal[1])
    with pytest.raises(BoardError, match=r"the port took no bytes for 0\.05 s: nothing at the"):
        for _ in range(100):
            port.write(bytes(4096))
    port.close()
