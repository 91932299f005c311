"""Proofs of equivalence on a design with faults that are hard to judge."""

import re
from pathlib import Path

import pytest
from amaranth.lib import data

from sim.checks.formal.equivalence import Prover
from sim.checks.formal.gate_equivalence import GateProver
from sim.core.yosys import yosys

# A register of one beat, a count of beats modulo 3 and a history of the last three valids. Faults:
#  1  from count 3, which never occurs, it goes on to 2 and not to 0
#  2  the payload is also loaded while nothing is offered, which no output shows
#  3  every third beat's payload is inverted
#  4  refuses beats while it holds one, even one that is being accepted
#  5  the payload follows the input even while it must be held
#  6  reset leaves valid as it is
#  7  a payload of 3 is changed to 0
#  8  an output differs only three offers in a row after the count was 3, which it never is
#  9  the count starts at 1 after a reset and is inverted from then on, seen nowhere but in its sum
# 10  whether the register is free is computed by other gates
DESIGN = """\
module faulty(input clk, input rst, input [3:0] mutsel,
              input i__valid, input [1:0] i__payload, output i__ready,
              output reg o__valid, output reg [1:0] o__payload, input o__ready);
  reg [1:0] count;
  reg [2:0] history;
  reg poison;
  reg spare;
  wire free = mutsel == 10 ? ~o__valid | (o__valid & o__ready) : ~o__valid | o__ready;
  assign i__ready = mutsel == 4 ? ~o__valid : free;
  wire taken = i__valid & i__ready;
  wire [1:0] inverted = {2{mutsel == 3 & count == 2}};
  wire [1:0] payload = mutsel == 7 & i__payload == 3 ? 2'd0 : i__payload;
  always @(posedge clk) begin
    history <= {history[1:0], i__valid};
    poison <= count == 3;
    if (o__ready) o__valid <= 0;
    if (taken) begin
      o__valid <= 1;
      o__payload <= payload ^ inverted ^ {2{mutsel == 8 & poison & &history}};
      count <= count == 2 ? 0 : count == 3 ? (mutsel == 1 ? 2 : 0) : count + 1;
      spare <= ~spare;
    end else if (mutsel == 2 & free) o__payload <= i__payload;
    if (mutsel == 5 & o__valid & ~o__ready) o__payload <= i__payload;
    if (rst) begin
      if (mutsel != 6) o__valid <= 0;
      count <= 0; history <= 0; poison <= 0; spare <= mutsel == 9;
    end
  end
endmodule
"""


def transition_system(verilog: str, folder: Path) -> str:
    (folder / "design.v").write_text(verilog)
    script = ["read_verilog design.v", "proc", "opt_clean", "dffunmap", "write_smt2 design.smt2"]
    yosys(script, folder, "read the design")
    return (folder / "design.smt2").read_text()


@pytest.fixture(scope="module")
def smt2(tmp_path_factory):
    return transition_system(DESIGN, tmp_path_factory.mktemp("equivalence"))


def prover(smt2, shape=2):
    return Prover(smt2, {"i": shape}, {"o": 2})


@pytest.mark.parametrize(
    ("fault", "why"),
    [(0, "no fault"), (1, "unreachable"), (2, "unseen"), (8, "unreachable, later"), (9, "unused")],
)
def test_equivalent_mutants_are_proved(smt2, fault, why):
    assert prover(smt2).judge(fault, 20).status == "equivalent", why


@pytest.mark.parametrize(("fault", "cycle"), [(3, 4), (4, 2), (5, 3), (6, 1), (7, 2)])
def test_different_mutants_are_told_apart_as_early_as_can_be(smt2, fault, cycle):
    verdict = prover(smt2).judge(fault, 20)
    assert verdict.status == "differs"
    assert verdict.detail.startswith(f"in cycle {cycle} after reset")


@pytest.fixture(scope="module")
def by_gates():
    return GateProver(DESIGN, "faulty", {"i": 2})


@pytest.mark.parametrize("fault", [0, 1, 2, 8, 9])
def test_gates_prove_equivalent_mutants(by_gates, fault):
    assert by_gates.prove(fault, 20)


@pytest.mark.parametrize("fault", [3, 4, 5, 6, 7])
def test_gates_never_prove_other_mutants(by_gates, fault):
    assert by_gates.prove(fault, 20) is None


def test_a_fault_of_no_gate_is_proved_at_once(by_gates):
    assert by_gates.prove(15, 0) == "no difference leaves 0 of 9 registers"


def test_other_gates_with_the_same_function_are_no_fault(by_gates):
    assert by_gates.prove(10, 20) == "registers and outputs get the same values, by other gates"


def test_a_difference_of_own_registers_alone_is_no_fault(by_gates):
    """A payload loaded without a beat leaves two bits of the register, and goes no further."""
    assert by_gates.prove(2, 20) == "no difference leaves 2 of 9 registers"


# A beat waits two cycles in `kept` and moves on to `store`. The fault inverts what `kept` shows and
# keeps: after two cycles it is right again.
INVERTED = """\
module inverted(input clk, input rst, input mutsel,
                input i__valid, input [1:0] i__payload, output i__ready,
                output o__valid, output [1:0] o__payload, input o__ready);
  reg [1:0] kept, store, step;
  wire [1:0] shown = kept ^ {{2{{mutsel}}}};
  assign i__ready = step == 0;
  assign o__valid = step == 3;
  assign o__payload = store;
  always @(posedge clk) begin
    kept <= step == 0 ? i__payload : shown;
    if (step == {moves}) store <= shown;
    if (step == 0 ? i__valid : step == 3 ? o__ready : 1'b1) step <= step + 1;
    if (rst) step <= 0;
  end
endmodule
"""


def test_only_registers_before_the_fault_are_copied():
    """The receiver `store` stays shared, as it never gets another value."""
    prover = GateProver(INVERTED.format(moves=2), "inverted", {"i": 2})
    assert prover.prove(1, 20) == "no difference leaves 2 of 6 registers"


def test_a_fault_that_is_seen_after_one_cycle_is_not_proved():
    assert GateProver(INVERTED.format(moves=1), "inverted", {"i": 2}).prove(1, 20) is None


def test_gates_keep_inputs_within_their_range():
    shape = data.StructLayout({"digit": range(3)})
    assert GateProver(DESIGN, "faulty", {"i": shape}).prove(7, 20)


def test_a_proof_does_not_depend_on_what_was_judged_before(smt2):
    one = prover(smt2)
    statuses = [one.judge(fault, 20).equivalent for fault in (8, 3, 1, 7, 2, 9, 6, 1)]
    assert statuses == [True, False, True, False, True, True, False, True]


def test_counterexample_names_inputs_and_outputs(smt2):
    detail = prover(smt2).judge(7, 20).detail
    assert re.search(r"i offers 0x3 \S+; o ready [01]{2}; .*o__payload is 0x0, not 0x3", detail)


def test_inputs_stay_within_the_range_their_shape_declares(smt2):
    shape = data.StructLayout({"digit": range(3)})
    assert prover(smt2, shape).judge(7, 20).equivalent


def test_out_of_time_is_unresolved_and_never_a_proof(smt2):
    assert prover(smt2).judge(1, 0).status == "unresolved"
