"""Proofs of blocks in tests: a specification holds, its covers are reached, a fault is found.

A file of proofs has three tests. With ``ControlSpec``, a specification around one component::

    def test_proof():
        prove_block(ControlSpec(Vpu(SIZE)), "vpu", depth=2)

    def test_cover():
        prove_block(ControlSpec(Vpu(SIZE), invariant=False), "vpu", "cover", depth=12)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_injected_fault_is_found(fault):
        line, instead, found_by = FAULTS[fault]
        spec = ControlSpec(with_fault(vpu, line, instead).Vpu(SIZE), invariant=False)
        find_fault(spec, f"vpu_{fault}", found_by, depth=14)
"""

from amaranth.hdl import Elaboratable

from sim.checks.formal.proof import prove
from sim.checks.formal.specs import StreamRulesSpec


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


def prove_stream_rules(dut, name: str, outputs: str, inputs: list[str], cover: int = 12) -> None:
    """Prove, by induction, that outputs keep the rules of streams, and that each can be stalled.

    outputs
        Names with spaces between.
    cover
        Cycles within which a beat of each output is stalled.
    """
    spec = StreamRulesSpec(dut, outputs.split(), inputs)
    prove_block(spec, f"{name}_rules", depth=2)
    prove_block(spec, f"{name}_rules", "cover", depth=cover)
