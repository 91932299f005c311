"""Rules of output streams, proved on gates, unbounded: a beat waits unchanged until it is taken.

For cores that are too large for :mod:`tests.support.formal`'s proofs on words.
"""

from collections.abc import Iterator, Mapping

from sim.checks.formal import gates
from sim.checks.formal.gate_equivalence import NEAR, input_rules, never
from sim.checks.formal.gates import Graph


class StreamProver:
    """Proves the rules of one design's output streams.

    verilog, top
        The design, and its module's name.
    sources
        Input stream names to payload shapes; these streams keep the rules.
    :raises ToolError: if Yosys fails.
    """

    def __init__(self, verilog: str, top: str, sources: Mapping):
        self._netlist, self._sources = gates.read(verilog, top), sources

    @property
    def streams(self) -> list[str]:
        """The outputs that have a ``valid``."""
        ports = self._netlist.outputs
        return [name.removesuffix("__valid") for name in ports if name.endswith("__valid")]

    def prove(self, stream: str, seconds: float) -> bool:
        """Whether a beat that is not taken is offered again, unchanged, within about `seconds`."""
        graph, wrong = self._rule(stream)
        return any(never(graph, wrong, seconds / 6, distance) for distance in (*NEAR, None))

    def _rule(self, stream: str) -> tuple[Graph, int]:
        """The design as a graph, and what must not happen."""
        graph, netlist = Graph(), self._netlist
        running = graph.register()  # not in the first cycle, in which it is reset
        graph.connect(running, 1)
        inputs = {name: [graph.input() for _ in bits] for name, bits in netlist.inputs.items()}
        inputs["clk"] = [0]
        reset = graph.either(inputs["rst"][0], running ^ 1)
        inputs["rst"] = [reset]
        values = dict(self._literals(inputs)) | {x: graph.input() for x in netlist.free}
        registers = []
        for literal, _ in netlist.registers:
            registers.append(graph.register())
            values[literal] = graph.choose(running, registers[-1], graph.input())
        literal_of = netlist.copy(graph, values)
        for register, (_, following) in zip(registers, netlist.registers, strict=True):
            graph.connect(register, literal_of(following))
        kept = input_rules(graph, netlist, self._sources, inputs, literal_of, reset)
        [valid] = map(literal_of, netlist.outputs[f"{stream}__valid"])
        [ready] = inputs[f"{stream}__ready"]
        payload = map(literal_of, netlist.outputs.get(f"{stream}__payload", []))
        broken = graph.waiting(valid, ready, payload, reset)
        return graph, graph.both(graph.both(running, kept), broken)

    def _literals(self, inputs: Mapping[str, list[int]]) -> Iterator[tuple[int, int]]:
        for name, word in inputs.items():
            yield from zip(self._netlist.inputs[name], word, strict=True)
