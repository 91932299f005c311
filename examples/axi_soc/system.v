// A RISC-V processor, a device and their memory.
//
//   0x00000000  memory, 1 MiB, with the program at 0
//   0x40000000  written: a character to print; 4 bytes on: the end, with the program's result
//   0x80000000  registers of the device
`include "device.vh"
`timescale 1ns / 1ps

module system #(parameter LATENCY = 20);
  reg clk = 0, resetn = 0;
  always #5 clk = !clk;

  // The processor, which has one access under way at most.
  wire awvalid, awready, wvalid, wready, bvalid, bready, arvalid, arready, rvalid, rready, trap;
  wire [31:0] awaddr, wdata, araddr, rdata;
  wire [3:0] wstrb;
  wire interrupt;
  picorv32_axi #(
      .BARREL_SHIFTER(1), .ENABLE_IRQ(1), .ENABLE_IRQ_TIMER(0), .LATCHED_IRQ(32'hffff_fff7),
      .STACKADDR(32'h0010_0000)
  ) processor (
      .clk(clk), .resetn(resetn), .trap(trap), .irq({28'b0, interrupt, 3'b0}),
      .mem_axi_awvalid(awvalid), .mem_axi_awready(awready), .mem_axi_awaddr(awaddr),
      .mem_axi_wvalid(wvalid), .mem_axi_wready(wready), .mem_axi_wdata(wdata),
      .mem_axi_wstrb(wstrb), .mem_axi_bvalid(bvalid), .mem_axi_bready(bready),
      .mem_axi_arvalid(arvalid), .mem_axi_arready(arready), .mem_axi_araddr(araddr),
      .mem_axi_rvalid(rvalid), .mem_axi_rready(rready), .mem_axi_rdata(rdata),
      .pcpi_wr(1'b0), .pcpi_rd(32'b0), .pcpi_wait(1'b0), .pcpi_ready(1'b0)
  );

  // Address bit 31 is the device's.
  wire device_awready, device_wready, device_bvalid, device_arready, device_rvalid;
  wire [31:0] device_rdata, memory_rdata;
  wire writes = awvalid && wvalid && !awaddr[31] && !memory_b;
  wire reads = arvalid && !araddr[31] && !memory_r;
  reg memory_b, memory_r;
  assign awready = awaddr[31] ? device_awready : writes;
  assign wready = awaddr[31] ? device_wready : writes;
  assign bvalid = device_bvalid || memory_b;
  assign arready = araddr[31] ? device_arready : reads;
  assign rvalid = device_rvalid || memory_r;
  assign rdata = memory_r ? memory_rdata : device_rdata;
  always @(posedge clk) begin
    memory_b <= resetn && (writes || memory_b && !bready);
    memory_r <= resetn && (reads || memory_r && !rready);
    if (writes && awaddr == 32'h4000_0000) $write("%c", wdata[7:0]);
    if (writes && awaddr == 32'h4000_0004 || trap) $finish;
  end

  // The device.
  wire m_awvalid, m_awready, m_wvalid, m_wready, m_wlast, m_bvalid, m_bready;
  wire m_arvalid, m_arready, m_rvalid, m_rready, m_rlast;
  wire [`DEVICE_ID-1:0] m_awid, m_bid, m_arid, m_rid;
  wire [31:0] m_awaddr, m_araddr;
  wire [7:0] m_arlen;
  wire [`DEVICE_DATA-1:0] m_wdata, m_rdata;
  wire [`DEVICE_DATA/8-1:0] m_wstrb;
  `DEVICE device (
      .aclk(clk), .aresetn(resetn), .interrupt(interrupt),
      .s_axi_awvalid(awvalid && awaddr[31]), .s_axi_awready(device_awready),
      .s_axi_awaddr(awaddr[11:0]), .s_axi_awprot(3'b0),
      .s_axi_wvalid(wvalid && awaddr[31]), .s_axi_wready(device_wready),
      .s_axi_wdata(wdata), .s_axi_wstrb(wstrb),
      .s_axi_bvalid(device_bvalid), .s_axi_bready(bready), .s_axi_bresp(),
      .s_axi_arvalid(arvalid && araddr[31]), .s_axi_arready(device_arready),
      .s_axi_araddr(araddr[11:0]), .s_axi_arprot(3'b0),
      .s_axi_rvalid(device_rvalid), .s_axi_rready(rready), .s_axi_rdata(device_rdata),
      .s_axi_rresp(),
      .m_axi_awvalid(m_awvalid), .m_axi_awready(m_awready), .m_axi_awid(m_awid),
      .m_axi_awaddr(m_awaddr), .m_axi_awlen(), .m_axi_awsize(), .m_axi_awburst(),
      .m_axi_awcache(), .m_axi_awprot(),
      .m_axi_wvalid(m_wvalid), .m_axi_wready(m_wready), .m_axi_wdata(m_wdata),
      .m_axi_wstrb(m_wstrb), .m_axi_wlast(m_wlast),
      .m_axi_bvalid(m_bvalid), .m_axi_bready(m_bready), .m_axi_bid(m_bid), .m_axi_bresp(2'b0),
      .m_axi_arvalid(m_arvalid), .m_axi_arready(m_arready), .m_axi_arid(m_arid),
      .m_axi_araddr(m_araddr), .m_axi_arlen(m_arlen), .m_axi_arsize(), .m_axi_arburst(),
      .m_axi_arcache(), .m_axi_arprot(),
      .m_axi_rvalid(m_rvalid), .m_axi_rready(m_rready), .m_axi_rid(m_rid), .m_axi_rdata(m_rdata),
      .m_axi_rresp(2'b0), .m_axi_rlast(m_rlast)
  );

  axi_ram #(.DATA(`DEVICE_DATA), .ID(`DEVICE_ID), .LATENCY(LATENCY)) memory (
      .clk(clk), .resetn(resetn),
      .awvalid(m_awvalid), .awready(m_awready), .awid(m_awid), .awaddr(m_awaddr),
      .wvalid(m_wvalid), .wready(m_wready), .wdata(m_wdata), .wstrb(m_wstrb), .wlast(m_wlast),
      .bvalid(m_bvalid), .bready(m_bready), .bid(m_bid),
      .arvalid(m_arvalid), .arready(m_arready), .arid(m_arid), .araddr(m_araddr), .arlen(m_arlen),
      .rvalid(m_rvalid), .rready(m_rready), .rid(m_rid), .rdata(m_rdata), .rlast(m_rlast),
      .cpu_read(reads), .cpu_write(writes && !awaddr[30]),
      .cpu_address(reads ? araddr : awaddr), .cpu_wdata(wdata), .cpu_strobe(wstrb),
      .cpu_rdata(memory_rdata)
  );

  reg [8191:0] program_path;
  initial begin
    if ($value$plusargs("program=%s", program_path)) $readmemh(program_path, memory.words);
    repeat (10) @(posedge clk);
    resetn <= 1;
    repeat (20_000_000) @(posedge clk);
    $display("the program does not end");
    $finish;
  end
endmodule
