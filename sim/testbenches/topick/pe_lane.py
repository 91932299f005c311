"""Testbench of the lane: chunks of keys in an order of arrival, decisions and sums out.

A transaction is a token. Responses arrive in an order in which a memory could have answered the
lane's requests, each with the logarithm of a denominator that sums up the lane's own differences,
some decisions late. So decisions are what a real memory and denominator would lead to, and still do
not depend on timing. Requests of first chunks and of the other chunks are two sequences, whose
interleaving depends on stalls.
"""

import dataclasses

import numpy as np
from amaranth.hdl import unsigned

from golden.algorithms.topick.decide import request_order
from golden.algorithms.topick.quantise import quantise, scale_for
from golden.topick.cycles import lane_cycles
from golden.topick.dag import Denominator
from golden.topick.margin_generator import scale_code, threshold_code
from golden.topick.pe_lane import (
    Decision,
    Head,
    LaneSizes,
    PeLane,
    chunk_of,
    probability_sum,
    weighted_sum,
)
from golden.trace import Trace
from hw.topick.pe_lane import PeLaneParameters
from sim.core import payload
from sim.core.stimulus import ShownRun, Stimulus, compare
from sim.testbenches.operands import vectors_by_name
from sim.testbenches.strategies import sometimes

LONGEST = 40  # tokens of most heads
DELAY = 4  # decisions from a difference to the denominator that it is in


def sizes_of(p: PeLaneParameters) -> LaneSizes:
    return LaneSizes(**{f.name: getattr(p, f.name) for f in dataclasses.fields(LaneSizes)})


@dataclasses.dataclass(frozen=True, eq=False)
class HeadData:
    """A head, its keys' codes, and the probabilities and values of its weighted sum.

    latency
        Latency of the memory, in responses: shortest and longest.
    known
        Share of the decisions that may see a denominator.
    """

    head: Head
    k: np.ndarray
    p: np.ndarray
    v: np.ndarray
    latency: tuple[int, int] = (3, 9)
    known: float = 1.0


class Replay:
    """Heads in order through the bit-exact model."""

    def __init__(self, parameters: PeLaneParameters, rng: np.random.Generator):
        self.parameters, self._rng = parameters, rng
        self.sizes = sizes_of(parameters)
        self.lane = PeLane(self.sizes)
        self.heads: list[HeadData] = []
        self.margins: list[tuple[list[int], list[int]]] = []
        self.tokens: list[int] = []
        self.firsts: list[tuple[int, int]] = []  # token and slot of first chunks' requests
        self.decisions: list[Decision] = []
        self.owners: list[int] = []  # transaction of each decision
        self.seen: list[tuple[bool, int]] = []  # (known, log2) that each decision sees
        self.denominators: list[Denominator] = []
        self.head_of: list[int] = []

    def add(self, data: HeadData) -> None:
        """Make all decisions of a head."""
        rng, head = self._rng, data.head
        self.lane.begin(head)
        self.margins.append((self.lane.most[:-1], self.lane.least[:-1]))
        denominator = Denominator(limb=self.sizes.limb, fraction=self.sizes.fraction)
        order = request_order(np.array([head.tokens - 1]), head.tokens)[:, 0].tolist()
        base = len(self.tokens)
        transaction = {token: base + number for number, token in enumerate(order)}
        self.tokens += order
        in_flight = []  # due time, token, chunk, slot
        delayed: list[tuple[int, int, int] | None] = []
        time = 0

        def request(token, chunk, slot):
            in_flight.append((time + int(rng.integers(*data.latency)), token, chunk, slot))

        def request_first():
            while order and self.lane.scoreboard.free:
                slot = self.lane.scoreboard.take()
                self.firsts.append((order[0], slot))
                request(order.pop(0), 0, slot)

        request_first()
        while in_flight:
            in_flight.sort(key=lambda due: due[0])
            _, token, chunk, slot = in_flight.pop(0)
            known, log2 = denominator.log2()
            if known and rng.random() >= data.known:
                known, log2 = False, int(rng.integers(-(1 << 8), 1 << 8))
            bits = chunk_of(data.k[token], chunk, self.sizes)
            decision = self.lane.decide(token, chunk, slot, bits, known, log2)
            self.decisions.append(decision)
            self.seen.append((known, log2))
            self.owners.append(transaction[token])
            self.head_of.append(len(self.heads))
            delayed.append(decision.difference)
            if len(delayed) > DELAY and (found := delayed.pop(0)) is not None:
                denominator.add(*found)
            if decision.requests:
                request(token, chunk + 1, slot)
            request_first()
            time += 1
        for found in delayed:
            if found is not None:
                denominator.add(*found)
        self.denominators.append(denominator)
        self.heads.append(data)

    def stimulus(self, notes: list[str]) -> Stimulus:
        p, z = self.parameters, self.sizes
        decisions = self.decisions
        chunks = [
            chunk_of(self.heads[number].k[d.token], d.chunk, z)
            for number, d in zip(self.head_of, decisions, strict=True)
        ]
        tags = _columns([(d.token, d.chunk, d.slot) for d in decisions], "token chunk slot")
        continued = [d for d in decisions if d.requests]
        requests = [(token, 0, slot) for token, slot in self.firsts]
        requests += [(d.token, d.chunk + 1, d.slot) for d in continued]
        owners = np.array(self.owners)
        differs = [d.difference is not None for d in decisions]
        is_last = [not d.requests for d in decisions]  # of its token
        values, sums = self._values()
        names = "token chunk t kept last"
        decided = [(d.token, d.chunk, d.t, d.kept, d.ended) for d in decisions if not d.requests]
        found = [d.difference for d in decisions if d.difference is not None]
        first_tokens = np.cumsum([0] + [data.head.tokens for data in self.heads])
        outputs = {
            "request": payload.pack(p.tag_layout, _columns(requests, "token chunk slot")),
            "difference": payload.pack(p.difference_layout, _columns(found, "limb high low")),
            "decided": payload.pack(p.decided_layout, _columns(decided, names)),
            "o": payload.pack(p.sum_layout, sums),
        }
        again = [owner for owner, d in zip(self.owners, decisions, strict=True) if d.requests]
        return Stimulus(
            inputs={
                "command": self._commands(),
                "token": payload.pack(unsigned(p.token_bits), {"payload": np.array(self.tokens)}),
                "response": payload.pack(
                    p.response_layout,
                    {f"tag.{name}": column for name, column in tags.items()}
                    | {"data": np.array(chunks)},
                ),
                "log_denominator": payload.pack(
                    p.denominator_layout, _columns(self.seen, "known log2")
                ),
                "value": payload.pack(p.value_layout, values),
            },
            outputs=outputs,
            transaction_of={
                "request": np.concatenate([np.arange(len(self.firsts)), again]).astype(np.int64),
                "difference": owners[differs],
                "decided": owners[is_last],
                "o": first_tokens[:-1],
            },
            transactions=len(self.tokens),
            cycles=self._cycles(),
            notes=notes,
        )

    def _cycles(self) -> int:
        p = self.parameters
        last_values = []
        for data in self.heads:
            last_values += [False] * (len(data.p) * p.chunks - 1) + [True]
        return lane_cycles(
            [data.head.tokens for data in self.heads],
            self.decisions,
            last_values,
            entries=p.entries,
            latency=p.latency,
            decision_latency=p.decision_latency,
        )

    def _commands(self) -> np.ndarray:
        p, heads = self.parameters, [data.head for data in self.heads]
        names = ("mantissa", "shift", "threshold", "tokens", "exempt")
        fields = {name: np.array([getattr(head, name) for head in heads]) for name in names}
        fields["q"] = np.array([head.q for head in heads])
        for name, margins in zip(("most", "least"), zip(*self.margins, strict=True), strict=True):
            fields[name] = np.array(margins)
        return payload.pack(p.command_layout, fields)

    def _values(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Fields of the values' beats, chunks in any order, and fields of the sums."""
        z = self.sizes
        fields: dict[str, list] = {name: [] for name in ("p", "data", "chunk", "last")}
        sums: dict[str, list] = {"o": [], "total": []}
        for data in self.heads:
            chunks = [(i, b) for i in range(len(data.p)) for b in range(z.chunks)]
            for number in self._rng.permutation(len(chunks)):
                token, chunk = chunks[number]
                fields["p"].append(data.p[token])
                fields["data"].append(chunk_of(data.v[token], chunk, z))
                fields["chunk"].append(chunk)
                fields["last"].append(0)
            fields["last"][-1] = 1
            sums["o"].append(weighted_sum(data.p, data.v, z))
            sums["total"].append(probability_sum(data.p, z))
        beats, ends = (
            {name: np.array(column) for name, column in of.items()} for of in (fields, sums)
        )
        return beats, ends


def _columns(rows: list[tuple], names: str) -> dict[str, np.ndarray]:
    table = np.array([tuple(map(int, row)) for row in rows], np.int64).reshape(len(rows), -1)
    if not len(rows):
        table = np.zeros((0, len(names.split())), np.int64)
    return {name: table[:, n] for n, name in enumerate(names.split())}


class PeLaneTestbench:
    def default_vectors(self, parameters: PeLaneParameters) -> int:
        return 300 if parameters.d <= 8 else 60

    def stimulus(
        self, parameters: PeLaneParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        replay = Replay(parameters, rng)
        notes: list[str] = []
        left, number = vectors, 0
        while left:
            if trace is None:
                data = random_head(parameters, left, rng)
            else:
                data, notes = real_head(parameters, trace, number, left, rng)
            replay.add(data)
            left -= data.head.tokens
            number += 1
        return replay.stimulus(notes)

    def compare(self, stimulus: Stimulus, got: dict, layouts: dict, cycles_of: dict) -> list:
        """Requests of first chunks and of other chunks are compared each in their own order."""
        beats = got["request"]
        later = payload.unpack(layouts["request"], beats)["chunk"] != 0
        order = np.argsort(later, kind="stable")
        return compare(
            stimulus,
            got | {"request": beats[order]},
            layouts,
            cycles_of | {"request": np.asarray(cycles_of["request"])[order]},
        )

    def shown(self, run: ShownRun, figure) -> str:
        """The RTL's requests of the first head, in their order."""
        request, kept = run.outputs["request"], run.outputs["decided"]["kept"]
        tokens = int(run.inputs["command"]["tokens"][0])
        # Each token has one first request in a head; the next head starts with the one after.
        firsts = np.flatnonzero(request["chunk"] == 0)
        shown = slice(firsts[tokens] if len(firsts) > tokens else len(request["chunk"]))
        token, chunk = request["token"][shown].astype(int), request["chunk"][shown].astype(int)
        axes = figure.subplots()
        for number in range(chunk.max() + 1):
            which = np.flatnonzero(chunk == number)
            axes.plot(which, token[which], "os^D"[number % 4], ms=5, label=f"chunk {number}")
        axes.set_xlabel("request")
        axes.set_ylabel("token")
        axes.locator_params(axis="y", integer=True)
        axes.legend(loc="best")
        most = run.parameters.chunks * tokens
        return (
            f"A head of {tokens} tokens: {len(token)} of {most} chunks of its keys, in the order in"
            " which the RTL requested them. It begins with the newest token and the first one, and"
            f" has at most {run.parameters.entries} tokens in flight;"
            f" {int(kept[:tokens].sum())} tokens are kept."
        )


testbench = PeLaneTestbench()


def codable(p: PeLaneParameters, threshold: float) -> float:
    """The threshold, or the least that has a code and prunes."""
    least = 2.0 ** (-((1 << p.threshold_bits) - 2) / 2**p.fraction)
    return min(max(threshold, least), 0.9)


def coded_head(p: PeLaneParameters, q: np.ndarray, c: float, threshold: float, tokens: int) -> Head:
    """A head from codes; a score of 1 means the natural logarithm `c`."""
    mantissa, shift = scale_code(
        c / np.log(2) * 2.0**p.fraction,
        base=p.base,
        scale_bits=p.scale_bits,
        shift_bits=p.shift_bits,
    )
    code = threshold_code(threshold, fraction=p.fraction, threshold_bits=p.threshold_bits)
    return Head(np.asarray(q, np.int64), mantissa, shift, code, tokens)


def real_head(
    p: PeLaneParameters, trace: Trace, number: int, most: int, rng, longest: int = LONGEST
) -> tuple[HeadData, list[str]]:
    """A query of the trace's heads in turn, with the keys and values up to its token."""
    if trace.q is None or trace.k is None or trace.v is None:
        name, rows = next(iter(vectors_by_name(trace).items()))
        rows = np.asarray(rows, np.float64)
        tokens = min(len(rows), longest, most, 1 << p.token_bits)
        q, k, v, scale = rows[tokens - 1], rows[:tokens], rows[:tokens], 1 / np.sqrt(rows.shape[1])
        what = f"rows of {name} with each other"
    else:
        layers, heads, length, _ = trace.q.shape
        layer, head = number % layers, number // layers % heads
        tokens = min(length, longest - number % 7, most, 1 << p.token_bits)
        end = length if longest > LONGEST else min(length, tokens + 16 * (number % 16))
        begin = end - tokens
        q = trace.q[layer, head, end - 1].astype(np.float64)
        k, v = (
            x[layer, head // trace.group, begin:end].astype(np.float64) for x in (trace.k, trace.v)
        )
        scale = trace.scale
        what = f"q, k and v of the heads in turn, {longest} tokens or a few less"
    q, k, v = (_fit(x, p.d) for x in (q, k, v))
    parts = [scale_for(np.abs(x).max(), p.bits) for x in (q, k, v)]
    q, k, v = (quantise(x, part, p.bits) for x, part in zip((q, k, v), parts, strict=True))
    c = float(parts[0] * parts[1] * scale)
    score = k.astype(np.float64) @ q * c
    e = np.exp(score - score.max())
    most = (1 << p.probability_bits) - 1
    weights = np.minimum(e / e.sum() * (most + 1), most).astype(int)
    kept = np.argsort(-weights, kind="stable")[:8]
    threshold = codable(p, 1e-3)
    head = coded_head(p, q, c, threshold, len(k))
    note = (
        f"Heads are {what}, cut or filled up to {p.d} elements, quantised to {p.bits} bits with a"
        " scale of their own, repeated where there are not enough; threshold "
        f"{threshold:.2g}; values of the 8 most probable tokens."
    )
    return HeadData(head, k, weights[kept], v[kept]), [note]


def _fit(x: np.ndarray, d: int) -> np.ndarray:
    """Vectors of d elements."""
    x = x[..., :d]
    return np.concatenate([x, np.zeros((*x.shape[:-1], d - x.shape[-1]))], axis=-1)


def random_head(p: PeLaneParameters, most: int, rng: np.random.Generator) -> HeadData:
    """Any codes, scales and thresholds.

    Most prune some tokens at every chunk and keep others. Some have extreme codes, a single token,
    or more tokens than slots.
    """
    longest = int(rng.choice([1, 4, 12, LONGEST, 64]))
    tokens = longest if sometimes(rng, 0.2) else int(rng.integers(1, longest + 1))
    tokens = min(most, tokens, 1 << p.token_bits)
    low, high = -(1 << p.bits - 1), (1 << p.bits - 1) - 1
    kind = ("extreme", "any scale", "any", "any", "any", "any")[int(rng.integers(0, 6))]
    if kind == "extreme":
        q, k = (rng.choice([low, high, 0, -1], n) for n in (p.d, (tokens, p.d)))
    else:
        q = rng.integers(low, high + 1, p.d) >> rng.integers(0, p.bits)
        k = rng.integers(low, high + 1, (tokens, p.d))
    v = rng.integers(low, high + 1, (int(rng.integers(1, 4)), p.d))
    most = (1 << p.probability_bits) - 1
    weights = (
        rng.choice([0, 1, most], len(v)) if kind == "extreme" else rng.integers(0, most + 1, len(v))
    )
    spread = max(1.0, float((k @ q).std()))
    threshold = float(rng.choice([0.3, 0.1, 0.01, codable(p, 1e-3), 0.0, 0.9]))
    head = coded_head(p, q, float(rng.choice([0.3, 2.0, 8.0, 64.0])) / spread, threshold, tokens)
    head = dataclasses.replace(head, exempt=sometimes(rng, 0.5))
    if kind == "any scale":
        any_scale = int(rng.integers(0, 1 << p.scale_bits)), int(rng.integers(0, 1 << p.shift_bits))
        head = dataclasses.replace(head, mantissa=any_scale[0], shift=any_scale[1])
    latency = [(1, 2), (1, 6), (2, 60), (12, 14)][int(rng.integers(0, 4))]
    return HeadData(head, k, weights, v, latency, known=float(rng.choice([1.0, 0.9])))
