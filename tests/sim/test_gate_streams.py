"""Rules of streams on gates: proved where they hold, unbounded, and never where they do not."""

import pytest

from sim.checks.formal.gate_streams import StreamProver
from sim.checks.formal.gates import Graph

# A beat passes through a register, `o`, and past it, `past`. A counter runs on a long way behind.
DESIGN = """\
module passes(input clk, input rst, input i__valid, input [1:0] i__payload, output i__ready,
              output o__valid, output [1:0] o__payload, input o__ready,
              output past__valid, output [1:0] past__payload, input past__ready);
  reg held;
  reg [1:0] beat;
  reg [3:0] count;
  reg [9:0] late;
  assign i__ready = past__ready & (~held | o__ready);
  assign past__valid = i__valid & ({room}o__ready);
  assign past__payload = i__payload;
  assign o__valid = held{valid};
  assign o__payload = beat{payload};
  wire taken = i__valid & i__ready;
  always @(posedge clk) begin
    count <= count == 9 ? 0 : count + 1;
    late <= {{late[8:0], count == {reached}}};
    if (o__ready) held <= 0;
    if (taken) begin held <= 1; beat <= i__payload; end
    if (rst) begin held <= 0; count <= 0; late <= 0; end
  end
endmodule
"""


def prover(valid="", payload="", reached=12, room="~held | ") -> StreamProver:
    text = DESIGN.format(valid=valid, payload=payload, reached=reached, room=room)
    return StreamProver(text, "passes", {"i": 2})


def test_streams_of_a_design():
    assert prover().streams == ["o", "past"]


def test_a_register_keeps_its_beat():
    assert prover().prove("o", 60)


def test_what_passes_is_offered_until_it_is_taken():
    """A register that is full and taken from in one cycle has room in the next."""
    assert prover().prove("past", 60)


def test_what_passes_is_withdrawn_with_another_streams_ready():
    assert not prover(room="").prove("past", 60)


@pytest.mark.parametrize(
    "fault",
    [
        {"valid": " & ~count[0]"},  # withdrawn
        {"payload": " ^ {2{~count[1]}}"},  # changed
        {"valid": " & ~late[9]", "reached": 7},  # withdrawn in the twentieth cycle
    ],
)
def test_broken_rules_are_never_proved(fault):
    assert not prover(**fault).prove("o", 60)


def test_what_never_happens_far_behind_breaks_nothing():
    """A count of 12 is not reached, which only registers far behind the stream show."""
    assert prover(valid=" & ~late[9]").prove("o", 60)


def test_behind_counts_registers():
    """Of a chain of four registers, those up to a distance; the others may be anything."""
    graph = Graph()
    chain = [graph.register() for _ in range(4)]
    first = graph.input()
    for register, following in zip(chain, [first, *chain], strict=False):
        graph.connect(register, following)
    assert graph.behind(chain[3], 0) == ({0, chain[3]}, set())
    assert graph.behind(chain[3], 2) == ({0, *chain[1:]}, {*chain[2:]})
    assert graph.behind(chain[3]) == ({0, first, *chain}, {*chain})
    assert graph.behind(0) == ({0}, set())
