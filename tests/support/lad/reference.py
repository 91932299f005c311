"""Locality aware attention of one query head in plain loops, from section III of the paper."""

import math

import numpy as np

from golden.algorithms.lad.piecewise_exp import PiecewiseExp


class Head:
    """Keys, values, centres, modes and counters of a head; the caches are summed from scratch.

    ``step`` returns the output and sets ``active`` (J), ``hits``, ``updated`` (U), ``large`` (M
    outside C), ``missed`` (false negatives), ``above``, ``keys_read``. With ``exact`` every score
    is known, so J is exact.
    """

    def __init__(self, bounds, window, *, exact, collinear, near, full, scale):
        self.exp, self.window, self.exact = PiecewiseExp(bounds), window, exact
        self.collinear, self.near, self.full, self.scale = collinear, near, full, scale
        self.k, self.v, self.cid, self.norm, self.dnorm, self.centres = [], [], [], [], [], []
        self.cnt, self.mode, self.active = [], [], set()

    def interval(self, x):
        last = 0
        for i, lower in enumerate(self.exp.lower):
            if lower < x:
                last = i
        return last

    def step(self, q, k, v):
        self.k.append(k)
        self.v.append(v)
        self.cnt.append([0] * len(self.exp))
        self.mode.append(0)
        self.join(k)
        n = len(self.k)
        old = max(n - self.window, 0)
        real = [float(np.dot(q * self.scale, key)) for key in self.k]
        large = {i for i in range(old) if self.exp.lower[self.mode[i]] >= self.near}
        known = large | set(range(old, n))
        s = []
        for i in range(n):
            approximate = real[self.cid[i]] * self.dnorm[i]
            s.append(real[i] if self.exact or i in known else approximate)
        m = max(s)
        before = self.active
        self.active = {i for i in range(old) if self.interval(s[i] - m) != self.mode[i]}
        self.active |= set(range(old, n))
        self.hits = len(self.active & before)
        self.new, self.stale = self.active - before, before - self.active
        self.keys_read = set(self.centres) | known | self.active
        self.large = large - set(self.centres)
        self.missed = sum(
            self.interval(real[i] - m) != self.mode[i] for i in range(old) if i not in self.active
        )
        self.above = sum(real[i] > m for i in self.active)
        num, den = np.zeros(len(v)), 0.0
        self.updated = []
        for i in range(n):
            x = real[i] - m
            line = self.interval(x) if i in self.active else self.mode[i]
            weight = self.exp.a[line] * x + self.exp.b[line]
            num, den = num + weight * self.v[i], den + weight
            self.count(i, line, n - self.window)
        return num / den

    def join(self, k):
        n, best, at = len(self.k) - 1, 0.0, 0
        self.norm.append(math.sqrt(float(np.dot(k, k))))
        for c in self.centres:
            length = self.norm[n] * self.norm[c]
            cos = float(np.dot(k, self.k[c])) / length if length else 0.0
            if abs(cos) > abs(best):
                best, at = cos, c
        if abs(best) > self.collinear:
            self.cid.append(at)
            self.dnorm.append(math.copysign(self.norm[n], best) / self.norm[at])
        else:
            self.cid.append(n)
            self.dnorm.append(1.0)
            self.centres.append(n)

    def count(self, i, line, leaving):
        cnt = self.cnt[i]
        cnt[line] += 1
        exceeds = line != self.mode[i] and cnt[line] > cnt[self.mode[i]]
        if i == leaving or i < leaving and exceeds:
            self.mode[i] = line
            self.updated.append(i)
        if max(cnt) >= self.full:
            self.cnt[i] = [c // 2 for c in cnt]

    def caches(self):
        """A to F by eq. 5; the window is in mode 0, whose coefficients are zero."""
        d = len(self.k[0])
        A, B, C, D = np.zeros((d, d)), np.zeros(d), np.zeros(d), np.zeros(d)
        E = F = 0.0
        for k, v, mode in zip(self.k, self.v, self.mode, strict=True):
            a, b = self.exp.a[mode], self.exp.b[mode]
            A += a * np.outer(k, v)
            B, C, D = B + a * v, C + b * v, D + a * k
            E, F = E + a, F + b
        return {"A": A, "B": B, "C": C, "D": D, "E": E, "F": F}
