"""UniCAIM's array as its definition reads: one kv head and row at a time."""

import math
from types import SimpleNamespace

import numpy as np

from golden.algorithms.unicaim.spread import device_errors
from golden.unicaim.rotation import signs


class Row:
    """One row of an array."""

    def __init__(self, position, k, v, accumulation, address):
        self.position, self.k, self.v, self.accumulation = position, k, v, accumulation
        self.address = address


class Array:
    """The array of one kv head with its group of query heads, straight from the definition."""

    def __init__(self, q, k, v, errors, *, heavy, prompt, key_bits, accumulate, scale, **rest):
        self.options = SimpleNamespace(**rest, key_bits=key_bits, accumulate=accumulate)
        self.scale = q.shape[-1] ** -0.5 if scale is None else scale
        self.key_errors, self.row_errors = errors
        d = k.shape[-1]
        self.mean = k[:prompt].mean(axis=0) if self.options.centre else np.zeros(d)
        rms = math.sqrt(sum(float(x) ** 2 for x in (k[:prompt] - self.mean).flat) / (prompt * d))
        span = self.options.span or (1 + key_bits / 2 if self.options.rotate else 4)
        self.step = rms * min(1, span / 2 ** (key_bits - 1)) if key_bits else 1
        self.outputs, self.sums = [], [0.0] * prompt
        for t in range(prompt):
            head_outputs = []
            for query in q[:, t]:
                p = self.softmax([self.scale * float(query @ k[j]) for j in range(t + 1)])
                if not self.options.observe or t >= prompt - self.options.observe:
                    self.sums = [s + (p[j] if j <= t else 0) for j, s in enumerate(self.sums)]
                head_outputs.append(sum(p[j] * v[j] for j in range(t + 1)))
            self.outputs.append(head_outputs)
        kept = list(range(prompt))
        while len(kept) > heavy:
            kept.remove(min(kept, key=lambda token: (self.sums[token], token)))
        presets = self.sums if accumulate == "attention" else [0.0] * prompt
        self.rows = [
            Row(token, k[token], v[token], presets[token], address)
            for address, token in enumerate(kept)
        ]
        self.capacity = heavy + self.options.reserved
        self.dropped = [(prompt - 1, token) for token in range(prompt) if token not in kept]
        self.read = self.conversions = 0

    @staticmethod
    def softmax(scores):
        weights = [math.exp(s - max(scores)) for s in scores]
        return [w / sum(weights) for w in weights]

    def rotated(self, x):
        """The signs, then the rows of Hadamard's matrix, element by element."""
        if not self.options.rotate:
            return x
        d, turned = len(x), x * signs(len(x), self.options.seed)
        matrix = [[(-1) ** (i & j).bit_count() for j in range(d)] for i in range(d)]
        return np.array(matrix) @ turned / math.sqrt(d)

    def query_step(self, query):
        rms = math.sqrt(sum(float(x) ** 2 for x in query) / len(query))
        return self.options.query_bits * rms / (2**self.options.query_bits - 1) if rms else 1

    def similarity(self, query, row):
        if not self.options.key_bits:
            return self.scale * float(query @ row.k)
        top, limit = 2**self.options.query_bits - 1, 2 ** (self.options.key_bits - 1)
        step, total = self.query_step(query), 0
        key = self.rotated(row.k - self.mean)
        for a, b, error in zip(self.rotated(query), key, self.key_errors[row.address], strict=True):
            digit = max(-top, min(top, round(a / step)))
            total += digit * (max(-limit, min(limit, round(b / (self.step or 1)))) + error)
        own = top * self.row_errors[row.address]
        return total + own - (self.code(own, d=len(query)) if self.calibrates("lines") else 0)

    def calibrates(self, what):
        return self.options.calibrate == what

    def code(self, similarity, d):
        """What a converter shows, in scores."""
        if not self.options.converter_bits:
            return similarity
        limit = d * 2 ** (self.options.key_bits - 1) * (2**self.options.query_bits - 1)
        unit, half = 1, 2 ** (self.options.converter_bits - 1)
        while limit > half * unit:
            unit *= 2
        return unit * max(-half, min(half - 1, math.floor(similarity / unit + 0.5)))

    def score(self, query, row, similarity):
        """What the softmax gets."""
        if self.options.exact == "rows":
            return self.scale * float(query @ row.k)
        shown = self.code(similarity, d=len(query))
        if self.calibrates("codes"):
            own = (2**self.options.query_bits - 1) * self.row_errors[row.address]
            shown -= self.code(own, d=len(query))
        return self.scale * shown * (self.step or 1) * self.query_step(query)

    def decode(self, t, queries, k, v):
        new = Row(t, k, v, 0.0, len(self.rows))
        if len(self.rows) < self.capacity:
            others = list(self.rows)
            self.rows.append(new)
        else:
            address = min(range(len(self.rows)), key=lambda row: (self.rows[row].accumulation, row))
            self.dropped.append((t, self.rows[address].position))
            new.address = address
            self.rows[address] = new
            others = [row for row in self.rows if row is not new]
        if self.options.start == "mean":
            new.accumulation = sum(row.accumulation for row in others) / len(others)
        output, read, totals = [], set(), [0.0] * len(self.rows)
        for query in queries:
            similar = [self.similarity(query, row) for row in self.rows]
            racing = list(range(len(self.rows)))
            last = []
            while len(racing) > self.options.top_k:
                lowest = min(similar[row] for row in racing)
                last = [row for row in racing if similar[row] == lowest]
                racing = [row for row in racing if similar[row] > lowest]
            if self.options.fill:
                racing += last[: self.options.top_k - len(racing)]
            read |= set(racing)
            self.conversions += len(racing)
            p = {}
            if racing:
                scores = [self.score(query, self.rows[row], similar[row]) for row in racing]
                p = dict(zip(racing, self.softmax(scores), strict=True))
            output.append(sum((p[row] * self.rows[row].v for row in racing), np.zeros(len(v))))
            for row in range(len(self.rows)):
                adds = similar[row] if self.options.accumulate == "charge" else p.get(row, 0.0)
                totals[row] += adds
        for used, total in zip(self.rows, totals, strict=True):
            if self.options.accumulate == "charge":
                used.accumulation += (total - used.accumulation) / 2**self.options.share
            else:
                used.accumulation += total
        self.read += len(read)
        self.outputs.append(output)


def simulate(q, k, v, options):
    """All kv heads' arrays after the whole sequence, and the output [heads, token, d]."""
    group = len(q) // len(k)
    arrays = []
    levels = options["spread_mv"] / 1200 * 2 ** options["key_bits"]
    shape = len(k), options["heavy"] + options["reserved"], k.shape[-1]
    errors = device_errors(shape, levels, np.random.default_rng(options["seed"]))
    for kv in range(len(k)):
        queries = q[kv * group : (kv + 1) * group]
        array = Array(queries, k[kv], v[kv], [error[kv] for error in errors], **options)
        for t in range(options["prompt"], q.shape[1]):
            array.decode(t, queries[:, t], k[kv, t], v[kv, t])
        arrays.append(array)
    o = np.concatenate([np.array(array.outputs).transpose(1, 0, 2) for array in arrays])
    return arrays, o
