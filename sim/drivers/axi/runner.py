"""Run programs on a device in Icarus or Verilator, with cocotbext-axi around it."""

import pickle
import tempfile
from pathlib import Path

from hw.bus.bus_parameters import BusParameters
from hw.bus.device import DeviceDesign, device_design
from hw.catalogue import Block
from hw.parameters import Parameters
from sim.core import processes
from sim.core.design import Design, kept
from sim.core.user_verilog import generated_ports
from sim.drivers.axi.program import Program, ProgramResult
from sim.drivers.cocotb.runner import CocotbSimulation, reasons_of


def generate_device(block: Block, parameters: Parameters, bus: BusParameters) -> DeviceDesign:
    """The device, whose texts are generated once for all processes."""
    return device_design(
        block, parameters, bus, lambda kind, make: kept(block, parameters, kind, make)
    )


class AxiSimulation(CocotbSimulation):
    """A device compiled for one simulator, ready to run programs."""

    testbench = f"{__package__}.testbench"

    def __init__(self, device: DeviceDesign, simulator: str = "icarus"):
        self.device = device
        design = Design(device.block, device.parameters, device.module, device.verilog, {}, {})
        super().__init__(design, simulator)

    def _control(self) -> str:
        ports = generated_ports(self.device.verilog, self.device.module)
        lines = [f'public_flat_rw -module "{self.device.module}" -var "{name}"' for name in ports]
        return "`verilator_config\n" + "\n".join(lines) + "\n"

    def run_programs(self, programs: list[Program], seed: int = 1) -> list[ProgramResult]:
        """Run each from reset, in one run of the simulator."""
        masters = sorted(name[: -len("_arvalid")] for name in self._ports("m", "_arvalid"))
        descriptions = [{"program": p, "seed": seed, "masters": masters} for p in programs]
        with tempfile.TemporaryDirectory(prefix="senbazuru_") as temporary:
            scratch = Path(temporary)
            reasons: list[str | None]
            try:
                self._run(scratch, descriptions, seed)
                reasons = reasons_of(scratch / "results.xml", len(programs), scratch / "run.log")
            except processes.Stuck:
                reasons = ["the simulation stands still"] * len(programs)
            results = []
            for number, reason in enumerate(reasons):
                path = scratch / f"outcome_{number}"
                if reason is not None or not path.exists():
                    results.append(ProgramResult({}, {}, reason or "no result"))
                else:
                    results.append(pickle.loads(path.read_bytes()))
            return results

    def _ports(self, first: str, last: str) -> list[str]:
        names = generated_ports(self.device.verilog, self.device.module)
        return [name for name in names if name[0] == first and name.endswith(last)]
