"""The cable to a simulated board: silence, other rates, ports that cannot be used, options."""

import dataclasses
import os
import threading
import time

import pytest
import serial

from hw.boards.protocol import Operation
from sim.drivers.board.board import Board
from sim.drivers.board.link import BoardError, Link
from sim.drivers.board.serial_port import SerialPort
from sim.drivers.board.simulated import DIVISOR, SimulatedBoard

STATUS, RESET, START = (bytes([op]) for op in (Operation.STATUS, Operation.RESET, Operation.START))


def test_a_pulled_cable(reader, reader_design):
    board = Board(reader_design, reader.transport())
    threading.Timer(0.2, reader.process.kill).start()
    with pytest.raises(BoardError, match="the line is gone|does not answer"):
        while True:
            board.do(STATUS)


@pytest.mark.parametrize(
    ("answer", "seen"), [(b"", "nothing came"), (b"\xc0\x55\xaa\xc0", "damaged")]
)
def test_silence_and_garbage(answer, seen):
    """No board, or another baud rate."""

    class Line:
        name, patience = "port", 0.01

        def now(self) -> float:
            return time.monotonic()

        def write(self, data: bytes) -> None:
            pass

        def read(self, timeout: float) -> bytes:
            return answer

        def close(self) -> None:
            pass

    with pytest.raises(BoardError, match=f"does not answer: .*{seen}"):
        Link(Line()).request(STATUS)


@pytest.mark.parametrize("divisor", [DIVISOR + 1, 2 * DIVISOR + 1])
def test_another_baud_rate(reader_design, divisor):
    """The far end is slower than the board, a little or far."""
    link = dataclasses.replace(reader_design.board, divisor=divisor)
    board = SimulatedBoard(dataclasses.replace(reader_design, board=link))
    try:
        port = board.transport()
        port.patience = 0.1
        with pytest.raises(BoardError, match="does not answer: .*is the baud rate right"):
            Board(reader_design, port)
        port.close()
    finally:
        board.close()


def test_a_port_in_use(reader):
    port = reader.transport()
    with pytest.raises(BoardError, match="is in use by another program"):
        SerialPort(reader.port)
    port.close()


def test_a_port_without_permission(reader, monkeypatch):
    """pyserial's own error; nobody is refused who runs the tests as root."""

    def refuse(name, *arguments, **options):
        raise serial.SerialException(
            13, f"could not open port {name}: [Errno 13] Permission denied: '{name}'"
        )

    monkeypatch.setattr(serial, "Serial", refuse)
    with pytest.raises(BoardError, match="permission denied; add yourself to the group"):
        SerialPort(reader.port)


def test_ports_that_are_none(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for name, why in (
        (str(tmp_path / "nothing"), "there is no port"),
        (str(file), "is not a serial port"),
        (os.devnull, "is not a serial port"),
    ):
        with pytest.raises(BoardError, match=why):
            SerialPort(name)


def test_command(run):
    status, out, err = run("run stream.sequential_reader --board simulated --vectors 5")
    assert status == 0 and "10 transactions, 0 mismatches" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--board /dev/none", "there is no port /dev/none"),
        ("--baud 9600", "--baud needs --board"),
        ("--memory sdram", "--memory sdram needs --board"),
        ("--board simulated --stall none", "--board and --stall do not go together"),
        (
            "--board simulated --memory latency=3",
            "--board has --memory block or sdram, not 'latency=3'",
        ),
    ],
)
def test_wrong_options(run, options, message):
    status, out, err = run(f"run stream.sequential_reader {options}")
    assert status == 2 and not out
    assert err.splitlines()[-1] == f"error: {message}"
