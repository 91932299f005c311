# amaranth: UnusedElaboratable=no
"""What is changed about a module's inside keeps every bit, and is what a reader wants."""

import re

import pytest
from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, enum
from amaranth.lib.memory import Memory

from hw.catalogue import blocks, find
from hw.component import Component
from hw.emit.export import to_rtlil, to_verilog
from hw.emit.verilog import readable
from hw.emit.verilog_body import wrapped
from hw.emit.verilog_expression import Shapes, UnknownText, inlined, parse, written
from hw.emit.verilog_passes import readable_body
from hw.emit.verilog_process import merge, parse_statements, printed, without_empty
from hw.ports import Ports, stream_in, stream_out
from sim.core.tools import ToolError
from tests.support.hw import same_hardware
from tests.support.hw.same_hardware import assert_same_hardware

SHAPES = Shapes(
    dict.fromkeys("abcd", (4, False))
    | {"s": (4, True), "one": (1, False), "t": (4, False), "wide": (5, False), "bit": (1, False)}
)


@pytest.mark.parametrize(
    "text",
    [
        "a & b & c",
        "(a | b) & ~c",
        "~(a | b)",
        "one ? {a[3:1], one} : bit ? b : c",
        "(one ? a : b) + c",
        "$signed({one, a}) >>> b",
        "(|a) & !b",
        "m[a[2:0]][3:0]",
        "(a + b) - (c - d)",
    ],
)
def test_expressions_are_read_and_written(text):
    assert written(parse(text)) == text


def test_operators_bind_as_in_verilog():
    assert parse("a && b == c") == parse("a && (b == c)")
    assert parse("a - b - c") == parse("(a - b) - c") != parse("a - (b - c)")
    assert parse("a | b & c ^ d") == parse("a | ((b & c) ^ d)")
    for wrong in ("a +", "a b", "f(a)", "{a", "1x"):
        with pytest.raises(UnknownText):
            parse(wrong)


@pytest.mark.parametrize(
    ("text", "definition", "expected"),
    [
        ("t & d", "a | b", "(a | b) & d"),
        ("t + d", "a - b", "(a - b) + d"),
        ("{t, d}", "~a", "{~a, d}"),
        ("t == d", "~a", "~a == d"),
        ("wide | t", "a & b", "wide | (a & b)"),
        ("bit ? t : wide", "a >> one", "bit ? a >> one : wide"),
        ("a >> t", "b + c", "a >> (b + c)"),
        # In 5 bits a sum has a carry, and the inverse of a zero in front is a one.
        ("wide | t", "a + b", "wide | t"),
        ("wide + t", "~a", "wide + t"),
        ("wide == t", "a - b", "wide == t"),
        ("one ? t : wide", "bit ? ~a : b", "one ? t : wide"),
        ("wide & t", "(a + b) >> one", "wide & t"),
        # Of another width or sign than the name.
        ("t & d", "wide | a", "t & d"),
        ("t & d", "a == b", "t & d"),
        ("t + d", "$signed(a) + $signed(b)", "t + d"),
        ("t < d", "s", "t < d"),
    ],
)
def test_an_expression_stands_for_a_name_only_where_no_bit_changes(text, definition, expected):
    value = parse(definition)

    def find(name):
        fits = SHAPES.width(value) == 4 and not SHAPES.signed(value)
        return value if name == "t" and fits else None

    expression = parse(text)
    assert written(inlined(expression, SHAPES, SHAPES.width(expression), find)) == expected


def statements(*texts: str) -> str:
    found: list = []
    for text in texts:
        merge(found, parse_statements(text))
    return "\n".join(printed(without_empty(found), "<=", 0))


def test_equal_conditions_of_registers_are_put_together():
    case = "(* full_case = 32'd1 *) casez (p) 2'h0: {} 2'h1: {} 2'h2: {} endcase"
    nothing = "/* empty */;"
    assert statements(
        case.format("a <= b;", nothing, "if (c) begin a <= d; end"),
        case.format(nothing, "e <= f;", "if (c) begin end else begin e <= g; end"),
        "casez (p) 2'h2: if (c) begin h <= g; end endcase",
    ) == (
        "case (p)\n  2'h0: a <= b;\n  2'h1: e <= f;\n  2'h2:\n    if (c) begin\n      a <= d;\n"
        "      h <= g;\n    end else begin\n      e <= g;\n    end\nendcase"
    )


def test_the_order_of_a_register_s_statements_stays():
    first = "if (c) begin a <= b; end a <= d; if (e) begin a <= f; end"
    assert statements(first, "if (e) begin g <= h; end if (c) begin g <= b; end").splitlines() == [
        *("if (c) a <= b;", "a <= d;", "if (e) begin", "  a <= f;", "  g <= h;", "end"),
        "if (c) g <= b;",
    ]


def test_a_label_that_does_nothing_stays_where_another_would_be_chosen():
    wild = "casez (p) 2'h0: /* empty */; 2'b0?: a <= b; endcase"
    assert "2'h0: ;" in statements(wild) and statements(wild).startswith("casez")
    assert "2'h0: ;" in statements("casez (p) 2'h0: /* empty */; default: a <= b; endcase")
    assert "2'h0" not in statements("casez (p) 2'h0: /* empty */; 2'h1: a <= b; endcase")
    assert statements("if (~c) begin end else begin a <= b; end") == "if (c) a <= b;"


def test_long_lines_are_wrapped():
    line = f"  wire a = {{{', '.join(f'part_{number}' for number in range(30))}}};"
    lines = wrapped(line).split("\n")
    assert len(lines) == 3 and all(len(text) <= 100 for text in lines)
    assert " ".join(text.strip() for text in lines) == line.strip()
    comment = f"  // {', '.join(f'name_{number}' for number in range(30))}"
    assert all(text.startswith("  // name_") for text in wrapped(comment).split("\n"))


class Kind(enum.Enum, shape=2):
    ADD = 0
    INVERT = 1
    SHIFT = 2


class Beat(data.Struct):
    kind: Kind
    a: signed(4)
    b: 4


class Tricky(Component[None]):
    """Widths, signs, states, arrays and memories in all the ways that a text may change them."""

    def ports(self) -> Ports:
        return {"i": stream_in(Beat), "o": stream_out(12)}

    def elaborate(self, platform):
        m = Module()
        beat = self.i.payload
        total = Signal(6)
        held = Signal(Beat)
        small = Signal(4)
        parts = Signal(8)
        sign = Signal(signed(6))
        halves = Signal(8)  # one loaded in each cycle, one at times
        m.d.sync += halves[4:].eq(small)
        m.submodules.rows = rows = Memory(shape=6, depth=4, init=[1, 2, 3, 4])
        write, read = rows.write_port(), rows.read_port()
        m.d.comb += [
            sign.eq(held.a * 2 - held.b.as_signed()),
            small.eq(held.b + held.a[:2] + 1),
            parts[2:5].eq(~held.b[:3]),
            parts[5:].eq(Array([held.b[1:], small[:3], 5])[total[:2]]),
            parts[:2].eq(Mux(held.b > 3, ~small[:2], small[2:])),
            write.addr.eq(total[:2]),
            write.data.eq(Cat(~small, held.b[0] ^ (total == 3))),
            read.addr.eq(held.b[:2]),
            self.o.payload.eq(halves + Cat(read.data + parts, (sign >> held.b[:2])[:2]) ^ ~total),
        ]
        with m.FSM(name="phase"):
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.d.sync += [held.eq(beat), halves[:4].eq(beat.b)]
                    m.next = "WORK"
            with m.State("WORK"):
                m.d.comb += write.en.eq(self.o.ready)
                with m.Switch(held.kind):
                    with m.Case(Kind.ADD):
                        m.d.sync += total.eq(total + small)
                    with m.Case(Kind.INVERT):
                        m.d.sync += total[1:].eq(~total[1:])
                    with m.Default():
                        m.d.sync += total.eq((total << 1) | (small == held.b))
                m.next = "SHOW"
            with m.State("SHOW"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m


def test_each_part_of_a_register_that_several_processes_drive():
    text = (
        "module top(clk, a, b, o);\n  input clk;\n  wire clk;\n  input a;\n  wire a;\n"
        "  input [1:0] b;\n  wire [1:0] b;\n  output [5:0] o;\n  reg [5:0] o;\n"
        "  reg [5:0] _0_;\n  always @(posedge clk)\n    o <= _0_;\n"
        "  always @* begin\n    _0_[1:0] = o[1:0];\n    if (a) begin\n      _0_[1:0] = b;\n"
        "    end\n  end\n  assign _0_[5:4] = b;\n"
        "  always @*\n    _0_[3:2] = o[1:0];\nendmodule\n"
    )
    assert readable(text).partition(");\n")[2] == (
        "  always @(posedge clk) begin\n    if (a) o[1:0] <= b;\n    o[3:2] <= o[1:0];\n"
        "    o[5:4] <= b;\n  end\nendmodule\n"
    )


def test_states_and_members_have_names():
    verilog = to_verilog(to_rtlil(Tricky(), "top"))
    assert "  // phase_state\n  localparam [1:0] IDLE = 2'd0, WORK = 2'd1, SHOW = 2'd2;" in verilog
    assert "localparam [1:0] ADD = 2'd0, INVERT = 2'd1, SHIFT = 2'd2;" in verilog
    assert "      IDLE:\n" in verilog and "phase_state <= SHOW;" in verilog
    assert "      phase_state <= IDLE;\n" in verilog  # at reset, too
    assert "        case (held_kind)\n          ADD: total <= " in verilog
    assert len(re.findall(r"^  always @\(posedge clk\) begin$", verilog, re.M)) == 1
    assert not re.search(r"\b_\d+_\b|_next\b|full_case|casez", verilog)


def test_a_chain_of_results_may_be_long_and_in_any_order():
    """Deeper than Python's recursion, and each result is read before it is written."""
    length = 3000
    wires = "".join(f"  wire [31:0] _{n:04}_;\n" for n in range(length))
    chain = "".join(f"  assign _{n:04}_ = _{n + 1:04}_ ^ a;\n" for n in range(length - 1))
    verilog = (
        "module m(a, o);\n  input [31:0] a;\n  wire [31:0] a;\n  output [31:0] o;\n"
        f"  wire [31:0] o;\n{wires}  assign o = _0000_;\n{chain}"
        f"  assign _{length - 1:04}_ = ~a;\nendmodule\n"
    )
    assert "^ a" in readable(verilog)


def test_the_hardware_stays_the_same():
    assert_same_hardware(to_rtlil(Tricky(), "top"))


@pytest.mark.campaign
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_the_hardware_of_every_block_stays_the_same(block):
    component = block.create(block.parameters_class.preset("first"))
    assert_same_hardware(to_rtlil(component, "top"))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("line", "wrong"), [(r"a_fraction\} \* ", "b_fraction} * "), (r" \* ", " + ")]
)
def test_a_product_of_other_operands_is_found(line, wrong, monkeypatch):
    changed = []

    def faulty(body):
        lines = readable_body(body)
        changed.extend(re.search(line, text) for text in lines if re.search(line, text))
        return [re.sub(line, wrong, text) for text in lines]

    monkeypatch.setattr(same_hardware, "readable_body", faulty)
    block = find("arith.divide")
    component = block.create(block.parameters_class.preset("first"))
    with pytest.raises(ToolError, match="could not prove the texts of top equivalent"):
        assert_same_hardware(to_rtlil(component, "top"))
    assert len(changed) == 1
