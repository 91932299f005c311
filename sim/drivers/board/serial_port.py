"""A serial port as a transport."""

import os
import stat
import termios
import time

import serial

from sim.core.tools import UnusableFile
from sim.drivers.board.link import BoardError

BAUD = 1_000_000
WRITE_S = 10.0
"""Seconds in which a port must take a packet."""


class NoPort(BoardError, UnusableFile):
    """What the user has named is no serial port."""


class SerialPort:
    """A port of this machine, opened for this process alone.

    :raises BoardError: if it cannot be opened; NoPort if it is no serial port.
    """

    def __init__(self, name: str, baud: int = BAUD, patience: float = 0.5):
        self.name, self.patience = name, patience
        try:
            if not stat.S_ISCHR(os.stat(name).st_mode):
                raise NoPort(f"{name} is not a serial port")
            self._port = serial.Serial(name, baud, timeout=0, write_timeout=WRITE_S, exclusive=True)
            self._port.reset_input_buffer()
        except FileNotFoundError:
            raise NoPort(f"there is no port {name}") from None
        except PermissionError:
            raise BoardError(_forbidden(name)) from None
        except (serial.SerialException, OSError, ValueError, termios.error) as error:
            raise BoardError(_why(name, baud, error)) from None

    def write(self, data: bytes) -> None:
        try:
            self._port.write(data)
        except serial.SerialTimeoutException:
            raise BoardError(
                f"{self.name}: the port took no bytes for {WRITE_S:g} s: nothing at the other end "
                "reads them, or the line waits for a handshake"
            ) from None
        except (serial.SerialException, OSError) as error:
            raise self._gone() from error

    def read(self, timeout: float) -> bytes:
        try:
            self._port.timeout = timeout
            return self._port.read(max(1, self._port.in_waiting))
        except (serial.SerialException, OSError, TypeError) as error:
            raise self._gone() from error

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._port.close()

    def _gone(self) -> BoardError:
        return BoardError(f"{self.name}: the line is gone; was the cable pulled")


def _forbidden(name: str) -> str:
    return f"{name}: permission denied; add yourself to the group that owns it, often dialout"


def _why(name: str, baud: int, error: Exception) -> str:
    text = str(error)
    if "Permission denied" in text:
        return _forbidden(name)
    if "lock" in text or "busy" in text:
        return f"{name} is in use by another program"
    if isinstance(error, ValueError):
        return f"{name} does not support {baud} baud"
    return f"{name} is not a serial port"
