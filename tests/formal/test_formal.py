"""The proof runner and the solver front end: each status can occur, and none by accident."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cover, Elaboratable, Fragment, Module, Signal
from amaranth.lib import memory

from sim.checks.formal import proof as formal
from sim.checks.formal.proof import prove
from sim.checks.formal.solver import commands
from sim.checks.formal.specs import Internals, reset_first


class Counter(Elaboratable):
    """Counts to `top` and starts again."""

    def __init__(self, top=5, init=0, reset_less=False):
        self.count = Signal(4, init=init, reset_less=reset_less)
        self._top = top

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.count.eq(self.count + 1)
        with m.If(self.count == self._top):
            m.d.sync += self.count.eq(0)
        return m


class Below(Elaboratable):
    def __init__(self, dut, limit, reached=None):
        self._dut, self._limit, self._reached = dut, limit, reached

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = self._dut
        first = reset_first(m)
        with m.If(~first):
            m.d.comb += Assert(self._dut.count <= self._limit, "above the limit")
        if self._reached is not None:
            m.d.comb += Cover(~first & (self._dut.count == self._reached), "value reached")
        return m


@pytest.mark.parametrize("solver", ["bitwuzla", "yices"])
def test_solvers_agree(solver, tmp_path):
    def status(limit, mode):
        spec = Below(Counter(), limit)
        return prove(spec, "counter", mode, 8, solver, folder=tmp_path).status

    assert status(5, "prove") == "PASS"
    assert status(4, "bmc") == "FAIL"


def test_a_failure_names_the_assertion_and_has_a_trace(tmp_path):
    result = prove(Below(Counter(), 4), "counter", "bmc", 8, folder=tmp_path)
    assert len(result.failures) == 1
    assert result.failures[0].startswith("Assert failed: above the limit")
    assert "test_formal.py:" in result.failures[0]
    assert result.trace.stat().st_size > 0
    assert str(result).startswith("FAIL after")


def test_an_open_induction_is_unknown(tmp_path):
    result = prove(Below(Counter(), 12), "counter", "prove", 1, folder=tmp_path)
    assert result.status == "UNKNOWN"


def test_an_unreachable_cover_fails(tmp_path):
    assert prove(Below(Counter(), 5, 5), "reached", "cover", 8, folder=tmp_path).status == "PASS"
    result = prove(Below(Counter(), 5, 6), "unreached", "cover", 8, folder=tmp_path)
    assert result.status == "FAIL"
    assert result.failures[0].startswith("Unreached cover statement: value reached")


def test_registers_power_up_with_any_value(tmp_path):
    """A design that needs an initial value where it has no reset is refuted."""
    result = prove(Below(Counter(reset_less=True), 5), "power_up", "bmc", 4, folder=tmp_path)
    assert result.status == "FAIL", result


class Row(Elaboratable):
    """Outputs a memory row that is never written."""

    def __init__(self):
        self.count = Signal(4)

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(shape=4, depth=2, init=[])
        read = rows.read_port(domain="comb")
        write = rows.write_port()
        m.d.comb += [self.count.eq(read.data), write.en.eq(0), write.addr.eq(AnySeq(1))]
        return m


def test_memories_power_up_with_any_content(tmp_path):
    result = prove(Below(Row(), 5), "power_up_rows", "bmc", 4, folder=tmp_path)
    assert result.status == "FAIL", result


def test_internals_say_what_is_missing():
    internals = Internals(Fragment.get(Row(), None))
    with pytest.raises(KeyError, match=r"nothing assigns a signal named rows\.level"):
        internals.signal("rows.level")


def running_in(folder):
    """Command lines of the processes whose working folder lies below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
def test_a_proof_out_of_time_leaves_nothing_running(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(
            prove, Below(Counter(), 5), "endless", "bmc", 10**6, seconds=3, folder=tmp_path
        )
        # Seen while it runs, so that its absence afterwards means something.
        assert wait_for(
            lambda: any("sim.checks.formal.solver" in line for line in running_in(tmp_path))
        )
        result = endless.result()
    assert result.status == "TIMEOUT", result
    assert wait_for(lambda: not running_in(tmp_path)), running_in(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc")
def test_a_command_that_ignores_the_limit_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(formal, "_GRACE", 0.5)
    command = ["sh", "-c", "trap '' TERM; sleep 60 & wait; wait"]
    run = formal._run(command, tmp_path, dict(os.environ), 0.5)
    assert run.returncode == 128 + signal.SIGKILL
    assert wait_for(lambda: not running_in(tmp_path)), running_in(tmp_path)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mode": "live"}, "mode must be one of prove, bmc, cover, not 'live'"),
        ({"solver": "abc"}, "solver must be one of bitwuzla, yices, not 'abc'"),
    ],
)
def test_arguments(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=f"^{message}$"):
        prove(None, "nothing", folder=tmp_path, **arguments)


SCRIPT = """\
; a comment, then scopes that are left and asked again
(set-logic QF_BV)
(declare-fun |x (1| () (_ BitVec 4))
(assert (bvult |x (1| #x3))
(push 1)
(assert
  (bvugt |x (1| #x2))
(check-sat)
(pop 1)
(check-sat)
(push 1)
(assert (bvugt |x (1| #x1))
(check-sat)
(define-fun y () (_ BitVec 4) (bvadd |x (1| #x1))
(get-value (y))
(exit)
(check-sat)
"""


def test_solver_keeps_scopes_and_answers_questions():
    command = [sys.executable, "-m", "sim.checks.formal.solver"]
    run = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["unsat", "sat", "sat", "((y", "#b0011))"]


def test_commands_are_cut_at_closed_parentheses():
    lines = ["; note\n", "(a\n", " |)| b)\n", "\n", "(c)\n", "(d"]
    assert list(commands(lines)) == ["(a\n |)| b)", "(c)"]
