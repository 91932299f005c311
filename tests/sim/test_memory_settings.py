"""A memory's timing from text, its binding to the ports of a design, and what is refused."""

import dataclasses
import random

import numpy as np
import pytest
from amaranth.hdl import unsigned
from amaranth.lib import data

from hw.catalogue import find
from hw.parameters import ParameterError
from sim.core import memory, payload
from sim.core.memory import Memory, MemoryTiming, timing_of
from sim.core.stalls import PATTERNS
from sim.drivers.run import require_memory
from tests.support.sim.duts import RowReader, RowReaderParameters, design

ROWS = 50
ARRIVAL = RowReaderParameters()


def contents(p: RowReaderParameters, seed: int = 1) -> np.ndarray:
    source = random.Random(seed)
    rows = [source.getrandbits(p.row_bits) for _ in range(ROWS)]
    return payload.from_ints(rows, p.row_layout()["data"].shape)


def memory_of(p: RowReaderParameters) -> Memory:
    return Memory(contents(p), "request", "response", write="write", write_data="data")


def test_plain_payloads_and_structs_as_fields():
    token = data.StructLayout({"token": 5, "chunk": 2})
    memory = Memory(
        np.zeros((1, 2), np.uint32),
        "ask",
        "get",
        address="payload",
        tag="payload",
        response_tag="of",
    )
    answer = data.StructLayout({"data": 40, "of": token})
    port = memory.port({"ask": token}, {"get": answer})
    assert port.request(0x55) == (0x55, 0x55, None)
    assert port.response(0x55, 7) == 0x55 << 40 | 7
    plain = dataclasses.replace(memory, data="payload", tag=None, address="payload.token")
    with pytest.raises(ParameterError, match="a memory's field must be one of token, chunk, not"):
        plain.port({"ask": token}, {"get": unsigned(40)})
    plain = dataclasses.replace(plain, address="token")
    assert plain.port({"ask": token}, {"get": unsigned(40)}).request(0x55) == (0, 0x15, None)


def test_same_seed_same_latencies():
    draws = [[MemoryTiming((1, 100), seed=s).draw(n) for n in range(50)] for s in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert all(1 <= latency <= 100 for latency in draws[0])


def test_latencies_are_drawn_evenly():
    counts = np.bincount([MemoryTiming((3, 10), seed=1).draw(n) for n in range(8000)])
    assert (counts[:3] == 0).all() and len(counts) == 11
    assert counts[3:].min() > 850 and counts[3:].max() < 1150


def test_timing_from_text():
    text = "latency=3..80,order=any,interval=2,seed=4"
    assert MemoryTiming.from_text(text) == MemoryTiming((3, 80), 2, True, 4)
    assert str(MemoryTiming.from_text(text)) == text
    assert MemoryTiming.from_text("latency=40", seed=7) == MemoryTiming((40, 40), seed=7)
    assert MemoryTiming.from_text("order=in").is_fastest
    assert not MemoryTiming.from_text("interval=2").is_fastest
    for stall, timing in memory.TIMINGS.items():
        assert MemoryTiming.from_text(str(timing)) == timing and stall in PATTERNS


def test_memories_without_tags_answer_in_order():
    tagged = memory_of(ARRIVAL)
    timing = MemoryTiming((1, 9), reorder=True)
    plain = dataclasses.replace(tagged, tag=None)
    chosen = memory.timings_of({"tagged": tagged, "plain": plain}, timing)
    assert chosen["tagged"] == timing
    assert chosen["plain"] == dataclasses.replace(timing, reorder=False)


def test_a_block_without_reorder_takes_no_order():
    plain = dataclasses.replace(memory_of(ARRIVAL), tag=None)
    block = find("stream.sequential_reader")
    require_memory(block, {"plain": plain}, MemoryTiming())
    with pytest.raises(ParameterError, match="has no tags, so its order must be in, not any"):
        require_memory(block, {"plain": plain}, MemoryTiming(reorder=True))


def test_one_timing_for_all_or_one_for_each():
    slow = MemoryTiming((9, 9))
    assert timing_of(slow, "keys") is slow
    assert timing_of({"keys": MemoryTiming(), "values": slow}, "values") is slow


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"latency": (0, 3)}, r"latency must be .*, both at least 1, not \(0, 3\)"),
        ({"latency": (4, 3)}, r"latency must be .*, both at least 1, not \(4, 3\)"),
        ({"latency": 5}, r"latency must be .*, both at least 1, not 5"),
        ({"interval": 0}, "interval must be between 1 and 10000 cycles, not 0"),
        ({"seed": -1}, "seed must be an unsigned 64-bit number, not -1"),
    ],
)
def test_timing_is_checked(arguments, message):
    with pytest.raises(ParameterError, match=f"^{message}$"):
        MemoryTiming(**arguments)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"request": "asks"}, "request must be an output of the design, not 'asks'"),
        ({"response": "o"}, "response must be an input of the design, not 'o'"),
        ({"address": "row"}, r"a memory's field must be one of tag, address, .*, not 'row'"),
        ({"tag": "address", "response_tag": "tag"}, "the response's tag must be as wide .* 6 .*"),
        ({"write": "address"}, "write must be 1 bit wide, not 6"),
        ({"write_data": "tag"}, "write_data must be as wide as data, 70 bits, not 4"),
        ({"data": "tag"}, "contents must have rows of 4 bits in words, not 3"),
    ],
)
def test_binding_is_checked(changes, message):
    subject = design(RowReader, ARRIVAL)
    memory = dataclasses.replace(memory_of(ARRIVAL), **changes)
    with pytest.raises(ParameterError, match=f"^{message}"):
        memory.port(subject.outputs, subject.inputs)


def test_a_memory_is_checked():
    with pytest.raises(ParameterError, match=r"contents must have the shape \[rows, words\]"):
        Memory(np.zeros(4, np.uint32), "request", "response")
    with pytest.raises(ParameterError, match="write and write_data must be given together"):
        Memory(np.zeros((4, 1), np.uint32), "request", "response", write="write")
