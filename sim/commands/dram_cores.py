"""Every core's testbench on the four DRAMs, beside a memory that answers in the next cycle."""

import time
from collections.abc import Callable, Iterator

from golden.markdown import table_head, table_row
from hw.catalogue import find
from sim.core.dram.timing import DramUse, drams_of, parse_timing
from sim.core.memory import FASTEST
from sim.core.tools import ToolError

FINE = "map=row:bank:column:channel,hash=on"
MEMORIES = {
    "hbm2": "hbm2",
    "hbm2, fine": f"hbm2,{FINE}",
    "lpddr4_3200": f"lpddr4_3200,{FINE}",
    "ddr3_1600": f"ddr3_1600,{FINE}",
    "sdr_133, 50 MHz": f"sdr_133,clock=50,{FINE}",
}
"""Column of the table to the memory, of a core at 1 GHz but for the last one, of an FPGA."""

CORES = {
    "veda.veda_core": ("default", 12),
    "topick.topick_core": ("default", 9),
    "lad.lad_tile": ("default", 1),
    "unicaim.unicaim_core": ("default", 48),
    "kllm.kllm_core": ("default", 4),
    "baseline.dense_core": ("default", 12),
    "baseline.h2o_core": ("default", 24),
}
"""Preset and number of transactions of each core.

It is the testbench's number, but for LAD (1 of 12) and UniCAIM (48 of 112), whose simulations would
take many minutes.
"""


def measure_cores(say: Callable[[str], None] = lambda text: None) -> Iterator[dict]:
    """For each core its cycles on the ideal memory, and cycles and DRAM figures by column.

    The stimulus is the testbench's real data. A core with several memories has one DRAM, of one
    channel, for each.

    say
        Called with each step before it begins, and with the seconds that it took.

    :raises ToolError: if an output differs from the model's.
    """
    from sim.core.design import generate
    from sim.drivers.run import Simulation, load_testbench, load_trace

    data = load_trace(None)
    for number, (name, (preset, vectors)) in enumerate(CORES.items(), 1):
        block = find(name)
        parameters = block.parameters_class.preset(preset)
        testbench = load_testbench(block)
        said = f"{number} of {len(CORES)}: {name}"
        say(f"{said} is compiled …")
        simulation = Simulation(generate(block, parameters), "verilator", "harness")
        row: dict = {"block": name, "preset": preset, "transactions": vectors, "memories": {}}
        for column, text in {"ideal": "", **MEMORIES}.items():
            began = time.monotonic()
            stimulus = testbench.stimulus(parameters, data, vectors, 1)
            row["devices"] = len(stimulus.memories)
            one = ",channels=1" if row["devices"] > 1 else ""
            timing = parse_timing(text + one) if text else FASTEST
            [(outcome, mismatches)] = simulation.run([(stimulus, "none")], 1, timing)
            if outcome.failure is not None or mismatches:
                raise ToolError(f"{name} on {column}: {outcome.failure or mismatches[0]}")
            row["bytes"] = sum(
                use.bytes_read + use.bytes_written for use in outcome.memories.values()
            )
            if text:
                found = figures_of(outcome.cycles, drams_of(outcome.memories))
                row["memories"][column] = found
            else:
                row["cycles"] = outcome.cycles
            took = time.monotonic() - began
            say(f"{said} on {column}: {outcome.cycles} cycles, {took:.0f} s")
        yield row


def figures_of(cycles: int, uses: list[DramUse]) -> dict:
    """Cycles of a core's run, and what its DRAMs did in it."""
    bursts = sum(use.counts.reads + use.counts.writes for use in uses)
    hits = sum(use.counts.row_hits for use in uses)
    energy = [use.energy() for use in uses]
    return {
        "cycles": cycles,
        "row_hits": round(hits / max(1, bursts), 4),
        "activations": sum(use.counts.activations for use in uses),
        "achieved": round(sum(use.achieved for use in uses) / len(uses), 4),
        "energy_nj": {k: round(sum(each[k] for each in energy), 1) for k in energy[0]},
    }


def table_of(rows: list[dict]) -> list[str]:
    """In Markdown: cycles as a multiple of the ideal port's, row hits, share of the peak."""
    lines = table_head("core, preset", "transactions", "ideal, cycles", "bytes", *MEMORIES)
    for row in rows:
        cells = []
        for column in MEMORIES:
            found = row["memories"][column]
            ratio = found["cycles"] / row["cycles"]
            cells.append(f"{ratio:.2f}×, {found['row_hits']:.0%}, {found['achieved']:.1%}")
        numbers = (f"{row[key]}" for key in ("transactions", "cycles", "bytes"))
        name = f"`{row['block']}` {row['preset']}"
        lines.append(table_row(name, *numbers, *cells))
    return lines
