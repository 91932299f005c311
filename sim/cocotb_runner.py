"""Build and run the cocotb bench of a design in Verilator or Icarus."""

import contextlib
import fcntl
import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cocotb_tools.check_results import get_results
from cocotb_tools.runner import Icarus, Verilator

from sim import payload
from sim.bench import Job, Played
from sim.design import Design
from sim.memory import FASTEST, timing_of
from sim.tools import (
    ROOT,
    ToolError,
    build_log,
    compiled_folder,
    environment,
    require_icarus,
    verilator,
)
from sim.verilated import large_design_arguments, optimisation

SIMULATORS = ("verilator", "icarus")
LZ4_ADVICE = (
    "Verilator needs lz4.h to write waves: install it with apt-get install liblz4-dev, "
    "or use --simulator icarus"
)


class _FastVerilator(Verilator):
    """cocotb's runner without its request to keep every signal visible.

    That keeps Verilator from optimising at all; the bench touches only ports, which a control file
    makes public.
    """

    def _build_command(self):
        return [
            [a for a in command if a != "--public-flat-rw"] for command in super()._build_command()
        ]


class CocotbSimulation:
    """A design compiled for one simulator; `play` runs one job in it."""

    def __init__(self, design: Design, simulator: str, *, waves: bool = False):
        if simulator == "icarus":
            require_icarus()
        elif waves and not Path("/usr/include/lz4.h").exists():
            raise ToolError(LZ4_ADVICE)
        self._design = design
        self._simulator = simulator
        self._waves = waves
        self._folder = self._build()

    def _runner(self):
        return Icarus() if self._simulator == "icarus" else _FastVerilator()

    def _arguments(self) -> list[str]:
        if self._simulator == "icarus":
            # With a later standard Icarus takes Amaranth's `always @*` for always_comb and leaves
            # X at time 0 on logic whose inputs never change.
            return ["-g2005"]
        trace = ["--trace-fst", "-LDFLAGS", "-llz4"] if self._waves else []
        return ["-Wno-fatal", "-Wno-lint", "-O3", *trace]

    def _build(self) -> Path:
        """The folder of the compiled simulation, built unless the cache has it."""
        design, arguments = self._design, self._arguments()
        control = _ports_control(design)
        key = design.digest(
            "cocotb", self._simulator, repr(arguments), control, *optimisation(design)
        )
        folder = compiled_folder() / f"{self._simulator}_{design.module[:60]}_{key}"
        finished = folder / "finished"
        folder.mkdir(parents=True, exist_ok=True)
        # Makefiles hold absolute paths, so the build happens in place and others wait for it.
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                self._compile(folder, arguments, control)
                finished.touch()
        return folder

    def _compile(self, folder: Path, arguments: list[str], control: str) -> None:
        design = self._design
        source = folder / "design.v"
        source.write_text(design.verilog)
        if self._simulator == "verilator":
            ports = folder / "ports.vlt"
            ports.write_text(control)
            arguments = [*arguments, str(ports), *large_design_arguments(design, folder)]
        log = folder / "build.log"
        with _environment(optimisation(design)):
            try:
                self._runner().build(
                    sources=[source],
                    hdl_toplevel=design.module,
                    build_dir=folder,
                    build_args=arguments,
                    timescale=("1ns", "1ps"),
                    waves=self._waves,
                    always=True,
                    log_file=log,
                )
            except RuntimeError:
                text = log.read_text() if log.exists() else ""
                kept = build_log(f"{self._simulator}_{design.module}", text)
                raise ToolError(
                    f"{self._simulator} could not compile {design.module}; its output is in {kept}"
                ) from None

    def play(
        self, job: Job, stall: str, seed: int, waves: Path | None = None, timing=FASTEST
    ) -> Played:
        """Play one job, its memories with `timing` as in :meth:`sim.harness.Harness.play`."""
        design = self._design
        ports = {name: m.port(design.outputs, design.inputs) for name, m in job.memories.items()}
        timings = [timing_of(timing, name) for name in job.memories]
        slowest = max((t.latency[1] + t.interval for t in timings), default=0)
        description = {
            "inputs": {name: payload.to_ints(beats) for name, beats in job.inputs.items()},
            "expected": {name: len(beats) for name, beats in job.outputs.items()},
            "memories": {
                name: (m, ports[name], timing_of(timing, name)) for name, m in job.memories.items()
            },
            "stall": stall,
            "seed": seed,
            "clocked": design.clocked,
            "patience": design.patience + slowest,
            "settle": design.settle + slowest,
        }
        with tempfile.TemporaryDirectory(prefix="senbazuru_") as scratch:
            scratch = Path(scratch)
            job_file, played_file = scratch / "job.pickle", scratch / "played.pickle"
            job_file.write_bytes(pickle.dumps(description))
            log, results = scratch / "run.log", scratch / "results.xml"
            arguments, plusargs = self._wave_arguments(scratch)
            with _environment():
                failed = False
                try:
                    self._runner().test(
                        test_module="sim.cocotb_bench",
                        hdl_toplevel=design.module,
                        hdl_toplevel_lang="verilog",
                        build_dir=self._folder,
                        test_dir=scratch,
                        results_xml=str(results),
                        log_file=log,
                        waves=self._waves,
                        test_args=arguments,
                        plusargs=plusargs,
                        extra_env={
                            "SENBAZURU_JOB": str(job_file),
                            "SENBAZURU_PLAYED": str(played_file),
                            "COCOTB_RANDOM_SEED": str(seed),
                            "COCOTB_LOG_LEVEL": "WARNING",
                        },
                    )
                except (RuntimeError, SystemExit):
                    failed = True  # the reason is in the results or in the log
            text = log.read_text() if log.exists() else ""
            if waves is not None:
                self._keep_waves(scratch, waves)
            # cocotb's runner returns normally whatever the tests did: the results file decides.
            tests = failures = 0
            with contextlib.suppress(RuntimeError):
                tests, failures = get_results(results)
            if failed or tests != 1 or failures or not played_file.exists():
                return _broken(design, _reason(text))
            result = pickle.loads(played_file.read_bytes())
        return Played(
            outputs={
                name: payload.from_ints(result["received"][name], design.outputs[name])
                for name in job.outputs
            },
            cycles_of=result["cycles"],
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
        partial = target.with_name(f".{target.name}.partial")
        shutil.copy(found[0], partial)
        os.replace(partial, target)


def _ports_control(design: Design) -> str:
    """Verilator control file that keeps the top's ports visible to cocotb, and nothing else."""
    names = [f"{s}__{part}" for s in (*design.inputs, *design.outputs) for part in PARTS]
    if design.clocked:
        names += ["clk", "rst"]
    lines = [f'public_flat_rw -module "{design.module}" -var "{name}"' for name in names]
    return "`verilator_config\n" + "\n".join(lines) + "\n"


PARTS = ("payload", "valid", "ready")


def _broken(design: Design, reason: str) -> Played:
    nothing = {name: payload.from_ints([], shape) for name, shape in design.outputs.items()}
    return Played(nothing, {name: [] for name in nothing}, 0, 0, reason)


def _reason(log: str) -> str:
    """The line of a cocotb log that says what went wrong."""
    for line in log.splitlines():
        if "Error: " in line and "sim." not in line.split("Error: ")[0][-20:]:
            return line.split("Error: ", 1)[1].strip()
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "the simulator ended without a result"


@contextlib.contextmanager
def _environment(make_variables: Sequence[str] = ()):
    """The environment that cocotb's runner takes from the process, put back afterwards."""
    before = dict(os.environ)
    os.environ.update(environment())
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["MAKEFLAGS"] = " ".join([os.environ["MAKEFLAGS"], *make_variables])
    # The runner fails differently under pytest; here the results file decides in every case.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    verilator()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
