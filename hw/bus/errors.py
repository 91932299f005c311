"""What can go wrong in a run of a device, as its register ``error`` says it."""

from amaranth.lib import enum


class ErrorCode(enum.Enum, shape=8):
    """Why a run ended early, in the field ``code`` of the register ``error``."""

    NONE = 0
    MISALIGNED_BASE = 1
    ZERO_BASE = 2
    NO_BEATS = 3
    STARTED_WHILE_RUNNING = 4
    ADDRESS_TOO_LARGE = 5
    READ_SLAVE_ERROR = 6
    READ_DECODE_ERROR = 7
    WRITE_SLAVE_ERROR = 8
    WRITE_DECODE_ERROR = 9
    MISALIGNED_DESCRIPTOR = 10
    RESET_WHILE_RUNNING = 11


ERROR_WORDS = {
    ErrorCode.NONE: "No error.",
    ErrorCode.MISALIGNED_BASE: "The base of a stream or memory is no multiple of its beats' bytes.",
    ErrorCode.ZERO_BASE: "The base of a stream that moves beats, or of a memory, is 0.",
    ErrorCode.NO_BEATS: "No stream has beats to move.",
    ErrorCode.STARTED_WHILE_RUNNING: "Start was written during a run, which goes on.",
    ErrorCode.ADDRESS_TOO_LARGE: "An address does not fit the bus.",
    ErrorCode.READ_SLAVE_ERROR: "A read was answered with SLVERR.",
    ErrorCode.READ_DECODE_ERROR: "A read was answered with DECERR: nothing is at the address.",
    ErrorCode.WRITE_SLAVE_ERROR: "A write was answered with SLVERR.",
    ErrorCode.WRITE_DECODE_ERROR: "A write was answered with DECERR: nothing is at the address.",
    ErrorCode.MISALIGNED_DESCRIPTOR: "The address of a descriptor is no multiple of 16.",
    ErrorCode.RESET_WHILE_RUNNING: "Software reset the block in mid-run; the bus was drained.",
}
