"""A board with an SDRAM beside it, as Verilog for a simulator."""

from amaranth.hdl import Shape

from hw.boards.design import PADS, BoardDesign
from hw.boards.sdram_controller import sdram_pins
from hw.emit.export import to_rtlil, to_verilog
from hw.ports import Port
from sim.drivers.board.sdram_device import Rule, SdramDevice

WITH_SDRAM = """
// The board's FPGA, registers in its pads, and the SDRAM.
module {module}(input clk, input rst, input rx, output tx, output running, output error);
{wires}
  wire [{top_rule}:0] broken;
  wire [{top_place}:0] place;
  wire stores;
  {design} fpga(.clk(clk), .rst(rst), .rx(rx), .tx(tx), .running(running), .error(error),
    {pins});
  {device} sdram(.clk(clk), .rst(rst),
    {pads}, .broken(broken), .place(place), .stores(stores),
    .held(cells[place]));
  reg [{top_data}:0] cells [0:{last}];
  integer n;
  initial for (n = 0; n <= {last}; n = n + 1) cells[n] = 0;
  always @(posedge clk) begin
{registers}
    if (rst) at_command <= 0;
    if (stores) cells[place] <= at_write_data;
    if (!rst && broken != 0) begin
{complaints}
      $fatal(1, "a rule of the SDRAM is broken");
    end
  end
endmodule
"""


def desk(design: BoardDesign) -> tuple[str, str]:
    """Top module and text of a board and, if it has one, its SDRAM.

    It has the design's ports but for the SDRAM's. A broken rule of the SDRAM ends the
    simulation. It keeps the pages that the design's memory reaches.
    """
    p = design.sdram
    if p is None:
        return design.module, design.verilog
    assert PADS == 2, "the text has one register each way"
    (rows,) = (memory.rows for memory in design.memories.values())
    pages = 1 + max(p.place(row)[1] for row in range(0, rows, 1 << p.in_page))
    widths = {name: _width(port) for name, port in sdram_pins(p).items()}
    device = f"{design.module}_sdram"
    inward = [name for name in widths if name != "read_data"]
    text = WITH_SDRAM.format(
        module=f"{design.module}_desk",
        design=design.module,
        device=device,
        wires="\n".join(
            f"  wire [{width - 1}:0] {name};\n  reg [{width - 1}:0] at_{name};"
            for name, width in widths.items()
        ),
        top_rule=len(Rule) - 1,
        top_place=p.page_bits + p.bank_bits + p.column_bits - 1,
        top_data=p.width - 1,
        last=(pages << p.bank_bits + p.column_bits) - 1,
        pins=", ".join(f".sdram_{name}({_end(name, outer=True)})" for name in widths),
        pads=", ".join(f".{name}({_end(name, outer=False)})" for name in widths),
        registers="\n".join(f"    at_{name} <= {name};" for name in [*inward, "read_data"]),
        complaints="\n".join(
            f'      if (broken[{rule}]) $display("SDRAM: {rule.name} is broken");' for rule in Rule
        ),
    )
    chip = to_verilog(to_rtlil(SdramDevice(p), device))
    return f"{design.module}_desk", f"{design.verilog}\n{chip}\n{text}"


def _end(name: str, outer: bool) -> str:
    """The FPGA's or the device's end of a pin's register, which leads away from its driver."""
    return f"at_{name}" if outer == (name == "read_data") else name


def _width(port: Port) -> int:
    """Bits of a port."""
    return Shape.cast(port.member.shape).width
