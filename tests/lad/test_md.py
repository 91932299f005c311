"""Mode discrepancy module: words of G and totals, which have no handshake; rate; odd heads."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, wiring

from hw.catalogue import Block, find
from hw.component import Component
from hw.lad.md import (
    Md,
    MdParameters,
    command_layout,
    correction_layout,
    counter_row_layout,
    key_layout,
    totals_layout,
)
from hw.ports import Ports, stream_in, stream_out
from hw.stream.queue import Queue, QueueParameters
from sim.core import payload
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus
from sim.testbenches.lad.active_heads import ActiveHead, owners, random_heads, real_heads
from sim.testbenches.lad.md import build, testbench
from tests.support.kllm.compiled import Compiled

BLOCK = find("lad.md")
SMALL = MdParameters.preset("small")


class ObservedMdParameters(MdParameters):
    __doc__ = MdParameters.__doc__


def g_layout(p: MdParameters) -> data.StructLayout:
    return data.StructLayout({"index": p.position, "word": p.word_layout})


class ObservedMd(Component[ObservedMdParameters]):
    """MD with its words of G and its totals as streams, from queues that hold them all."""

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(command_layout(p)),
            "key": stream_in(key_layout(p)),
            "counters": stream_in(p.row_layout),
            "written": stream_out(counter_row_layout(p)),
            "correction": stream_out(correction_layout()),
            "g": stream_out(g_layout(p)),
            "totals": stream_out(totals_layout(p)),
        }

    def elaborate(self, platform):
        m, p = Module(), self.parameters
        m.submodules.md = md = Md(p)
        for name in ("command", "key", "counters", "written", "correction"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(md, name))
        for name, shape in (("g", g_layout(p)), ("totals", totals_layout(p))):
            m.submodules[name] = queue = Queue(QueueParameters(depth=1024), shape=shape)
            wiring.connect(m, queue.o, wiring.flipped(getattr(self, name)))
            if name == "g":
                m.d.comb += [
                    queue.i.valid.eq(md.g_valid),
                    queue.i.payload.index.eq(md.g_index),
                    queue.i.payload.word.eq(md.g_word),
                ]
            else:
                ends = self.correction.valid & self.correction.ready & self.correction.payload.last
                m.d.comb += [queue.i.valid.eq(ends), queue.i.payload.eq(md.totals)]
        return m


def observed(p: MdParameters, heads: list[ActiveHead]) -> Stimulus:
    """The block's stimulus with the expected words and totals."""
    plain = build(p, heads, [])
    found = [head.discrepancies for head in heads]
    active = [int(head.active.sum()) for head in heads]
    words = {
        "index": np.concatenate([head.index[head.active] for head in heads]),
        "word.count": np.concatenate([one.count for one in found]),
        "word.mode": np.concatenate([one.mode for one in found]),
        "word.active": np.ones(sum(active), int),
    }
    totals = {
        "active": np.array(active),
        "fresh": np.array([int(head.fresh[head.active].sum()) for head in heads]),
        "updated": np.array([one.updated for one in found]),
        "above": np.array([one.above for one in found]),
    }
    return dataclasses.replace(
        plain,
        outputs=plain.outputs
        | {
            "g": payload.pack(g_layout(p), words),
            "totals": payload.pack(totals_layout(p), totals),
        },
        transaction_of=plain.transaction_of
        | {"g": owners(active), "totals": np.arange(len(heads))},
    )


@pytest.fixture(scope="module")
def small():
    parameters = ObservedMdParameters(**dataclasses.asdict(SMALL))
    return Compiled(Block(ObservedMd), parameters)


@pytest.mark.parametrize("seed", range(3))
def test_words_and_totals(small, seed):
    p, rng = small.parameters, np.random.default_rng(seed)
    heads = random_heads(p, 80, rng)
    small.check_all(observed(p, heads), timed=False)
    found = [head.discrepancies for head in heads]
    counts = {
        "changed": sum(int(one.changed.sum()) for one in found),
        "refused": sum(one.updated == p.updates for one in found),
        "above": sum(one.above for one in found),
        "infinite": sum(one.infinite for one in found),
        "halved": sum(int(head.halve.sum()) for head in heads),
    }
    print(counts)
    assert all(counts.values())


def test_real_heads(small, shipped_trace):
    p = small.parameters
    heads, _ = real_heads(p, shipped_trace, 60, np.random.default_rng(1))
    small.check_all(observed(p, heads), timed=False)


def test_a_position_per_cycle(small):
    """A correction in every cycle of a head: the paper's |J| / 2 is |J| with one VPU."""
    p, rng = small.parameters, np.random.default_rng(2)
    heads = [head for head in random_heads(p, 60, rng) if head.active.all()]
    assert len(heads) > 10
    outcome = small.check(observed(p, heads), timed=False)
    cycles = outcome.cycles_of["correction"]
    first = 0
    for head in heads:
        count = len(head.index)
        assert np.array_equal(np.diff(cycles[first : first + count]), np.ones(count - 1))
        first += count


def test_a_mode_changes_at_most_for_updates_positions():
    """The position that leaves the window always may."""
    p, rng = SMALL, np.random.default_rng(3)
    full = 0
    for head in random_heads(p, 200, rng):
        changed = head.index[head.active][head.discrepancies.changed]
        leaves = head.n - p.window
        assert (changed < leaves).sum() < p.updates and (changed <= leaves).all()
        full += len(changed) == p.updates
    assert full > 10


@pytest.mark.campaign
@pytest.mark.parametrize(
    "settings",
    [
        {"counter_bits": 2},
        {"counter_bits": 11, "bounds": "1"},
        {"d": 16, "multiply_stages": 4, "add_stages": 4},
        {"window": 1, "updates": 2, "slack": 0},
        {"bounds": "80_52_36_26_18_11_5", "positions": 1000},
    ],
    ids=str,
)
def test_more_sizes(settings, shipped_trace):
    parameters = dataclasses.replace(SMALL, **settings)
    compiled = Compiled(BLOCK, parameters)
    for trace in (None, shipped_trace):
        stimulus = testbench.stimulus(parameters, trace, 60, seed=4)
        for stall in PATTERNS:
            compiled.check(stimulus, stall)
