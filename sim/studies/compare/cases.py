"""What is to be compared: designs, shapes, qualities and memories, as tasks, and all their rows."""

import dataclasses
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hw.parameters import require
from sim.core.jobs.executor import Task, execute
from sim.drivers.run import load_trace
from sim.studies.compare import logic
from sim.studies.compare.command import MEMORY
from sim.studies.compare.data import Shape, layer_data
from sim.studies.compare.designs import ALGORITHMS, DESIGNS, choose, chosen_designs, require_known
from sim.studies.compare.quality import Quality, qualities
from sim.studies.compare.rows import Setting, ideal, measure

Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """All designs at one shape and one quality, or at their own settings, on some memories.

    sets
        Settings of each design, by its name.
    left
        Why a design is left out, by its name.
    """

    shape: Shape
    quality: Quality | None
    settings: tuple[Setting, ...]
    sets: dict[str, tuple[str, ...]]
    left: dict[str, str]

    def tasks(self) -> list[Task]:
        """One for each design."""
        return [
            Task(f"{name}, {self.shape.n} tokens", measure, (name, self.settings, sets))
            for name, sets in self.sets.items()
        ]

    def commands(self, name: str) -> list[str]:
        """The command of a design's row on each memory, as the rows' ``source`` has it."""
        return [setting.command(name, self.sets[name]) for setting in self.settings]

    def with_loss(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the case, with the design's loss if the case has a quality."""
        if self.quality is None:
            return row
        loss = self.quality.loss(row["design"])
        figures = {"kl_allowed": self.quality.allowed, "kl": loss.mean}
        error = {} if loss.error != loss.error else {"kl_se": loss.error}
        return row | figures | error


def cases_of(arguments) -> list[Case]:
    """The cases of a command line.

    :raises ParameterError: if an argument does not fit.
    :raises InputError: if a quality is given, and the settings for it are missing.
    """
    heads = arguments.heads, arguments.kv_heads
    shapes = [Shape(arguments.d, n, *heads) for n in arguments.over or [arguments.n]]
    trace = () if arguments.trace is None else (str(arguments.trace), digest_of(arguments.trace))
    for shape in shapes if trace else ():
        layer_data(shape, arguments.trace)
    require_known(arguments.set)
    found: list[Quality | None] = [*qualities(arguments.quality)] or [None]
    cases = []
    for shape in shapes:
        memories = arguments.memory or [MEMORY]
        settings = tuple(Setting(shape, text, arguments.clock, *trace) for text in memories)
        for quality in found:
            cases.append(case_of(shape, quality, settings, arguments.design, arguments.set))
    return cases


def case_of(
    shape: Shape,
    quality: Quality | None,
    settings: tuple[Setting, ...],
    designs: list[str],
    sets: list[str],
) -> Case:
    """A case; the user's settings `sets` come after those of the quality."""
    names, left = chosen_designs(designs, shape)
    found = {}
    without_banks = any(setting.cycles_at_peak(1) is None for setting in settings)
    for name in names:
        refusal = quality and quality.refusal(name)
        if name in ALGORITHMS and without_banks:
            refusal = "it has no core, and a memory without banks tells nothing of its reads"
        if refusal:
            left[name] = refusal
            continue
        own = quality.settings(name, shape) if quality else []
        found[name] = (*own, *(text for text in sets if text.startswith(f"{name}.")))
        for setting in settings:
            choose(name, shape, setting.channels, found[name])
    return Case(shape, quality, settings, found, left)


def digest_of(trace: Path) -> str:
    """Hash of a file, so that a kept result is not used for another content.

    :raises InputError: if there is no such trace.
    """
    load_trace(trace)
    return hashlib.sha256(trace.read_bytes()).hexdigest()


def measured_before(cases: list[Case], before: Rows) -> dict[str, list[dict[str, Any]]]:
    """Rows of an earlier result on all of a case's memories, by their task's arguments."""
    # The loss is the case's: one row may serve several.
    known = {
        row["source"]: {name: x for name, x in row.items() if not name.startswith("kl")}
        for row in before
    }
    return {
        repr(task.arguments): [known[command] for command in case.commands(name)]
        for case in cases
        for name, task in zip(case.sets, case.tasks(), strict=True)
        if known.keys() >= {*case.commands(name)}
    }


def run_all(tasks: list[Task], **execution) -> dict[str, Any]:
    """Results by the repr of a task's arguments; says which are done."""
    execution["jobs"] = min(execution.get("jobs", 1), max(1, len(tasks)))
    done = {}
    for number, outcome in enumerate(execute(tasks, quiet=True, **execution), 1):
        done[repr(outcome.task.arguments)] = outcome.result()
        took = "kept" if outcome.kept else f"{outcome.seconds:.0f} s"
        text = f"{number} of {len(tasks)}: {outcome.task.name}, {took}"
        print(text, file=sys.stderr, flush=True)
    return done


def with_logic(cases: list[Case], result: dict[str, Any], **execution) -> dict[str, Any]:
    """A result of :func:`compare` with areas, and estimates of the energy of the logic."""
    chosen = {
        setting.command(name, sets): (name, choose(name, case.shape, setting.channels, sets))
        for case in cases
        for setting in case.settings
        for name, sets in case.sets.items()
        if name in DESIGNS
    }
    parts = {source: (name, of.parameters) for source, (name, of) in chosen.items()}
    tasks = logic.tasks(parts.values())
    done = run_all(tasks, sources=logic.SOURCES, **execution)
    units = {}
    for (name, unit), task in zip(logic.UNITS.items(), tasks, strict=False):
        units[name] = done[repr(task.arguments)] | {"source": unit.command, "operation": unit.what}
    areas = {repr(task.arguments[:1] + task.arguments[2:3]): task for task in tasks}
    rows = []
    for row in result["rows"]:
        if row["source"] in parts:
            task = areas[repr(parts[row["source"]])]
            ((entry, _),) = done[repr(task.arguments)]
            row = row | logic.area_of(entry)
        rows.append(row)
    return with_prices(result | {"rows": rows}, units)


def with_prices(result: dict[str, Any], units: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A result whose rows with an area have estimates of the chip's energy, by units' prices."""
    prices, s = logic.Prices(units), result["settings"]
    rows = []
    for row in result["rows"]:
        if "area_um2" in row:
            shape = Shape(s["d"], row["n"], s["heads"], s["kv_heads"])
            row = row | {"chip_pj": logic.energy_of(row, shape, prices)}
        rows.append(row)
    return result | {"rows": rows, "units": units}


def compare(cases: list[Case], before: Rows = (), **execution) -> dict[str, Any]:
    """All rows: of each case the reference, then the designs, memory by memory.

    before
        Rows of an earlier result; a design that has one for each of its commands is not run.
    execution
        Of :func:`sim.core.jobs.executor.execute`.
    :raises ToolError: if the RTL of a design differs from its bit-exact model.
    """
    done = measured_before(cases, before)
    # A setting that is the same at several losses is measured once.
    every = {repr(task.arguments): task for case in cases for task in case.tasks()}
    done |= run_all([task for key, task in every.items() if key not in done], **execution)
    rows = []
    for case in cases:
        columns = [done[repr(task.arguments)] for task in case.tasks()]
        for number, setting in enumerate(case.settings):
            reference = ideal(setting)
            here = [] if reference is None else [reference]
            here += [column[number] for column in columns]
            rows += [case.with_loss(row) for row in here]
    first = cases[0]
    shape, settings = first.shape, first.settings
    left: list[dict[str, Any]] = [
        {"design": name, "n": case.shape.n, "why": why}
        for case in cases
        for name, why in case.left.items()
    ]
    require(bool(rows), "no design can be compared", "; ".join(str(of["why"]) for of in left))
    return {
        "settings": {
            **{name: getattr(shape, name) for name in ("d", "heads", "kv_heads")},
            "n": [*dict.fromkeys(case.shape.n for case in cases)],
            "layers": 1,
            "memories": [str(setting.timing) for setting in settings],
            "clock_mhz": float(settings[0].mhz),
            "data": [*dict.fromkeys(row["data"] for row in rows if "data" in row)],
        },
        "rows": rows,
        "left_out": left,
    }
