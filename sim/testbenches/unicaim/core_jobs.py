"""Jobs of UniCAIM's core, and the stimulus that they make, with the model's results."""

import dataclasses

import numpy as np

from golden.trace import Trace
from golden.unicaim.core_cycles import CoreCycles, JobWork, Timing
from golden.unicaim.divisors import code_units, divisor_for, key_divisor, query_divisors
from golden.unicaim.unicaim_core import CoreSizes, JobResult, UnicaimCore
from hw.attention.special_function_unit import DRAIN_CYCLES, Operation
from hw.unicaim.core_parameters import CommandOp, UnicaimCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Stimulus
from sim.testbenches.memory import memory_of
from sim.testbenches.operands import numbers, vectors_by_name
from sim.testbenches.strategies import sometimes
from sim.testbenches.unicaim.operands import within_fp16


def sizes_of(p: UnicaimCoreParameters) -> CoreSizes:
    """What the model needs of the parameters."""
    names = [field.name for field in dataclasses.fields(CoreSizes)]
    return CoreSizes(**{name: getattr(p, name) for name in names})


class CoreJobs:
    """Jobs in order, from a memory of zeros; ``model`` is the core after them.

    modelled
        False: jobs have no results and no stimulus, only inputs.
    """

    def __init__(self, parameters: UnicaimCoreParameters, modelled: bool = True):
        self.parameters, self.modelled = parameters, modelled
        self.model = UnicaimCore(sizes_of(parameters))
        self.results: list[JobResult | None] = []
        """Result of each job; None for LOAD."""
        self.work: list[JobWork] = []
        self._jobs: list[tuple] = []
        self._inputs: dict[str, list[tuple]] = {"mean": [], "kv": [], "q": []}
        self._owners: dict[str, list[int]] = {"mean": [], "kv": [], "q": []}

    def __len__(self) -> int:
        return len(self._jobs)

    def _job(self, op: CommandOp, kv_head: int, k: int = 0, heads: int = 0) -> None:
        self._jobs.append((op, kv_head, k, heads))

    def _done(self, result: JobResult | None) -> JobResult | None:
        """The latest job's result, and the work that it is."""
        self.results.append(result)
        op, kv_head, _, _ = self._jobs[-1]
        queries = [(len(head.selected), head.steps) for head in result.heads] if result else []
        full = self.model.heads[kv_head].used == self.parameters.rows
        self.work.append(JobWork(op.name, kv_head, full, queries))
        return result

    def _give(self, stream: str, *fields) -> None:
        self._inputs[stream].append(fields)
        self._owners[stream].append(len(self._jobs))

    def load(self, kv_head: int, mean: np.ndarray, divisor: float) -> None:
        if self.modelled:
            self.model.load(kv_head, mean, divisor)
        self._give("mean", mean, divisor)
        self._job(CommandOp.LOAD, kv_head)
        self._done(None)

    def clear(self, kv_head: int, unused: tuple[int, int] = (0, 0)) -> None:
        """`unused`: what the job's other fields say."""
        self._job(CommandOp.RESTART, kv_head, *unused)
        self._done(self.model.clear(kv_head) if self.modelled else None)

    def preset(self, kv_head: int, k, v, unused: tuple[int, int] = (0, 0)) -> None:
        self._give("kv", k)
        self._give("kv", v)
        self._job(CommandOp.PRESET, kv_head, *unused)
        self._done(self.model.preset(kv_head, k, v) if self.modelled else None)

    def step(self, kv_head: int, k, v, q, divisors, top_k: int, units=None) -> JobResult | None:
        self._give("kv", k)
        self._give("kv", v)
        for number in range(len(q)):
            self._give("q", q[number], divisors[number], 0 if units is None else units[number])
        self._job(CommandOp.STEP, kv_head, top_k, len(q))
        given = kv_head, k, v, q, divisors, top_k, units
        return self._done(self.model.step(*given) if self.modelled else None)

    def memory_rows(self) -> np.ndarray:
        """K and V as the memory must hold them: uint32[rows, words]; 0 where none was written."""
        p = self.parameters
        rows = 1 << (p.rows - 1).bit_length()
        held = np.zeros((p.kv_heads, 2, rows, p.d), np.float16)
        for number, head in enumerate(self.model.heads):
            held[number, 0, : p.rows], held[number, 1, : p.rows] = head.k, head.v
        return payload.pack(p.row_layout, {"": held.reshape(-1, p.d).view(np.uint16)})

    def memories(self, contents: np.ndarray | None = None) -> dict[str, Memory]:
        """The memory, of `contents` before the jobs (default: zeros); `after` is the model's."""
        after = self.memory_rows()
        before = np.zeros_like(after) if contents is None else contents
        return {"memory": memory_of(before, after)}

    def stimulus(self, notes: list[str], since: int = 0, contents=None) -> Stimulus:
        """The jobs from number `since` on, by a core that has ended the others."""
        p = self.parameters
        results = self.results[since:]
        fewest, most = cycles_of(p, self.work[since:])
        reported = [n for n, result in enumerate(results) if result is not None]
        reports = [result for result in results if result is not None]
        heads = [head for result in reports for head in result.heads]
        owners = [n for n, result in zip(reported, reports, strict=True) for _ in result.heads]
        counts = [len(result.heads) for result in reports if result.heads]
        last = np.zeros(len(heads), bool)
        last[np.cumsum(counts, dtype=np.intp) - 1] = True
        o = np.array([head.o for head in heads], np.float16).reshape(-1, p.d)
        stimulus = Stimulus(
            inputs=self.inputs(since),
            outputs={
                "o": payload.pack(
                    p.output_layout,
                    {
                        "o": o.view(np.uint16),
                        "present": np.array([len(head.selected) for head in heads], int),
                        "invalid": np.array([head.invalid for head in heads], int),
                        "last": last,
                    },
                ),
                "report": payload.pack(p.report_layout, _fields_of(p, reports)),
            },
            transaction_of={"o": np.array(owners, int), "report": np.array(reported, int)},
            transactions=len(results),
            cycles=fewest,
            band=(fewest, most),
            memories=self.memories(contents),
            notes=notes,
        )
        if p.observe:
            beats = [
                (row, bool(head.selected), number == len(rows) - 1)
                for head in heads
                for rows in [head.selected or [0]]
                for number, row in enumerate(rows)
            ]
            columns = zip(
                ("row", "present", "last"), np.array(beats, int).reshape(-1, 3).T, strict=True
            )
            stimulus.outputs["selected"] = payload.pack(p.sense.output_layout, dict(columns))
            counts = [max(1, len(head.selected)) for head in heads]
            stimulus.transaction_of["selected"] = np.repeat(np.array(owners, int), counts)
        return stimulus

    def inputs(self, since: int = 0) -> dict[str, np.ndarray]:
        """Beats of the jobs from number `since` on."""
        p = self.parameters
        op, kv_head, k, heads = np.array(self._jobs[since:], int).T
        jobs = {"op": op, "k": k, "heads": heads}
        if p.kv_heads > 1:
            jobs["kv_head"] = kv_head
        given = {
            name: [
                row for row, owner in zip(rows, self._owners[name], strict=True) if owner >= since
            ]
            for name, rows in self._inputs.items()
        }
        packed = {"command": payload.pack(p.command_layout, jobs)}
        packed["kv"] = payload.pack(p.row_layout, {"": _bits([k for (k,) in given["kv"]], p.d)})
        mean, divisor = _columns(given["mean"], 2)
        fields = {"mean": _bits(mean, p.d), "divisor": _bits(divisor)}
        packed["mean"] = payload.pack(p.mean_layout, fields)
        x, divisor, unit = _columns(given["q"], 3)
        fields = {"x": _bits(x, p.d), "divisor": _bits(divisor)}
        if p.exact == "cells":
            fields["unit"] = _bits(unit)
        packed["q"] = payload.pack(p.q_layout, fields)
        return packed


def _columns(rows: list[tuple], number: int) -> list[list]:
    return [[row[at] for row in rows] for at in range(number)]


def _bits(numbers_: list, width: int | None = None) -> np.ndarray:
    array = np.array(numbers_, np.float16)
    return (array if width is None else array.reshape(-1, width)).view(np.uint16)


def _fields_of(p: UnicaimCoreParameters, reports: list[JobResult]) -> dict[str, np.ndarray]:
    """Of reports; counts of more heads than `group` wrap around."""
    return {
        name: np.array([int(getattr(report, name)) for report in reports])
        & (1 << payload.width(p.report_layout[name].shape)) - 1
        for name in ("row", "evicts", "conversions", "steps")
    }


def _most(p: UnicaimCoreParameters, field: str) -> int:
    """The largest number that a job's field can say."""
    return (1 << payload.width(p.command_layout[field].shape)) - 1


def cycles_of(p: UnicaimCoreParameters, work: list[JobWork]) -> tuple[int, int]:
    """Fewest and most cycles of jobs in an idle core.

    The model is exact but for `later`, for arrays whose searches have a known number of steps and
    a reorder buffer with room for a few rows; else within 1 / 64.
    """
    model = CoreCycles(timing_of(p))
    for job in work:
        model.add(job)
    cycles = model.end + 1
    about = cycles >> 6 if p.array == "cell" or p.depth < 8 else 0
    return cycles - about, cycles + about + model.later


def timing_of(p: UnicaimCoreParameters) -> Timing:
    """The cycle model's constants of a core."""
    product = p.pe_array.outer_product
    return Timing(
        ranks=p.converter.ranks,
        key_bits=p.key_bits,
        query_bits=p.query_bits,
        scored=p.cells.latency,
        planes=p.accumulator.planes,
        mean=p.start == "mean",
        scores=p.pe_array.latency,
        depth=p.depth,
        softmax=p.attention.softmax_cycles,
        next_key=lambda rows: product(rows).next_row,
        result=product(1).result,
        converters=p.converters if p.exact == "cells" else 0,
        bits=p.adc_bits,
        reduction=lambda rows: p.softmax.reduction_cycles(rows, Operation.SOFTMAX),
        drain=DRAIN_CYCLES,
    )


def random_jobs(p: UnicaimCoreParameters, jobs: int, rng: np.random.Generator) -> CoreJobs:
    """Jobs of any kind in any order: ties, full arrays, special numbers, k and heads of all sizes,
    also above what the array has rows and the group has heads.

    The first ones load all kv heads and fill all but two rows of one, if many others follow. There
    is at least one job that is no load.
    """
    made, jobs = CoreJobs(p), max(jobs, p.kv_heads + 1)
    most_k, most_heads = _most(p, "k"), _most(p, "heads")
    keys = [1.0] * p.kv_heads
    kind, ties = "plain", False

    def rows(count: int) -> np.ndarray:
        x = numbers(kind, (count, p.d), rng)
        if ties and kind == "plain":
            x = np.rint(x).astype(np.float16)
        return x

    def load(kv_head: int) -> None:
        mean = rows(1)[0] if sometimes(rng, 0.5) else np.zeros(p.d, np.float16)
        mean = np.where(np.isfinite(mean), mean, 0).astype(np.float16)
        keys[kv_head] = divisor_for(p, float(rng.choice([0.3, 0.6, 1.0, 30.0])))
        made.load(kv_head, mean, keys[kv_head])

    for kv_head in range(p.kv_heads):
        load(kv_head)
    # So few jobs that no kv head has all its rows in use: most of them are for one, which is
    # filled first, so that rows are evicted.
    few = jobs < 4 * p.kv_heads * p.rows
    chosen = int(rng.integers(p.kv_heads))
    for _ in range(min(p.rows - 2, jobs - 24) if few else 0):
        made.preset(chosen, *rows(2))
    while len(made) < jobs:
        if sometimes(rng, 0.1):
            kind = str(rng.choice(["plain", "plain", "plain", "any", "special"]))
            ties = bool(sometimes(rng, 0.5))
        kv_head = int(rng.integers(p.kv_heads))
        if few and sometimes(rng, 0.7):
            kv_head = chosen
        if sometimes(rng, 0.03) and not (few and kv_head == chosen and len(made) < jobs * 0.9):
            made.clear(kv_head, (int(rng.integers(most_k + 1)), int(rng.integers(most_heads + 1))))
        elif len(made) + 1 < jobs and sometimes(rng, 0.04):  # it has no report to end a run
            load(kv_head)
        if len(made) >= jobs:
            break
        k, v = rows(2)
        if sometimes(rng, 0.15):
            made.preset(kv_head, k, v, (int(rng.integers(most_k + 1)), most_heads))
            continue
        heads = most_heads if sometimes(rng, 0.05) else p.group
        q = rows(int(rng.integers(0 if sometimes(rng, 0.1) else 1, heads + 1)))
        finite = np.where(np.isfinite(q), q, 0).astype(np.float16)
        divisors = query_divisors(p, finite)
        if sometimes(rng, 0.1):
            divisors = np.array([divisor_for(p, 2.0 ** rng.integers(-6, 6)) for _ in q])
        wanted = int(rng.choice([0, 1, 2, p.rows, int(rng.integers(most_k + 1))]))
        made.step(kv_head, k, v, q, divisors, wanted, code_units(p, keys[kv_head], divisors))
    return made


def real_jobs(
    p: UnicaimCoreParameters, trace: Trace, jobs: int, rng: np.random.Generator
) -> tuple[CoreJobs, list[str]]:
    """Tokens of the trace: two thirds of the rows are preset, then each token is a step.

    There are at least the three jobs that begin a sequence, up to its first step.
    """
    jobs = max(jobs, 3)
    if trace.q is None or trace.k is None or trace.v is None:
        return _rows_as_tokens(p, trace, jobs)
    group = min(p.group, trace.group)
    made, notes = CoreJobs(p), []
    scale = float(trace.scale) if trace.scale is not None else 1 / np.sqrt(trace.q.shape[-1])
    q, k, v = (within_fp16(x) for x in (trace.q * scale, trace.k, trace.v))
    layer, tokens = 0, k.shape[2]
    while len(made) < jobs:
        at = layer % k.shape[0]
        some = [_wide(x, p.d) for x in (q[at], k[at], v[at])]
        _sequence(made, some, group, trace.group, tokens, jobs)
        layer += 1
    notes.append(
        f"Tokens are q, k and v of the first {layer} layers, cut or filled up to {p.d} elements;"
        " once all are used they are repeated."
    )
    return made, notes


def _rows_as_tokens(p: UnicaimCoreParameters, trace: Trace, jobs: int):
    name, rows = next(iter(vectors_by_name(trace).items()))
    rows = within_fp16(_wide(np.asarray(rows), p.d))
    count = min(len(rows), 3 * p.rows)
    x = rows[:count][None]
    made = CoreJobs(p)
    while len(made) < jobs:
        scaled = (x / np.float16(np.sqrt(p.d))).astype(np.float16)
        queries = np.repeat(scaled, p.group, 0)
        _sequence(made, [queries, x, x], p.group, p.group, count, jobs)
    return made, [
        (
            f"Tokens are rows of {name}, cut or filled up to {p.d} elements, as q, k and v at once;"
            " once all are used they are repeated."
        ),
    ]


def _wide(x: np.ndarray, d: int) -> np.ndarray:
    """Rows [..., any] cut to d elements or filled up by zeros."""
    x = x[..., :d]
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, d - x.shape[-1])])


def _sequence(
    made: CoreJobs, rows: list[np.ndarray], group: int, stride: int, tokens: int, jobs: int
) -> None:
    """A sequence of q, k and v [heads, tokens, d] through as many kv heads as there are."""
    p = made.parameters
    q, k, v = rows
    room = jobs - len(made)
    # As many as all have more jobs than rows, so that rows are evicted.
    heads = max(1, min(p.kv_heads, len(k), room // (p.rows * 5 // 4 + 2)))
    prompt = max(0, min(p.rows * 2 // 3, tokens // 2, room // heads // 2 - 2))
    divisors = []
    for kv_head in range(heads):
        some = k[kv_head, : max(1, prompt)].astype(np.float64)
        mean = some.mean(axis=0).astype(np.float16)
        divisors.append(key_divisor(p, some, mean))
        made.load(kv_head, mean, divisors[-1])
        if len(made) < jobs:
            made.clear(kv_head)
        for token in range(prompt):
            made.preset(kv_head, k[kv_head, token], v[kv_head, token])
    steps = 0
    while len(made) < jobs and steps < 2 * p.rows:
        token = prompt + steps % (k.shape[1] - prompt)
        for kv_head in range(min(heads, jobs - len(made))):
            queries = q[kv_head * stride : kv_head * stride + group, token]
            found = query_divisors(p, queries)
            units = code_units(p, divisors[kv_head], found)
            row = k[kv_head, token], v[kv_head, token]
            made.step(kv_head, *row, queries, found, max(2, p.rows // 9), units)
        steps += 1
