"""Jobs of UniCAIM's core, and the stimulus that they make, with the model's results."""

import dataclasses

import numpy as np

from golden.trace import Trace
from golden.unicaim.core_cycles import CoreCycles, JobWork, Timing
from golden.unicaim.divisors import code_units, divisor_for, key_divisor, query_divisors
from golden.unicaim.unicaim_core import CoreSizes, JobResult, UnicaimCore
from hw.attention.special_function_unit import Operation
from hw.unicaim.command import CommandOp
from hw.unicaim.core_parameters import STAGES, UnicaimCoreParameters
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Stimulus
from sim.core.streams import Streams, last_of
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
        self._inputs = Streams(
            {
                "mean": parameters.mean_layout,
                "command": parameters.command_layout,
                "kv": parameters.row_layout,
                "q": parameters.q_layout,
            }
        )
        outputs = {"o": parameters.output_layout, "report": parameters.report_layout}
        if parameters.observe:
            outputs["selected"] = parameters.sense.output_layout
        self._outputs = Streams(outputs)

    def __len__(self) -> int:
        return len(self.results)

    def _job(self, op: CommandOp, kv_head: int, k: int = 0, heads: int = 0) -> None:
        fields = {"op": op, "kv_head": kv_head, "k": k, "heads": heads}
        names = self._inputs.fields("command")
        self._inputs.add("command", len(self), {name: fields[name] for name in names})
        self._latest = op, kv_head

    def _done(self, result: JobResult | None) -> JobResult | None:
        """The latest job's result, and the work that it is."""
        if result is not None:
            self._expect(result)
        self.results.append(result)
        op, kv_head = self._latest
        queries = [(len(head.selected), head.steps) for head in result.heads] if result else []
        full = self.model.heads[kv_head].used == self.parameters.rows
        self.work.append(JobWork(op.name, kv_head, full, queries))
        return result

    def _expect(self, result: JobResult) -> None:
        """Beats of the outputs; counts of more heads than `group` wrap around."""
        p, heads, number = self.parameters, result.heads, len(self)
        report = {
            name: int(getattr(result, name)) & (1 << payload.width(field.shape)) - 1
            for name, field in p.report_layout
        }
        self._outputs.add("report", number, report)
        if not heads:
            return
        o = {
            "o": np.array([head.o for head in heads], np.float16),
            "present": np.array([len(head.selected) for head in heads]),
            "invalid": np.array([head.invalid for head in heads], bool),
            "last": last_of([len(heads)]),
        }
        self._outputs.add("o", number, o)
        for head in heads if p.observe else ():
            rows = np.array(head.selected if len(head.selected) else [0])
            present = np.full(len(rows), len(head.selected) > 0)
            beats = {"row": rows, "present": present, "last": last_of([len(rows)])}
            self._outputs.add("selected", number, beats)

    def _give_rows(self, k: np.ndarray, v: np.ndarray) -> None:
        self._inputs.add("kv", len(self), {"": np.array([k, v], np.float16)})

    def load(self, kv_head: int, mean: np.ndarray, divisor: float) -> None:
        if self.modelled:
            self.model.load(kv_head, mean, divisor)
        fields = {"mean": np.array([mean], np.float16), "divisor": np.float16(divisor)}
        self._inputs.add("mean", len(self), fields)
        self._job(CommandOp.LOAD, kv_head)
        self._done(None)

    def clear(self, kv_head: int, unused: tuple[int, int] = (0, 0)) -> None:
        """`unused`: what the job's other fields say."""
        self._job(CommandOp.RESTART, kv_head, *unused)
        self._done(self.model.clear(kv_head) if self.modelled else None)

    def preset(self, kv_head: int, k, v, unused: tuple[int, int] = (0, 0)) -> None:
        self._give_rows(k, v)
        self._job(CommandOp.PRESET, kv_head, *unused)
        self._done(self.model.preset(kv_head, k, v) if self.modelled else None)

    def step(self, kv_head: int, k, v, q, divisors, top_k: int, units=None) -> JobResult | None:
        self._give_rows(k, v)
        fields = {"x": np.asarray(q, np.float16), "divisor": np.asarray(divisors, np.float16)}
        if self.parameters.exact == "cells":
            units = np.zeros(len(q)) if units is None else units
            fields["unit"] = np.asarray(units, np.float16)
        self._inputs.add("q", len(self), fields)
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
        fewest, most = cycles_of(self.parameters, self.work[since:])
        return Stimulus(
            inputs=self.inputs(since),
            outputs=self._outputs.packed(since),
            transaction_of=self._outputs.owners(since),
            transactions=len(self) - since,
            cycles=fewest,
            band=(fewest, most),
            memories=self.memories(contents),
            notes=notes,
        )

    def inputs(self, since: int = 0) -> dict[str, np.ndarray]:
        """Beats of the jobs from number `since` on."""
        return self._inputs.packed(since)


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
        calibration=p.cells.write_cycles - 1,
        words=p.words if p.accumulators else 0,
        drain=STAGES,
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
