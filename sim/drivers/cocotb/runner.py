"""Build and run the cocotb testbench of a design in Verilator or Icarus."""

import contextlib
import errno
import fcntl
import hashlib
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from cocotb_tools.runner import Icarus, Verilator

from golden.files import replacing
from sim.core import cache, payload, processes, tools
from sim.core.design import Design
from sim.core.memory import FASTEST, timing_of
from sim.core.stimulus import Outcome, Stimulus
from sim.core.tools import (
    PACKAGES,
    SIMULATORS,
    TIMEOUT_S,
    ToolError,
    build_log,
    compiled_folder,
    compiling,
    environment,
    require_icarus,
    versions,
)
from sim.drivers.harness.verilated import (
    FEW_FILES,
    NO_DFG,
    keep_copies,
    large_design_arguments,
    optimisation,
)

__all__ = ["SIMULATORS", "CocotbSimulation"]

ICARUS_DUMP = """\
module senbazuru_dump;
  reg [8191:0] path;
  initial if ($value$plusargs("dumpfile_path=%s", path)) begin
    $dumpfile(path);
    $dumpvars(0, TOP);
  end
endmodule
"""
LZ4_ADVICE = (
    "Verilator needs lz4.h to write waves: install it with apt-get install liblz4-dev, "
    "or use --simulator icarus"
)


class _Supervised:
    """cocotb's runner, whose programs end with this process or when `stuck` says so."""

    stuck = None
    env: dict[str, str]

    def _execute_cmds(self, cmds, cwd, stdout=None):
        for command in cmds:
            stderr = None if stdout is None else processes.STDOUT
            run = processes.run(
                command, cwd=cwd, env=self.env, stdout=stdout, stderr=stderr, stuck=self.stuck
            )
            if run.returncode:
                raise RuntimeError(f"{command[0]} ended with status {run.returncode}")


class _Icarus(_Supervised, Icarus):
    pass


class _FastVerilator(_Supervised, Verilator):
    """cocotb's runner without its request to keep every signal visible.

    That keeps Verilator from optimising at all; the testbench touches only ports, which a control
    file makes public.
    """

    def __init__(self, runtime: Path):
        super().__init__()
        self._runtime = runtime

    def _build_command(self):
        translate, make = super()._build_command()
        translate = [argument for argument in translate if argument != "--public-flat-rw"]
        # Verilator's own library, compiled once for all designs: most of a small build's time.
        # Copied after the makefile was written, so that make takes it for up to date.
        copies = [["cp", str(file), str(self.build_dir)] for file in self._runtime.glob("*.o")]
        return [translate, *copies, make]


class CocotbSimulation:
    """A design compiled for one simulator, ready to run stimuli.

    timeout
        Wall-clock seconds without a simulated cycle after which a run is ended, such as in a loop
        of combinational logic.
    """

    testbench = f"{__package__}.testbench"
    """Module of the test inside the simulator."""

    def __init__(
        self, design: Design, simulator: str, *, waves: bool = False, timeout: float = TIMEOUT_S
    ):
        tools.require_cocotb()
        if simulator == "icarus":
            require_icarus()
        elif waves and not Path("/usr/include/lz4.h").exists():
            raise ToolError(LZ4_ADVICE)
        self._design = design
        self._simulator = simulator
        self._waves = waves
        self._timeout = timeout
        self.folder = self._build()

    def _runner(self):
        return _Icarus() if self._simulator == "icarus" else _FastVerilator(self._runtime_folder())

    def _control(self) -> str:
        return _ports_control(self._design)

    def _runtime_folder(self) -> Path:
        key = hashlib.sha256((versions() + repr(self._arguments())).encode()).hexdigest()[:20]
        return compiled_folder() / f"cocotb_runtime_{key}"

    def _arguments(self) -> list[str]:
        if self._simulator == "icarus":
            return ["-s", "senbazuru_dump"] if self._waves else []
        trace = ["--trace-fst", "-LDFLAGS", "-llz4"] if self._waves else []
        return ["-Wno-fatal", "-Wno-lint", "-O3", NO_DFG, *FEW_FILES, *trace]

    def _build(self) -> Path:
        """The folder of the compiled simulation, built unless the cache has it."""
        design = self._design
        arguments = [*design.standard(self._simulator), *self._arguments()]
        control = self._control()
        key = design.digest(
            "cocotb", versions(), ICARUS_DUMP, repr(arguments), control, *optimisation(design)
        )
        folder = compiled_folder() / f"{self._simulator}_{design.module[:60]}_{key}"
        finished = folder / "finished"
        folder.mkdir(parents=True, exist_ok=True)
        cache.use(folder)
        # Makefiles hold absolute paths, so the build happens in place and others wait for it.
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                compiling(f"{design.module} for cocotb in {self._simulator}")
                self._compile(folder, arguments, control)
                if self._simulator == "icarus":
                    _check_complete(folder / "sim.vvp")
                else:
                    keep_copies(folder.glob("verilated*.o"), self._runtime_folder())
                finished.touch()
                cache.prune_now_and_then()
        return folder

    def _compile(self, folder: Path, arguments: list[str], control: str) -> None:
        design = self._design
        source = folder / "design.v"
        source.write_text(design.verilog)
        sources = [source]
        if self._simulator == "icarus" and self._waves:
            sources.append(folder / "dump.v")
            sources[1].write_text(ICARUS_DUMP.replace("TOP", design.module))
        if self._simulator == "verilator":
            ports = folder / "ports.vlt"
            ports.write_text(control)
            arguments = [*arguments, str(ports), *large_design_arguments(design, folder)]
        log = folder / "build.log"
        with _environment(optimisation(design)):
            try:
                self._runner().build(
                    sources=sources,
                    hdl_toplevel=design.module,
                    build_dir=folder,
                    build_args=arguments,
                    timescale=("1ns", "1ps"),
                    # cocotb's own dump module for Icarus is SystemVerilog.
                    waves=self._waves and self._simulator == "verilator",
                    always=True,
                    log_file=log,
                )
            except RuntimeError:
                text = log.read_text() if log.exists() else ""
                kept = build_log(f"{self._simulator}_{design.module}", text)
                raise ToolError(
                    f"{self._simulator} could not compile {design.module}; its output is in {kept}"
                ) from None

    def run(
        self,
        stimuli: Sequence[tuple[Stimulus, str]],
        seed: int,
        waves: Path | None = None,
        timing=FASTEST,
    ) -> list[Outcome]:
        """Run stimuli under stall patterns, each from reset, in one run of the simulator.

        waves
            Where to put the waves of it all, for a simulation compiled with them.
        timing
            Timing of the stimuli's memories, as in :meth:`sim.drivers.harness.runner.Harness.run`,
            or a list with one for each stimulus.
        """
        timings = timing if isinstance(timing, list) else [timing] * len(stimuli)
        descriptions = [
            self._describe(stimulus, stall, seed, timing)
            for (stimulus, stall), timing in zip(stimuli, timings, strict=True)
        ]
        with tempfile.TemporaryDirectory(prefix="senbazuru_") as temporary:
            scratch = Path(temporary)
            results = scratch / "results.xml"
            try:
                self._run(scratch, descriptions, seed)
            except processes.Stuck:
                said = f"no cycle was simulated for {self._timeout:g} s: is there an endless loop?"
                paths = [scratch / f"outcome_{number}" for number in range(len(stimuli))]
                reasons = [None if path.exists() else said for path in paths]
            else:
                if not results.exists():
                    # Whatever it is, what cannot even start must not be left in the cache.
                    (self.folder / "finished").unlink(missing_ok=True)
                reasons = reasons_of(results, len(stimuli), scratch / "run.log")
            if waves is not None and (scratch / "results.xml").exists():
                self._keep_waves(scratch, waves)
            return [
                self._outcome(scratch / f"outcome_{number}", stimulus, reason)
                for number, ((stimulus, _), reason) in enumerate(zip(stimuli, reasons, strict=True))
            ]

    def _describe(self, stimulus: Stimulus, stall: str, seed: int, timing) -> dict:
        """A stimulus as the testbench inside the simulator wants it."""
        design = self._design
        ports = {
            name: m.port(design.outputs, design.inputs) for name, m in stimulus.memories.items()
        }
        timings = {name: timing_of(timing, name) for name in stimulus.memories}
        slowest = max((t.latency[1] + t.interval for t in timings.values()), default=0)
        return {
            "inputs": {name: payload.to_ints(beats) for name, beats in stimulus.inputs.items()},
            "expected": {name: len(beats) for name, beats in stimulus.outputs.items()},
            "memories": {
                name: (m, ports[name], timings[name]) for name, m in stimulus.memories.items()
            },
            "stall": stall,
            "seed": seed,
            "clocked": design.clocked,
            "timeout_cycles": design.timeout_cycles + slowest,
            "drain_cycles": design.drain_cycles + slowest,
        }

    def _run(self, scratch: Path, descriptions: list[dict], seed: int) -> None:
        stimuli = scratch / "stimuli"
        stimuli.write_bytes(pickle.dumps(descriptions))
        arguments, plusargs = self._wave_arguments(scratch)
        alive, started, runner = scratch / "alive", time.time(), self._runner()
        runner.stuck = lambda: processes.silent_for(alive, started) > self._timeout
        # The runner raises, exits or returns for failing tests alike: the results file decides.
        with _environment(), contextlib.suppress(RuntimeError, SystemExit):
            runner.test(
                test_module=self.testbench,
                hdl_toplevel=self._design.module,
                hdl_toplevel_lang="verilog",
                build_dir=self.folder,
                test_dir=scratch,
                results_xml=str(scratch / "results.xml"),
                log_file=scratch / "run.log",
                waves=self._waves,
                test_args=arguments,
                plusargs=plusargs,
                extra_env={
                    "SENBAZURU_STIMULI": str(stimuli),
                    "SENBAZURU_ALIVE": str(alive),
                    "COCOTB_RANDOM_SEED": str(seed),
                    "COCOTB_LOG_LEVEL": "WARNING",
                    # Loads pytest's plugins, which takes longer than most runs; nothing in the
                    # testbench is written for it.
                    "COCOTB_REWRITE_ASSERTION_FILES": "",
                },
            )

    def _outcome(self, path: Path, stimulus: Stimulus, reason: str | None) -> Outcome:
        """What a stimulus' test wrote, or nothing but the reason it failed."""
        shapes = {name: self._design.outputs[name] for name in stimulus.outputs}
        if reason is not None or not path.exists():
            nothing = {name: payload.from_ints([], shape) for name, shape in shapes.items()}
            reason = reason or "the simulator ended without a result"
            return Outcome(nothing, {name: np.zeros(0, np.int64) for name in nothing}, 0, 0, reason)
        result = pickle.loads(path.read_bytes())
        return Outcome(
            outputs={
                name: payload.from_ints(result["received"][name], shape)
                for name, shape in shapes.items()
            },
            cycles_of={
                name: np.array(cycles, np.int64) for name, cycles in result["cycles"].items()
            },
            cycles=result["complete"],
            simulated=result["simulated"],
            failure=result["failure"],
            memories=result["memories"],
        )

    def _wave_arguments(self, scratch: Path) -> tuple[list[str], list[str]]:
        if not self._waves:
            return [], []
        if self._simulator == "icarus":
            return [], [f"+dumpfile_path={scratch / 'waves.fst'}"]
        return ["--trace-file", str(scratch / "waves.fst")], []

    def _keep_waves(self, scratch: Path, target: Path) -> None:
        found = [*scratch.glob("*.fst"), *scratch.glob("*.vcd")]
        if not found:
            raise ToolError(f"{self._simulator} wrote no waves")
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(found[0], "rb") as source, replacing(target) as file:
            shutil.copyfileobj(source, file)


def _ports_control(design: Design) -> str:
    """Verilator control file that keeps the top's ports visible to cocotb, and nothing else."""
    names = [f"{s}__{part}" for s in (*design.inputs, *design.outputs) for part in PARTS]
    if design.clocked:
        names += ["clk", "rst"]
    lines = [f'public_flat_rw -module "{design.module}" -var "{name}"' for name in names]
    return "`verilator_config\n" + "\n".join(lines) + "\n"


PARTS = ("payload", "valid", "ready")


def _check_complete(program: Path) -> None:
    """Icarus does not notice a disk that fills up while it writes; its output ends too early."""
    with open(program, "rb") as file:
        file.seek(max(0, program.stat().st_size - 4096))
        if b"# The file index is used" not in file.read():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(program))


def reasons_of(results: Path, count: int, log: Path) -> list[str | None]:
    """Why each of `count` tests failed, None where it passed."""
    if not results.exists():
        lines = log.read_text().split("\n") if log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return [f"the simulator ended without results ({last})"] * count
    try:
        cases = list(ElementTree.parse(results).iter("testcase"))
    except ElementTree.ParseError:
        return ["the simulator's results are damaged: is a disk full?"] * count
    reasons = []
    for case in cases:
        found = [case.find(kind) for kind in ("failure", "error", "skipped")]
        failure = next((element for element in found if element is not None), None)
        reasons.append(None if failure is None else failure.get("message") or "the test failed")
    return reasons + ["the test did not run"] * (count - len(cases))


@contextlib.contextmanager
def _environment(make_variables: Sequence[str] = ()):
    """The environment that cocotb's runner takes from the process, put back afterwards."""
    before = dict(os.environ)
    os.environ.update(environment())
    os.environ["PYTHONPATH"] = str(PACKAGES)
    os.environ["MAKEFLAGS"] = " ".join([os.environ["MAKEFLAGS"], *make_variables])
    # The runner fails differently under pytest; here the results file decides in every case.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
