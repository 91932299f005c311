"""Mutants of a block in a Verilog file with the block's own ports, for ``--verilog FILE``."""

import re
from pathlib import Path

from hw.catalogue import Block
from hw.parameters import Parameters
from sim.checks.mutation.mutants import SELECT, Mutant, create
from sim.core.design import generate
from sim.core.user_verilog import generated_ports

SELECTION = "selection.hex"


class MutantFile:
    """A Verilog file compiled once, in which another file selects the mutant of each simulation.

    folder
        Of both; simulations must run in it, as the Verilog has no path, to be the same everywhere.
    path
        The Verilog.
    mutants
        `count` of each of `instances`, see :func:`sim.checks.mutation.mutants.create`.
    """

    def __init__(
        self,
        folder: Path,
        block: Block,
        parameters: Parameters,
        count: int,
        instances: tuple[str, ...],
        seed: int = 1,
    ):
        made = create(block, parameters, count, seed, instances=instances)
        self.mutants: dict[str, list[Mutant]] = {instance: [] for instance in instances}
        for mutant in made.mutants:
            self.mutants[mutant.instance].append(mutant)
        few = {instance: len(of) for instance, of in self.mutants.items() if len(of) < count}
        assert not few, f"sub-blocks with fewer than {count} mutants, if there are such: {few}"
        self.folder, self.path = folder, folder / "mutants.v"
        self.select(0)
        # The simulator reads the selection when a simulation begins.
        bits = len(made.mutants).bit_length()
        selection = (
            f"  reg [{bits - 1}:0] selection [0:0];\n"
            f'  initial $readmemh("{SELECTION}", selection);\n'
        )
        design = generate(block, parameters)
        design_of_mutants = wrapped(
            made.design.verilog,
            generated_ports(design.verilog, design.module),
            design.module,
            {SELECT: "selection[0]"},
            selection,
        )
        self.path.write_text(design_of_mutants)

    def select(self, number: int) -> None:
        """Switch on a mutant by its number, 0 for none, in simulations that begin after this."""
        (self.folder / SELECTION).write_text(f"{number:x}\n")


def wrapped(
    verilog: str,
    ports: dict[str, tuple[str, int]],
    module: str,
    connections: dict[str, str],
    declarations: str = "",
) -> str:
    """Verilog with another module of `module`'s name and ports around it.

    connections
        Expressions that are connected in place of the port of the same name.
    """
    body, count = re.subn(rf"^module {module}\(", f"module {module}_inner(", verilog, flags=re.M)
    assert count == 1, f"the Verilog must have one module {module}"
    declared = [f"  {way} [{width - 1}:0] {name};" for name, (way, width) in ports.items()]
    connected = {name: name for name in ports} | connections
    inner = ", ".join(f".{name}({value})" for name, value in connected.items())
    header = f"module {module}({', '.join(ports)});"
    return "\n".join(
        [body, header, *declared, declarations, f"  {module}_inner inner({inner});", "endmodule\n"]
    )
