"""Sequential equivalence of a design and its mutants on gates: unbounded proofs by ABC.

:mod:`sim.checks.formal.equivalence` defines equivalence. As copies share all gates that a fault
does not reach, whole cores can be judged. Three methods, in this order:

1. Outputs and next values of registers are the same functions of registers and inputs, if perhaps
   by other gates (ABC's ``fraig``).
2. Both copies have separate registers. Induction over all registers that correspond, or
   are constant (ABC's ``lcorr``), shows that no output differs.
3. The mutant has its own copies of some registers only, and shares the others, as long as none of
   those would get another value. That this and any other difference of an output never happens
   is a property that ABC proves with an invariant that it finds (property directed reachability,
   ``pdr``). It is tried without copies, then with copies of the registers that the fault can
   change in a cycle, in two, and so on; of these, registers that the fault reads come first.
   Each time the registers nearest to the property are tried alone, which is sooner.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sim.checks.formal import gates
from sim.checks.formal.gates import Graph
from sim.checks.formal.input_rules import limits
from sim.checks.mutation.mutants import SELECT
from sim.core import yosys
from sim.core.tools import ToolError

NEAR = 1, 2, 3, 5, 8
"""Distances in registers at which a proof is tried, as fewer registers are proved sooner."""
STEPS = 4
"""Cycles of the fault's effect that are tried in the third method."""


class GateProver:
    """Judges mutants of one design.

    verilog, top
        The design with all mutants, and its module's name.
    sources
        Input stream names to payload shapes.
    :raises ToolError: if Yosys fails.
    """

    def __init__(self, verilog: str, top: str, sources: Mapping):
        self._netlist, self._sources = gates.read(verilog, top), sources

    def prove(self, number: int, seconds: float) -> str | None:
        """How mutant `number` was proved equivalent within about `seconds`; None if it was not."""
        everything = frozenset(range(len(self._netlist.registers)))
        deadline = time.monotonic() + seconds
        copied: frozenset[int] = frozenset()
        for step in range(STEPS):
            graph, wrong, parted = self._pair(number, copied)
            if not wrong:  # constant: a bit that nothing reads has the fault, for one
                return f"no difference leaves {len(copied)} of {len(everything)} registers"
            if not step and corresponds(graph, wrong, seconds / 2, "comb;cone -O 0;fraig"):
                return "registers and outputs get the same values, by other gates"
            distance = near(graph, wrong, seconds / 30)
            if distance is not None:
                return (
                    f"no difference leaves {len(copied)} of {len(everything)} registers,"
                    f" by what {distance} cycles before decide"
                )
            if not step:
                both, differs, _ = self._pair(number, everything)
                if corresponds(both, differs, seconds / 3):
                    return f"{len(everything)} registers correspond"
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if never(graph, wrong, left / (STEPS - step)):
                return f"no difference leaves {len(copied)} of {len(everything)} registers"
            if parted <= copied:
                break
            copied |= parted
        return None

    def _pair(self, number: int, copied: frozenset[int]) -> tuple[Graph, int, frozenset[int]]:
        """Design and mutant with copies of these registers, as a graph; what must not happen;
        other registers that the fault may change, those before it first."""
        graph, netlist = Graph(), self._netlist
        running = graph.register()  # not in the first cycle, in which both are reset
        graph.connect(running, 1)
        shared = {"clk": [0], SELECT: [0] * len(netlist.inputs[SELECT])}
        inputs = {
            name: shared.get(name) or [graph.input() for _ in bits]
            for name, bits in netlist.inputs.items()
        }
        reset = 0
        if "rst" in inputs:
            reset = graph.either(inputs["rst"][0], running ^ 1)
            inputs["rst"] = [reset]
        values = {
            literal: word[bit]
            for name, word in inputs.items()
            for bit, literal in enumerate(netlist.inputs[name])
        }
        values |= {literal: graph.input() for literal in netlist.free}
        faulty = values | {
            literal: number >> bit & 1 for bit, literal in enumerate(netlist.inputs[SELECT])
        }
        own: dict[int, list[int]] = {}
        for index, (literal, _) in enumerate(netlist.registers):
            first = graph.input()
            own[index] = [graph.register() for _ in range(1 + (index in copied))]
            held = [graph.choose(running, register, first) for register in own[index]]
            values[literal], faulty[literal] = held[0], held[-1]
        right, mutant = netlist.copy(graph, values), netlist.copy(graph, faulty)
        wrong, parted = [], set()
        for index, (_, following) in enumerate(netlist.registers):
            pair = right(following), mutant(following)
            for register, value in zip(own[index], pair, strict=False):
                graph.connect(register, value)
            if index not in copied and pair[0] != pair[1]:
                parted.add(index)
                wrong.append(graph.differ(*pair))
        for name, bits in netlist.outputs.items():
            differs = graph.any(graph.differ(right(bit), mutant(bit)) for bit in bits)
            if name.endswith("__payload"):
                [valid] = netlist.outputs[name.removesuffix("payload") + "valid"]
                differs = graph.both(differs, right(valid))
            wrong.append(differs)
        kept = input_rules(graph, netlist, self._sources, inputs, right, reset)
        happens = graph.both(graph.both(running, kept), graph.any(wrong))
        before = self._before_fault(graph, right, mutant)
        fed_back = {index for index in parted if own[index][0] in before}
        return graph, happens, frozenset(fed_back or parted)

    def _before_fault(
        self, graph: Graph, right: Callable[[int], int], mutant: Callable[[int], int]
    ) -> set[int]:
        """Nodes of registers on which the gates depend that the fault itself changes.

        A register that takes a wrong value and hands it back to itself is there, and a memory that
        only receives it is not.
        """

        def changed(literal: int) -> bool:
            pair = right(literal), mutant(literal)
            return pair[0] != pair[1] and max(pair) > 1  # constants are of the select input

        return set().union(
            *(
                graph.behind(max(right(node), mutant(node)), 0)[0]
                for node, *operands in self._netlist.ands
                if changed(node) and not any(map(changed, operands))
            )
        )


def input_rules(
    graph: Graph,
    netlist: gates.Netlist,
    sources: Mapping,
    inputs: Mapping[str, list[int]],
    literal_of: Callable[[int], int],
    reset: int,
) -> int:
    """Whether the inputs have kept the rules of streams up to this cycle.

    sources
        Input stream names to payload shapes.
    inputs
        The graph's literals of each port.
    literal_of
        From a literal of the netlist to the graph's.
    """
    broken = graph.register()
    rules = [broken ^ 1]
    for stream, shape in sources.items():
        [valid], payload = inputs[f"{stream}__valid"], inputs.get(f"{stream}__payload", [])
        [ready] = map(literal_of, netlist.outputs[f"{stream}__ready"])
        rules.append(graph.waiting(valid, ready, payload, reset) ^ 1)
        for offset, width, limit in limits(shape):
            rules.append(graph.at_most(payload[offset : offset + width], limit - 1))
    kept = graph.any(rule ^ 1 for rule in rules) ^ 1
    graph.connect(broken, kept ^ 1)
    return kept


def corresponds(graph: Graph, wrong: int, seconds: float, by: str = "lcorr") -> bool:
    """Whether nothing is left of `wrong` once registers that correspond are merged.

    by
        ABC's commands; with ``scorr`` any nodes that correspond are merged, with ``comb`` and
        ``fraig`` those that are equal whatever the registers hold.
    """
    written = _abc(graph, wrong, f"{by};write_aiger out", seconds)
    header, _, rest = written.partition(b"\n")
    sizes = header.split()
    if len(sizes) < 6:  # out of time
        return False
    outputs = rest.split(b"\n")[int(sizes[3]) :]
    return outputs[0] == b"0"


def never(graph: Graph, wrong: int, seconds: float, distance: int | None = None) -> bool:
    """Whether `wrong` is proved never to be true, by registers up to a distance or by all.

    Those up to a distance are few, so that nodes which always agree are merged first.
    """
    merged = "" if distance is None else "&get;&scorr;&put;"
    limit = max(1, int(seconds))
    commands = f"{merged}pdr -T {limit};write_status out"
    return _abc(graph, wrong, commands, seconds + 5, distance).startswith(b"snl_UNSAT")


def near(graph: Graph, wrong: int, seconds: float) -> int | None:
    """The first distance by whose registers `wrong` is proved never to be true, if one is.

    seconds
        Limit at each distance; distances at which nothing is left out are not tried.
    """
    behind = len(graph.behind(wrong)[1])
    for distance in NEAR:
        if len(graph.behind(wrong, distance)[1]) == behind:
            return None
        if never(graph, wrong, seconds, distance):
            return distance
    return None


def _abc(
    graph: Graph, output: int, commands: str, seconds: float, distance: int | None = None
) -> bytes:
    """What ABC's commands write to the file ``out``; nothing if it has not time or stack enough."""
    with tempfile.TemporaryDirectory(prefix="equivalence_") as folder:
        graph.write(Path(folder, "in.aig"), output, distance)
        with contextlib.suppress(TimeoutError, ToolError):
            yosys.abc(f"read_aiger in.aig;{commands}", Path(folder), "compare gates", seconds)
        out = Path(folder, "out")
        return out.read_bytes() if out.exists() else b""
