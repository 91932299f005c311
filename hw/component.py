"""Components that are emitted once, however often they are used.

Amaranth writes a module for every instance, so 128 equal units become 128 equal modules, each
elaborated, written, compiled and read again. A :class:`Component` built for a
:class:`ModuleLibrary` becomes an instance of one module for its class and arguments instead.
Without a library (Amaranth's simulator, formal proofs) nothing changes.
"""

import abc
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Fragment, Instance, ResetSignal, Shape, ValueLike
from amaranth.hdl._ast import Switch
from amaranth.lib import data, wiring

from hw import HOME, names
from hw.parameters import require_one_of, snake_case
from hw.ports import CLOCKS, Ports, ordered_ports

names.install()

P = TypeVar("P")
"""The class of a component's parameters; None for a component without."""


class Component(wiring.Component, abc.ABC, Generic[P]):
    """Base of this project's components: like wiring.Component, but shared when exported.

    A subclass declares its ports in :meth:`ports`, which reads `parameters` and whatever else the
    subclass stored before it called this constructor.

    Two components are the same hardware if their constructor arguments are: numbers, strings,
    shapes, dataclasses of them. Anything else counts as equal only to itself.
    EnableInserter and ResetInserter do not reach into a shared module; use ports instead.

    A block of the catalogue (:mod:`hw.catalogue`) also has the class attributes `summary`, one line
    for listings, and `source`, a paper's section or ``library``.
    """

    if TYPE_CHECKING:
        # Ports become attributes by the signature, which a type checker cannot read.
        def __getattr__(self, name: str) -> Any: ...

        elaborate: Callable[..., Any]

    _identity: tuple

    def __init__(self, parameters: P | None = None):
        self.parameters = cast(P, parameters)
        super().__init__({name: port.member for name, port in self.ports().items()})

    @abc.abstractmethod
    def ports(self) -> Ports:
        """The ports, by name: direction, shape and meaning."""

    def __new__(cls, *args, **kwargs):
        # Where a component is not used, Amaranth reports the line of its caller.
        component = super().__new__(cls, src_loc_at=1)  # type: ignore[call-arg]  # not in the stubs
        # The arguments are what the hardware depends on, known before anything is elaborated: equal
        # sub-blocks need not be elaborated to be found equal.
        component._identity = (cls, _describe(args), _describe(dict(sorted(kwargs.items()))))
        return component

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "elaborate" in cls.__dict__:
            cls.elaborate = _shareable(cls.elaborate)


def _describe(value):
    """A hashable description of a constructor argument; equal ones build equal hardware."""
    if value is None or isinstance(value, (bool, int, str, Shape)):
        return type(value), value
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_describe, value))
    if isinstance(value, dict):
        # The order counts: it is the order of a structure's fields.
        return dict, tuple((_describe(key), _describe(item)) for key, item in value.items())
    if isinstance(value, data.Layout):
        fields = tuple((key, f.offset, _describe(f.shape)) for key, f in value)
        return type(value), value.size, fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(_describe(getattr(value, f.name)) for f in dataclasses.fields(value))
        return type(value), fields
    return _Itself(value)


class _Itself:
    """Compares equal for the same object only, and keeps it alive so that no other gets its id."""

    def __init__(self, value):
        self._value = value

    def __eq__(self, other):
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self):
        return id(self._value)


def _shareable(elaborate):
    @functools.wraps(elaborate)
    def elaborate_or_share(self, platform):
        # A subclass goes on with the module that its base returns.
        if (
            not isinstance(platform, ModuleLibrary)
            or type(self).elaborate is not elaborate_or_share
        ):
            return elaborate(self, platform)
        # A sub-block becomes an instance of its module; only the component that is being converted
        # is elaborated here.
        if not platform.is_open(self):
            return platform.instance(self)
        fragment = Fragment.get(elaborate(self, platform), platform)
        name_states(fragment)
        return fragment

    return elaborate_or_share


def name_states(fragment: Any) -> None:
    """Give the states of each state machine to Yosys, as Amaranth does for enumerations."""
    fronts = [*fragment.statements.values()]
    while fronts:
        for statement in fronts.pop():
            if isinstance(statement, Switch):
                fronts += _name_states(statement)
    for subfragment, *_ in fragment.subfragments:
        if not isinstance(subfragment, Instance):
            name_states(subfragment)


def _name_states(switch: Any) -> list:
    """Name the states if it switches on one; returns its cases' statements."""
    state = switch.test
    # Amaranth's decoder of a state is a function that says IDLE/0.
    decoder = getattr(state, "decoder", None)
    inner = [statements for _, statements, _ in switch.cases]
    if not callable(decoder) or isinstance(decoder, type) or "enum_base_type" in state.attrs:
        return inner
    names = {}
    for patterns, *_ in switch.cases:
        for pattern in patterns or ():
            number = int(pattern, 2)
            names[f"enum_value_{number:0{len(state)}b}"] = decoder(number).rpartition("/")[0]
    state.attrs.update({"enum_base_type": state.name, **names})
    return inner


PORT = re.compile(r"^(  wire width \d+ (?:input|output|inout)) \d+( +(?:signed )?\\(\S+))$", re.M)


def port_names(text: str) -> list[str]:
    """Names of the ports of the first module of RTLIL text."""
    first = text[: text.index("\nend\n")]
    return [match[3] for match in PORT.finditer(first)]


def clock_ports(text: str) -> list[str]:
    """Which of ``clk`` and ``rst`` the first module of RTLIL text has.

    A purely combinational module has neither.
    """
    return [port for port in port_names(text) if port in CLOCKS]


RESET_PORT = re.compile(r"(?:^  attribute [^\n]*\n)*^  wire width 1 input \d+ +\\rst\n", re.M)


def _drop_unused_reset(text: str) -> str:
    """Remove the port ``rst`` where no register has a reset value to go to."""
    return text if len(re.findall(r"\\rst\b", text)) > 1 else RESET_PORT.sub("", text)


def _order_ports(text: str, signature: wiring.Signature) -> str:
    """Number the ports of the first module: clock, reset, inputs, outputs.

    RTLIL declares wires in any order; a port's number is its place in the module's header.
    """
    first, rest = text[: (end := text.index("\nend\n"))], text[end:]
    names = [*CLOCKS, *(name for name, _ in ordered_ports(signature))]
    present = {match[3] for match in PORT.finditer(first)}
    names = [name for name in names if name in present] + sorted(present.difference(names))
    places = {name: place for place, name in enumerate(names, 1)}
    return PORT.sub(lambda match: f"{match[1]} {places[match[3]]}{match[2]}", first) + rest


def _with_sources(text: str, kind: type) -> str:
    """RTLIL text in which each module names its source: a class, or the one that it is part of."""
    first, *parts = re.split(r"^(?=module )", text, flags=re.M)
    home = kind.__module__.removeprefix(HOME).replace(".", "/")
    source = f"{home}.py, class {kind.__qualname__}"
    sources = [source] + [f"a part of {source}"] * (len(parts) - 1)
    return first + "".join(
        f'attribute \\source "{source}"\n{part}'
        for source, part in zip(sources, parts, strict=True)
    )


ON_FPGA = ("dsp", "dsp_shifts")
MULTIPLIERS = ("columns", *ON_FPGA)
"""Columns of partial products for standard cells, or ``*`` for an FPGA's multipliers.

``dsp_shifts`` is for a design that leaves many of them unused: shifters are products too, where a
block knows how (:mod:`hw.arith.bits.one_hot_shift`). Every bit at a block's ports, and the latency,
is the same.
"""


def on_fpga(platform) -> bool:
    """Whether the target is an FPGA, with multipliers, and carry chains beside its LUTs."""
    return getattr(platform, "multiplier", "columns") in ON_FPGA


def enable_while(busy: ValueLike, platform) -> ValueLike:
    """An enable for registers whose contents matter only while `busy`.

    On an FPGA, whose registers all have enables, this is `busy`: idle units keep still. Cells have
    a multiplexer for each register with an enable, so for them it is 1.
    """
    return busy if on_fpga(platform) else 1


class ModuleLibrary:
    """RTLIL modules of one design, collected while its top is converted.

    name
        Name of the top module; the others' names start with it.
    emit_src
        Whether to keep the Python source locations.
    multiplier
        What products of significands are made of, one of :data:`MULTIPLIERS`.
    """

    def __init__(self, name: str, *, emit_src: bool = False, multiplier: str = "columns"):
        require_one_of("multiplier", multiplier, [*MULTIPLIERS])
        self._name, self.multiplier = name, multiplier
        self._emit_src = emit_src
        self._open: list[wiring.Component] = []  # components being converted, outermost first
        self._modules: dict[tuple, tuple[str, str]] = {}  # identity: (name, RTLIL text)
        self._names: set[str] = set()

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
        signals = {"clk": ClockSignal(), "rst": ResetSignal()}
        ports |= {f"i_{port}": signals[port] for port in clock_ports(text)}
        return Instance(name, **ports)

    def _convert(self, component, name: str) -> str:
        self._open.append(component)
        try:
            text = rtlil.convert(component, name=name, platform=self, emit_src=self._emit_src)
        finally:
            self._open.pop()
        # Text and not a netlist is shared, because Amaranth converts a design as one tree.
        text = _with_sources(_drop_unused_reset(text), type(component))
        text = _order_ports(text, component.signature)
        # Signals and clocks from elsewhere would be left unconnected at the instance.
        own = {"__".join(map(str, path)) for path, *_ in component.signature.flatten(component)}
        foreign = [port for port in port_names(text) if port not in own.union(CLOCKS)]
        if foreign:
            kind = type(component).__name__
            raise TypeError(f"{kind} uses {', '.join(foreign)}, which is not among its ports")
        return text

    def _unique_name(self, component) -> str:
        kind = snake_case(type(component).__name__)
        name, number = f"{self._name}__{kind}", 1
        while name in self._names:
            number += 1
            name = f"{self._name}__{kind}_{number}"
        self._names.add(name)
        return name
