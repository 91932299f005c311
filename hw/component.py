"""Components that are emitted once, however often they are used.

Amaranth writes a module for every instance, so 128 equal units become 128 equal modules, each
elaborated, written, compiled and read again. A :class:`Component` built for a
:class:`ModuleLibrary` becomes an instance of one module for its class and arguments instead.
Without a library (Amaranth's simulator, formal proofs) nothing changes.
"""

import functools
import re

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib import wiring


class Component(wiring.Component):
    """Base of this project's components: like wiring.Component, but shared when exported.

    Two components are the same hardware if their constructor arguments have the same ``repr``.
    """

    def __new__(cls, *args, **kwargs):
        component = super().__new__(cls, src_loc_at=1)  # blame the caller if it stays unused
        component._identity = (cls, repr(args), repr(sorted(kwargs.items())))
        return component

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "elaborate" in cls.__dict__:
            cls.elaborate = _shareable(cls.elaborate)


def _shareable(elaborate):
    @functools.wraps(elaborate)
    def elaborate_or_share(self, platform):
        if isinstance(platform, ModuleLibrary) and not platform.is_open(self):
            return platform.instance(self)
        return elaborate(self, platform)

    return elaborate_or_share


class ModuleLibrary:
    """RTLIL modules of one design, collected while its top is converted.

    name
        Name of the top module; the others' names start with it.
    emit_src
        Whether to keep the Python source locations.
    """

    def __init__(self, name: str, *, emit_src: bool = False):
        self._name = name
        self._emit_src = emit_src
        self._open = []  # components being converted, outermost first
        self._modules = {}  # identity: (name, RTLIL text)
        self._names = set()

    def convert(self, top: wiring.Component) -> str:
        """RTLIL of `top` and, once each, of everything it is built of."""
        text = self._convert(top, self._name)
        below = "".join(
            body.replace("attribute \\top 1\n", "") for _, body in self._modules.values()
        )
        return text + below

    def is_open(self, component: Component) -> bool:
        return bool(self._open) and self._open[-1] is component

    def instance(self, component: Component) -> Instance:
        """An instance of `component`'s module, wired to its ports."""
        identity = component._identity
        if identity not in self._modules:
            name = self._unique_name(component)
            self._modules[identity] = (name, self._convert(component, name))
        name, text = self._modules[identity]
        ports = {}
        for path, member, value in component.signature.flatten(component):
            direction = "i" if member.flow is wiring.In else "o"
            ports[f"{direction}_{'__'.join(map(str, path))}"] = value
        # A purely combinational module has no clock, one without resets no reset.
        own_ports = text[: text.index("\nend\n")]  # the outermost module comes first
        for port, signal in (("clk", ClockSignal()), ("rst", ResetSignal())):
            if re.search(rf"^  wire width 1 input \d+ +\\{port}$", own_ports, re.M):
                ports[f"i_{port}"] = signal
        return Instance(name, **ports)

    def _convert(self, component, name: str) -> str:
        self._open.append(component)
        try:
            return rtlil.convert(component, name=name, platform=self, emit_src=self._emit_src)
        finally:
            self._open.pop()

    def _unique_name(self, component) -> str:
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(component).__name__).lower()
        name, number = f"{self._name}__{kind}", 1
        while name in self._names:
            number += 1
            name = f"{self._name}__{kind}_{number}"
        self._names.add(name)
        return name
