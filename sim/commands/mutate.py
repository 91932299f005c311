"""``python -m sim mutate``: inject faults into a block and check that its testbench fails.

It measures which faults the testbench can detect at all.
"""

import collections
import json

from tqdm import tqdm

from hw.catalogue import configurations, find
from hw.parameters import ParameterError
from sim.checks.mutation.mutation import COUNT, PROOF_SECONDS, Report, mutate
from sim.commands.arguments import (
    add_configuration,
    add_execution,
    configuration,
    count,
    execution,
    pattern,
    vectors,
    whole,
)
from sim.core.jobs import executor
from sim.core.result import configuration_name, settings_of
from sim.core.tools import ToolError


def as_json(report: Report) -> dict:
    return {
        "block": report.block,
        "preset": report.preset,
        "seed": report.seed,
        "mutants": report.mutants,
        "killed": len(report.killed),
        "equivalent": len(report.equivalent),
        "survivors": [
            {
                "line": survivor.mutant.line,
                "mode": survivor.mutant.mode,
                "mutant": str(survivor.mutant),
                "status": str(survivor.verdict),
            }
            for survivor in report.survivors
        ],
        "wall_s": round(sum(report.seconds.values()), 2),
    }


def describe(report: Report) -> str:
    """The report as text: totals, source lines by surviving mutants, then each survivor."""
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.seconds.items())
    lines = [
        f"{report.block} {report.preset}, seed {report.seed}: {report.mutants} mutants ({times})",
        f"  killed by simulation  {len(report.killed):5}",
        f"  proved equivalent     {len(report.equivalent):5}",
        f"  survivors             {len(report.survivors):5}",
    ]
    table: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    groups = (
        report.killed,
        [survivor.mutant for survivor in report.equivalent],
        [survivor.mutant for survivor in report.survivors],
    )
    for column, group in enumerate(groups):
        for mutant in group:
            table[mutant.line][column] += 1
    lines.append("  killed equivalent survivors  source line")
    for line, row in sorted(table.items(), key=lambda item: (-item[1][2], item[0])):
        lines.append(f"  {row[0]:6} {row[1]:10} {row[2]:9}  {line}")
    for survivor in report.survivors:
        mutant = survivor.mutant
        lines.append(f"{mutant.line}: mutant {mutant.number}, {mutant}: {survivor.verdict}")
    return "\n".join(lines)


def mutate_preset(name: str, preset: str, settings: dict) -> Report:
    """One task of a long job: :func:`sim.checks.mutation.mutation.mutate` of a block's preset."""
    block = find(name)
    return mutate(block, preset, block.parameters_class.preset(preset), **settings)


def mutate_all(arguments) -> int:
    """Every block that has the preset, as a long job."""
    if arguments.set:
        raise ParameterError("--set needs one block, not 'all'")
    names = ("count", "seed", "vectors", "rounds", "within")
    settings = {name: getattr(arguments, name) for name in names}
    settings["seconds"] = arguments.proof_seconds
    tasks = [
        executor.Task(f"{block.name} {preset}", mutate_preset, (block.name, preset, settings))
        for block, preset in configurations("all", [arguments.preset])
    ]
    reports, failed = [], []
    run = executor.execute(tasks, quiet=arguments.json, **execution(arguments))
    for outcome in run:
        if outcome.error is not None:
            failed.append(f"{outcome.task.name}: {outcome.error}")
            continue
        reports.append(outcome.value)
        if not arguments.json:
            tqdm.write(describe(outcome.value))
    if arguments.json:
        print(json.dumps([as_json(report) for report in reports], indent=2))
    if failed:
        raise ToolError(f"{len(failed)} of {len(tasks)} blocks: " + "; ".join(failed))
    return 1 if any(report.survivors for report in reports) else 0


def mutate_command(arguments) -> int:
    if arguments.block == "all":
        return mutate_all(arguments)
    block, parameters = configuration(arguments)
    preset = block.parameters_class.preset_name(arguments.preset)
    report = mutate(
        block,
        configuration_name(preset, settings_of(block, preset, parameters)),
        parameters,
        count=arguments.count,
        seed=arguments.seed,
        vectors=arguments.vectors,
        rounds=arguments.rounds,
        seconds=arguments.proof_seconds,
        within=arguments.within,
    )
    print(json.dumps(as_json(report), indent=2) if arguments.json else describe(report))
    return 1 if report.survivors else 0


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "mutate",
        description=(
            "Make faulty copies of a block (mutants), run the testbench on each under every stall "
            "pattern until it fails, and try to prove, on gates and on words, that the survivors "
            "are equivalent to the block. Exits 1 if some mutant is neither detected nor proved "
            "equivalent; each is listed with its Python source line."
        ),
    )
    add_configuration(command, preset="first", everything=True)
    command.add_argument(
        "--count", type=count, default=COUNT, metavar="N", help="mutants (%(default)s)"
    )
    command.add_argument(
        "--vectors",
        type=vectors,
        metavar="N",
        help="transactions of each kind, real and random (default: the testbench's)",
    )
    command.add_argument(
        "--rounds",
        type=whole,
        default=0,
        metavar="N",
        help="rounds of further random data for mutants that survive (%(default)s)",
    )
    command.add_argument(
        "--proof-seconds",
        type=count,
        default=PROOF_SECONDS,
        metavar="S",
        help="time limit for judging one survivor (%(default)s)",
    )
    command.add_argument(
        "--within",
        type=pattern,
        metavar="REGEX",
        help="only faults whose source line, FILE:LINE, matches (default: all)",
    )
    add_execution(command)
    command.set_defaults(run=mutate_command)
