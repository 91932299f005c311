"""Proofs of blocks in tests: a specification holds, its covers are reached, a fault is found.

A file of proofs has three tests. With ``ControlSpec``, a specification around one component::

    def test_proof():
        prove_block(ControlSpec(Vpu(SIZE)), "vpu", depth=2)

    def test_cover():
        prove_block(ControlSpec(Vpu(SIZE), invariant=False), "vpu", "cover", depth=12)

    test_injected_fault_is_found = fault_test(
        vpu, FAULTS, lambda m: ControlSpec(m.Vpu(SIZE), invariant=False), depth=14
    )
"""

import functools
import types
from collections.abc import Callable, Collection, Mapping

import pytest
from amaranth.hdl import Elaboratable

from hw.catalogue import find
from sim.checks.formal.gate_streams import StreamProver
from sim.checks.formal.proof import prove
from sim.checks.formal.specs import StreamRulesSpec
from sim.core.design import generate
from tests.support.campaign import suite_takes
from tests.support.faults import require_once, with_fault


def prove_block(spec: Elaboratable, name: str, mode: str = "prove", **options) -> None:
    """Fail unless the specification's proof ends with ``PASS``.

    mode
        ``prove`` for an unbounded proof (k-induction), ``bmc`` for all runs of up to ``depth``
        cycles after reset, ``cover`` to see every Cover statement reached.
    options
        As :func:`sim.checks.formal.proof.prove` has them: ``depth``, ``solver``, ``seconds``.
    """
    result = prove(spec, name, mode, **options)
    assert result.status == "PASS", result


@functools.cache
def stream_prover(block: str) -> StreamProver:
    """Unbounded proofs of the rules of a whole core's output streams, on gates, preset `small`."""
    found = find(block)
    design = generate(found, found.parameters_class.preset("small"))
    return StreamProver(design.verilog, design.module, design.inputs)


def find_fault(
    spec: Elaboratable, name: str, found_by: str = "", mode: str = "bmc", **options
) -> None:
    """Fail unless the assertion that is meant for an injected fault fails.

    spec
        The specification of the faulty component. Without assertions on registers (an induction's
        invariant), which a fault breaks first.
    found_by
        Part of that assertion's message, ``|`` between alternatives; empty for any assertion.
    """
    result = prove(spec, name, mode, **options)
    assert result.status == "FAIL", result
    parts = found_by.split("|")
    assert any(part in failure for part in parts for failure in result.failures), result


def fault_test(
    module: types.ModuleType,
    faults: Mapping[str, tuple[str, str, str]],
    spec: Callable[[types.ModuleType], Elaboratable],
    suite: Collection[str] = (),
    **options,
) -> Callable:
    """A test for each fault: with a line of the source replaced, the assertion meant for it fails.

    faults
        By name, the line of the module, what is in its place, and `found_by` of :func:`find_fault`.
    spec
        Function of the faulty module, which returns the specification of its component.
    suite
        Names of the faults that the suite has; the others are for the campaign.
    options
        As :func:`find_fault` takes them.
    """
    # Here as well, so that the suite sees it when a line has moved: most faults are the campaign's.
    for line, _, _ in faults.values():
        require_once(module, line)

    @pytest.mark.parametrize("fault", suite_takes(suite, faults))
    def test(fault):
        line, instead, found_by = faults[fault]
        name = f"{module.__name__.rpartition('.')[2]}_{fault}"
        find_fault(spec(with_fault(module, line, instead)), name, found_by, **options)

    return test


def prove_stream_rules(
    dut, name: str, outputs: str, inputs: list[str], cover: int = 12, depth: int = 2
) -> None:
    """Prove, by induction, that outputs keep the rules of streams, and that each can be stalled.

    outputs
        Names with spaces between.
    cover
        Cycles within which a beat of each output is stalled.
    depth
        Of the induction: more than 2 where a payload comes to rest by the passing of cycles.
    """
    spec = StreamRulesSpec(dut, outputs.split(), inputs)
    prove_block(spec, f"{name}_rules", depth=depth)
    prove_block(spec, f"{name}_rules", "cover", depth=cover)
