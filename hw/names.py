"""Names of signals on Python 3.13 and later, the same as on earlier ones.

Amaranth 0.5 names a signal after the variable that it is stored in, which it reads from the
caller's bytecode. Python 3.13 joins a store with the instruction that follows, which Amaranth does
not know: without this, most of a Verilog file's wires would have numbers for names.
"""

import sys
from opcode import opname
from types import CodeType

from amaranth import tracer

CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
JOINED = ("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")
"""What stores in the variable of the upper four bits of its argument, and does more."""

_usual = tracer.get_var_name


def install() -> None:
    """Let Amaranth read such bytecode; more than once is as once."""
    tracer.get_var_name = _get_var_name


def _get_var_name(depth: int = 2, *default, **named) -> str:
    frame = sys._getframe(depth)
    name = stored_in(frame.f_code, frame.f_lasti)
    return _usual(depth + 1, *default, **named) if name is None else name


def stored_in(code: CodeType, call: int) -> str | None:
    """The variable in which a joined instruction stores a call's result; None for another one.

    call
        Place of the call in the bytecode.
    """
    text = code.co_code

    def at(index: int) -> str:
        return opname[text[index]] if 0 <= index < len(text) else ""

    while at(call) == "CACHE":
        call -= 2
    following = call + 2
    while at(following) == "CACHE":
        following += 2
    if at(call) not in CALLS or at(following) not in JOINED:
        return None
    return code.co_varnames[text[following + 1] >> 4]
