"""A LiteX SoC with a device, as Verilog: ``python litex_soc.py FOLDER MODULE CLASS OUT``."""

import importlib
import sys
from pathlib import Path

from litex.build.generic_platform import Pins
from litex.build.io import CRG
from litex.build.sim import SimPlatform
from litex.soc.integration.soc_core import SoCCore


def main(folder: str, module: str, device: str, out: str) -> None:
    sys.path.insert(0, folder)
    kind = getattr(importlib.import_module(f"{module}_litex"), device)
    platform = SimPlatform("SIM", [("sys_clk", 0, Pins(1))])
    soc = SoCCore(
        platform,
        int(1e6),
        cpu_type=None,
        integrated_sram_size=0x1000,
        with_uart=False,
        with_timer=False,
    )
    soc.submodules.crg = CRG(platform.request("sys_clk"))
    soc.submodules.device = kind(platform)
    soc.device.add_to(soc, origin=0x8000_0000)
    soc.finalize()
    Path(out).write_text(platform.get_verilog(soc, name="soc").main_source)


if __name__ == "__main__":
    main(*sys.argv[1:])
