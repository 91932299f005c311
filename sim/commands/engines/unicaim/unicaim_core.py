"""Attention of a language model on UniCAIM's core, one session a layer (UniCAIM, section III)."""

import numpy as np

from golden.algorithms.unicaim import static_pruning
from golden.algorithms.unicaim.bit_exact import dense_prompt
from golden.lm.weights import Config
from golden.unicaim.divisors import code_units, key_divisor, query_divisors
from hw.parameters import require
from hw.unicaim.core_parameters import UnicaimCoreParameters
from sim.commands.engines.attention import (
    AttentionEngine,
    require_head_size,
)
from sim.commands.engines.part import LayerRun
from sim.commands.engines.stored import DRAIN, StoredAttention
from sim.core import payload
from sim.testbenches.unicaim.core_jobs import CoreJobs


class UnicaimAttention(StoredAttention[UnicaimCoreParameters]):
    """One layer's attention, computed by RTL and compared with the bit-exact model on every bit.

    The prompt's attention is dense, by NumPy, as the array is for decoding (III-A1); then each kv
    head keeps the tokens with the largest probabilities from the prompt's last 32 queries
    of its group, and these rows are written to the array. From then on the RTL does everything.

    Compared are outputs, reports, addresses where the core is built to `observe`, and after each
    step all rows of the memory. The ``votes`` of ``steps`` are the query heads that selected a row.

    heavy
        Tokens kept of a prompt.
    top_k
        Rows selected for each query head.
    """

    block = "unicaim.unicaim_core"

    def __init__(self, run: LayerRun, heavy: int, top_k: int):
        p = run.parameters(UnicaimCoreParameters)
        self._jobs = CoreJobs(p, modelled=run.check)
        # A row that is measured after its write keeps the array busy past its report.
        self.drain = DRAIN + p.cells.write_cycles - 1
        names = "conversions", "conversions of all rows", "steps", "rows evicted", "queries"
        super().__init__(run, self._jobs.memories(), p.d, names)
        self._heavy, self._top_k = heavy, top_k
        self.settings["top_k"] = top_k
        self._positions: np.ndarray | None = None  # [kv heads, rows]: tokens, -1 in a free row
        self._key_divisors: list[float] = []

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._positions is None:
            return self._prompt(q, k, v)
        return super().sequence(q, k, v)

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self._positions is None:
            return self._prompt(q[:, None], k[:, None], v[:, None])[:, 0]
        token, kv_heads = len(self.steps), len(k)
        operands = self._operands(q, k, v)
        since = len(self._jobs)
        queries = operands[0].reshape(kv_heads, -1, self._p.d)
        results = []
        for kv_head, (heads, key) in enumerate(zip(queries, self._key_divisors, strict=True)):
            divisors = query_divisors(self._p, heads)
            units = code_units(self._p, key, divisors)
            row = operands[1][kv_head], operands[2][kv_head]
            top_k = min(self._top_k, self._p.rows)
            results.append(self._jobs.step(kv_head, *row, heads, divisors, top_k, units))
        self._sums["queries"] += len(q)
        run = self._modelled if self._jobs.modelled else self._unchecked
        o, votes, written = run(token, since, results, len(q))
        evicted = self._write(token, written)
        self.rows = int(np.count_nonzero(self._positions >= 0))
        used = self._positions.shape[1] if evicted[0] >= 0 else self.rows // kv_heads
        self._sums["conversions of all rows"] += len(q) * used
        self._sums["rows evicted"] += sum(position >= 0 for position in evicted)
        positions = self._positions[:, :used].copy()
        return self._end(q, operands, o, positions, votes[:, :used], evicted)

    def _modelled(self, token: int, since: int, results: list, heads: int):
        """The step by the bit-exact model; by the RTL too, but perhaps later."""
        self._later(token, self._jobs.stimulus([], since=since))
        votes = np.zeros((len(results), self._p.rows), np.int32)
        for kv_head, result in enumerate(results):
            for head in result.heads:
                votes[kv_head, head.selected] += 1
        o = np.stack([head.o for result in results for head in result.heads])
        return o, votes, [(result.row, result.evicts) for result in results]

    def _unchecked(self, token: int, since: int, results: list, heads: int):
        """The step by the RTL alone, which does not show which rows are selected."""
        counts = {"o": heads, "report": len(results)}
        outcome = self._alone(token, self._jobs.inputs(since), counts)
        report = payload.unpack(self._design.outputs["report"], outcome.outputs["report"])
        written = list(zip(report["row"].tolist(), report["evicts"].tolist(), strict=True))
        votes = np.full((len(results), self._p.rows), -1, np.int32)
        return self._outputs(outcome), votes, written

    def _write(self, token: int, written: list[tuple[int, bool]]) -> list[int]:
        """Put the token into the rows written; the positions that it evicts, or -1."""
        assert self._positions is not None
        evicted = []
        for positions, (row, evicts) in zip(self._positions, written, strict=True):
            evicted.append(int(positions[row]) if evicts else -1)
            positions[row] = token
        self.evicted += [position for position in evicted if position >= 0]
        return evicted

    def _prompt(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The prompt [heads, tokens, d] densely; the rows to keep into the array."""
        p = self._p
        kv_heads, tokens, d = k.shape
        o, sums = dense_prompt(q, k, v)
        kept = static_pruning(sums, min(self._heavy, p.rows))
        self._positions = np.full((kv_heads, p.rows), -1, np.int64)
        self._positions[:, : kept.shape[1]] = kept
        fill = ((0, 0), (0, 0), (0, p.d - d))
        rows_k, rows_v = (np.pad(x, fill).astype(np.float16) for x in (k, v))
        for kv_head in range(kv_heads):
            mean = rows_k[kv_head].astype(np.float64).mean(axis=0).astype(np.float16)
            divisor = key_divisor(p, rows_k[kv_head], mean)
            self._key_divisors.append(divisor)
            self._jobs.load(kv_head, mean, divisor)
            for position in kept[kv_head]:
                self._jobs.preset(kv_head, rows_k[kv_head, position], rows_v[kv_head, position])
        self.cycles += [0] * (tokens - 1)  # the last token's cycles write the rows
        if self._jobs.modelled:
            self._later(tokens - 1, self._jobs.stimulus([]))
        else:
            self._rtl(tokens - 1, self._jobs.inputs(), {"report": kept.size}, self.drain)
        self.rows = kept.size
        for token in range(tokens):
            last = token == tokens - 1
            positions = kept if last else np.repeat(np.arange(token + 1)[None], kv_heads, axis=0)
            self._record([x[:, token] for x in (q, k, v, o)], positions)
        return o

    def count(self, report: dict[str, np.ndarray], o: dict[str, np.ndarray]) -> None:
        """Rows selected, that is conversions, and steps of the searches, of all query heads."""
        for name in ("conversions", "steps"):
            self._sums[name] += int(report[name].sum())


class UnicaimEngine(AttentionEngine[UnicaimCoreParameters]):
    def parameters(self, config: Config, rows: int) -> UnicaimCoreParameters:
        """A serial core of the model's heads with `rows` rows, rounded up to what it can have: a
        multiple of 8, 16 or more."""
        parallel = UnicaimCoreParameters.parallel
        return UnicaimCoreParameters(
            array="serial",
            query_bits=3,
            rows=max(2 * parallel, -(-rows // parallel) * parallel),
            accumulators=parallel,
            d=max(2, 1 << (config.d - 1).bit_length()),
            kv_heads=config.kv_heads,
            group=config.heads // config.kv_heads,
        )

    def require_fit(self, p: UnicaimCoreParameters, config: Config, rows: int, tokens: int) -> None:
        """Refuse a core that the model or the rows it keeps do not fit.

        :raises ParameterError: naming the parameter to change.
        """
        group = config.heads // config.kv_heads
        require(p.group >= group, f"group must be at least {group}", p.group)
        rule = f"kv_heads must be at least {config.kv_heads}"
        require(p.kv_heads >= config.kv_heads, rule, p.kv_heads)
        require_head_size(config, p.d)
        require(p.rows >= rows, f"rows must be at least the capacity, {rows}", p.rows)
        # It evicts when all of its rows are in use, and not before.
        require(p.rows == rows, f"capacity must be the core's rows, {p.rows}", rows)

    def note(self, figures: dict[str, float]) -> str:
        """What was saved, in words; nothing before the first token after the prompt."""
        if not figures["queries"]:
            return ""
        conversions, queries = figures["conversions"], figures["queries"]
        return (
            f"{conversions / queries:.1f} rows selected a query, "
            f"{figures['conversions of all rows'] / conversions:.2f} times fewer than in use, "
            f"{figures['steps'] / queries:.1f} steps a search, "
            f"{int(figures['rows evicted'])} rows evicted"
        )

    def attention(self, run: LayerRun, rows: int, top_k: int | None = None) -> UnicaimAttention:
        """`top_k` rows are selected: a ninth, 16 at least. 8/9 of the rows are for a prompt.

        These shares are the paper's, 64 and 512 of 576.
        """
        rows = run.parameters(UnicaimCoreParameters).rows
        return UnicaimAttention(run, rows * 8 // 9, max(16, rows // 9) if top_k is None else top_k)


engine = UnicaimEngine()
