"""Blocks behind AXI, with cocotbext-axi's RAM and master: their outputs, descriptors and errors."""

import dataclasses

import pytest

from hw.bus.bus_parameters import BusParameters
from hw.bus.device_map import descriptor_bytes
from hw.bus.errors import ErrorCode
from hw.catalogue import blocks, find
from sim.commands import lint
from sim.core.design import Design
from sim.core.stimulus import compare
from sim.drivers.axi.program import CONTROL_RESET, Session
from sim.drivers.axi.runner import generate_device
from tests.support.bus.devices import SMALL, differences, each, simulation, stimuli

pytestmark = pytest.mark.icarus
READER = "stream.sequential_reader"
WIDE = BusParameters(data=256, address=40)
# One transaction takes long, or several cost little.
VECTORS = {"stream": 12, "arith": 12}


@pytest.mark.parametrize(
    ("name", "bus"),
    [
        pytest.param(READER, SMALL, id="reader"),
        pytest.param("unicaim.unicaim_core", SMALL, id="unicaim", marks=pytest.mark.campaign),
        pytest.param("veda.veda_core", WIDE, id="veda_wide", marks=pytest.mark.campaign),
        pytest.param("arith.float_add", each(SMALL), id="each", marks=pytest.mark.campaign),
        pytest.param("lad.lad_tile", each(WIDE), id="lad_each", marks=pytest.mark.campaign),
    ],
)
def test_memory_holds_what_the_golden_model_says(name, bus):
    vectors = VECTORS.get(name.partition(".")[0], 1)
    assert not differences(simulation(name, bus), vectors)


@pytest.mark.campaign
@pytest.mark.parametrize("name", [block.name for block in blocks()])
def test_every_block_is_a_device(name):
    vectors = VECTORS.get(name.partition(".")[0], 1)
    assert not differences(simulation(name, BusParameters()), vectors)


LONG_ROWS = {("kllm.kllm_core", "paper")}
"""Presets whose memory has rows for which 256 transfers of 64 bits are too few."""


def presets(block):
    """All of a core, which a device is made for; the first of other blocks."""
    core = block.name.endswith(("_core", "_tile"))
    return list(block.parameters_class.presets())[: None if core else 1]


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param(
            block.name,
            preset,
            marks=() if (block.name, preset) == (READER, "small") else pytest.mark.campaign,
        )
        for block in blocks()
        for preset in presets(block)
    ],
)
def test_lint_is_clean(name, preset):
    """On a bus of 64 address bits, as the largest memories need.

    Yosys, which can need an hour for a device of another size, checks those cores without it.
    """
    block = find(name)
    bus = BusParameters(data=512 if (name, preset) in LONG_ROWS else 64, address=64)
    device = generate_device(block, block.parameters_class.preset(preset), bus)
    design = Design(block, device.parameters, device.module, device.verilog, {}, {})
    first = preset == block.parameters_class.preset_name("first")
    (lint.check if first else lint.check_with_verilator)(design)


def reader():
    """A session and stimulus of the small reader: one memory, one input, one output."""
    design = simulation(READER).device
    stimulus = stimuli(design.block, design.parameters, 6)[1]
    session = Session(design)
    return design, stimulus, session, session.buffers(stimulus)


def write_all(session, values):
    for name, value in values.items():
        session.write(name, value)


def check(design, stimulus, session, result, tag=""):
    outcome = session.outcome(stimulus, result, tag)
    assert not compare(stimulus, outcome.outputs, design.payloads, outcome.cycles_of)


def test_descriptors_run_many_steps_and_one_interrupt():
    """Three runs, each with buffers of its own; the second has an interrupt too."""
    design, stimulus, session, first = reader()
    steps = [first, *(session.buffers(stimulus, tag) for tag in ("second ", "third "))]
    size = descriptor_bytes(design.device)
    places = [session.allocate(size) for _ in steps]
    for n, (values, place) in enumerate(zip(steps, places, strict=True)):
        following = places[n + 1] if n + 1 < len(places) else 0
        session.program.ram[place] = session.descriptor(values, following, flags=int(n == 1))
    session.write("descriptor_next", places[0])
    session.start()  # the second step's interrupt
    session.finish()
    session.read("descriptor_count")
    [result] = simulation(READER).run_programs([session.program])
    assert result.failure is None
    assert result.values["error"] == [0, 0]
    assert result.values["descriptor_count"] == [3]
    for tag in ("", "second ", "third "):
        check(design, stimulus, session, result, tag)


def faulty(name, change):
    """A program whose first start fails as `change` says, and whose second one works."""
    _, stimulus, session, values = reader()
    wrong = change(session, dict(values))
    write_all(session, wrong)
    session.start()
    write_all(session, values | dict.fromkeys(set(wrong) - set(values), 0))
    session.start()
    return stimulus, session, values


def with_values(**wrong):
    def change(session, values):
        return values | wrong

    return change


def descriptor_at(offset):
    def change(session, values):
        place = session.allocate(256) + offset
        session.program.ram[place] = session.descriptor(values, 0)
        return values | {"descriptor_next": place}

    return change


FAULTS = {
    "misaligned": (with_values(input_command_base=0x20002), ErrorCode.MISALIGNED_BASE, 0),
    "zero": (with_values(memory_base=0), ErrorCode.ZERO_BASE, 2),
    "no_beats": (with_values(input_command_beats=0, output_o_beats=0), ErrorCode.NO_BEATS, 0),
    "too_large": (with_values(output_o_base=0x1_0000_0000), ErrorCode.ADDRESS_TOO_LARGE, 1),
    "end_too_large": (with_values(output_o_base=0xFFFF_FFFC), ErrorCode.ADDRESS_TOO_LARGE, 1),
    "descriptor": (descriptor_at(8), ErrorCode.MISALIGNED_DESCRIPTOR, 3),
    "descriptor_too_large": (
        with_values(descriptor_next=0x1_0000_0000),
        ErrorCode.ADDRESS_TOO_LARGE,
        3,
    ),
}


def test_wrong_starts_are_refused_and_the_next_one_works():
    design = simulation(READER).device
    cases = [faulty(name, change) for name, (change, *_) in FAULTS.items()]
    results = simulation(READER).run_programs([session.program for _, session, _ in cases])
    for (stimulus, session, _), (_, code, channel), result in zip(
        cases, FAULTS.values(), results, strict=True
    ):
        assert result.failure is None
        assert result.values["error"] == [code.value | channel << 8, 0]
        assert [status & 5 for status in result.values["interrupt_status"]] == [4, 1]
        check(design, stimulus, session, result)


def failing_at(register, beats=0):
    """Reads or writes of a buffer fail in the first run, which uses another place."""

    def change(session, values):
        place = session.allocate(0x1000)
        session.program.failing.append(range(place, place + 0x1000))
        return values | {register: place}

    return change


BUS_FAULTS = {
    "input": (failing_at("input_command_base"), ErrorCode.READ_SLAVE_ERROR, 0),
    "output": (failing_at("output_o_base"), ErrorCode.WRITE_SLAVE_ERROR, 1),
    "memory": (failing_at("memory_base"), ErrorCode.READ_SLAVE_ERROR, 2),
    "descriptor": (failing_at("descriptor_next"), ErrorCode.READ_SLAVE_ERROR, 3),
}


def test_bus_errors_end_the_run_and_the_next_one_works():
    design = simulation(READER).device
    cases = [faulty(name, change) for name, (change, *_) in BUS_FAULTS.items()]
    results = simulation(READER).run_programs([session.program for _, session, _ in cases])
    for (stimulus, session, _), (_, code, channel), result in zip(
        cases, BUS_FAULTS.values(), results, strict=True
    ):
        assert result.failure is None
        assert result.values["error"] == [code.value | channel << 8, 0]
        assert result.values["error_address"][0] % 4 == 0
        assert result.values["error_address"][0] in session.program.failing[0]
        check(design, stimulus, session, result)


def test_a_reset_in_mid_burst_and_a_start_while_running():
    """The bus is drained, so that the next run's data is right; a second start changes nothing."""
    design, stimulus, session, values = reader()
    write_all(session, values)
    session.write("control", 1)
    session.program.actions.append(("bus", 100))
    session.write("control", CONTROL_RESET)
    session.finish()
    session.start()
    _, _, second, _ = reader()
    write_all(second, values)
    second.write("control", 1)
    second.start()
    second.program.actions.append(("wait", 400))
    second.read("control", "error")
    results = simulation(READER).run_programs([session.program, second.program])
    assert [result.failure for result in results] == [None, None]
    assert results[0].values["error"] == [ErrorCode.RESET_WHILE_RUNNING.value, 0]
    assert results[1].values["error"] == [ErrorCode.STARTED_WHILE_RUNNING.value] * 2
    assert results[1].values["control"][-1] & 2
    for result in results:
        check(design, stimulus, session, result)


def test_beats_of_an_unused_output_are_dropped():
    design, stimulus, session, values = reader()
    write_all(session, values | {"output_o_beats": 0})
    session.start()
    session.read("output_o_moved", "input_command_moved")
    write_all(session, values)
    session.start()
    [result] = simulation(READER).run_programs([session.program])
    assert result.values["error"] == [0, 0]
    assert result.values["output_o_moved"] == [0]
    assert result.values["input_command_moved"] == [values["input_command_beats"]]
    check(design, stimulus, session, result)


def test_the_same_parameters_give_the_same_text():
    block = find(READER)
    parameters = block.parameters_class.preset("first")
    first, again = (generate_device(block, parameters, SMALL) for _ in range(2))
    assert dataclasses.replace(again, payloads=first.payloads) == first
