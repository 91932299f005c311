"""Faults that leave a core at work but not as it should be, for ``--verilog FILE``.

Its paper's idea is off, or it wastes cycles.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from sim.core.design import Design
from tests.support.mutant_file import SELECTION


@dataclasses.dataclass(frozen=True)
class Idea:
    """A line of a core's Verilog without which the core does not do what its paper is about.

    name
        What the core does without it.
    module
        Name of the sub-block's class, as at the end of its modules' names.
    line
        Regular expression of what is assigned, with the groups ``to`` and ``value``.
    off
        What is assigned in place of the value: an expression of ``VALUE`` and of other groups, as
        in ``\\g<group>``.
    """

    name: str
    module: str
    line: str
    off: str


ASSIGNED = r"^  (?:assign|wire(?: \[\d+:0\])?) (?P<to>{}) = (?P<value>[^;]+);"
STORED = r"(?<![\w.])(?P<to>{}) <= (?P<value>[^;]+);"
ONES = "(VALUE) | ~(VALUE)"
WITHIN = ASSIGNED.format(r"within_\d+")

IDEAS = {
    "lad.lad_tile": [
        Idea("has nothing active but the window", "apid", WITHIN, "1'h1"),
        Idea("has everything active", "apid", WITHIN, "1'h0"),
        Idea("changes no mode", "md", ASSIGNED.format("changed"), "1'h0"),
        Idea(
            "writes the next row when a code ends its row",
            "code_scores",
            r"^  (?:assign|wire) (?P<to>straddles) = (?P<value>(?P<end>\w+) > 5'h10);",
            r"\g<end> > 5'hf",
        ),
    ],
    "veda.veda_core": [
        Idea("evicts nothing", "voting_engine", ASSIGNED.format("evicting"), "1'h0"),
        Idea("counts no votes", "voting_engine", STORED.format("vote"), "1'h0"),
    ],
    "unicaim.unicaim_core": [
        Idea(
            "scores all rows alike",
            "digital_row|serial_array",
            STORED.format(r"score(_\d+)?"),
            "(VALUE) & 0",
        ),
        Idea("evicts nothing", "row_manager", ASSIGNED.format("full"), "1'h0"),
        Idea(
            "evicts the first row",
            "eviction_sense|accumulation_pass",
            r"(?:(?<![\w.])(?P<to>lowest) <=|^  assign o__payload\[\d+:0\] =) (?P<value>[^;]+);",
            "(VALUE) & 0",
        ),
    ],
    "baseline.h2o_core": [
        Idea("evicts the oldest", "heavy_hitters", ASSIGNED.format("grown"), "(VALUE) & 0"),
        Idea("evicts the same row", "heavy_hitters", ASSIGNED.format("better"), "1'h0"),
    ],
    "topick.topick_core": [
        Idea("prunes nothing", "rpdu", ASSIGNED.format("prune"), "1'h0"),
        Idea("prunes at the last chunk alone", "rpdu", ASSIGNED.format("prune"), "last & (VALUE)"),
        Idea(
            "waits a cycle or two more for each head",
            "lane_group",
            r"\b(?P<to>settling) <= (?P<value>3'h[56]);",
            "3'h7",
        ),
    ],
    "tsuru.tsuru_core": [
        Idea("reads no row for its estimate", "row_choice", ASSIGNED.format(r"above_\d+"), "1'h0"),
        Idea("reads all rows", "row_choice", ASSIGNED.format(r"above_\d+"), "1'h1"),
        Idea("counts no row that is not read", "rest_score", STORED.format("none_1"), "1'h1"),
    ],
    "kllm.kllm_core": [
        Idea("has no outliers", "outlier_split", STORED.format("marks"), "(VALUE) & 0"),
        Idea("has outliers alone", "outlier_split", STORED.format("marked"), ONES),
        Idea(
            "takes the first values for outliers",
            "orizuru_leaf",
            ASSIGNED.format(r"(greater|less)_\d+"),
            "1'h0",
        ),
    ],
}


class CoreWithoutIdea:
    """A core's Verilog in a file, compiled once; another file selects what simulations lack.

    folder
        Of both; simulations must run in it.
    path
        The Verilog.
    ideas
        Those of the design's block, or the ones given.
    """

    def __init__(self, folder: Path, design: Design, ideas: Sequence[Idea] | None = None):
        self.ideas = IDEAS[design.block.name] if ideas is None else ideas
        self.folder, self.path = folder, folder / "ideas.v"
        self.select(None)
        verilog = design.verilog
        for number, idea in enumerate(self.ideas, 1):
            verilog = _switchable(verilog, idea, number)
        self.path.write_text(verilog)

    def select(self, idea: Idea | None) -> None:
        """Switch an idea off, or none, in simulations that begin after this."""
        number = 0 if idea is None else 1 + self.ideas.index(idea)
        (self.folder / SELECTION).write_text(f"{number:x}\n")


def _switchable(verilog: str, idea: Idea, number: int) -> str:
    off = f"off_{number}"
    declared = (
        f'  reg [3:0] {off} [0:0];\n  initial $readmemh("{SELECTION}", {off});\n'
        f"  wire is_{off} = {off}[0] == {number};\n"
    )

    def choose(match: re.Match) -> str:
        value = match["value"]
        wrong = match.expand(idea.off).replace("VALUE", value)
        chosen = f"is_{off} ? ({wrong}) : ({value})"
        return match[0].replace(value, chosen)

    # The name of a module of a large core ends with that of its class, and a number.
    header = re.compile(rf"^module (\S*__)?({idea.module})(_\d+)?\(.*?^\);\n", re.M | re.S)
    found = 0
    for module in header.finditer(verilog):
        end = verilog.index("endmodule", verilog.index(module[0]))
        body = verilog[:end][verilog.index(module[0]) + len(module[0]) :]
        changed, count = re.subn(idea.line, choose, body, flags=re.M)
        found += count
        verilog = verilog.replace(module[0] + body, module[0] + declared + changed)
    assert found, f"{idea.name}: no such line in {idea.module}"
    return verilog
