// Memory with an AXI4 port for a device and a port for a processor with AXI4-Lite.
// One burst of reads and one of writes at a time; bursts are INCR and as wide as the bus.
module axi_ram #(
    parameter DATA = 64, ID = 4, LATENCY = 20, BYTES_LOG2 = 20
) (
    input                   clk, resetn,
    // The device.
    input                   awvalid,
    output                  awready,
    input  [ID-1:0]         awid,
    input  [31:0]           awaddr,
    input                   wvalid,
    output                  wready,
    input  [DATA-1:0]       wdata,
    input  [DATA/8-1:0]     wstrb,
    input                   wlast,
    output reg              bvalid,
    input                   bready,
    output reg [ID-1:0]     bid,
    input                   arvalid,
    output                  arready,
    input  [ID-1:0]         arid,
    input  [31:0]           araddr,
    input  [7:0]            arlen,
    output                  rvalid,
    input                   rready,
    output reg [ID-1:0]     rid,
    output reg [DATA-1:0]   rdata,
    output                  rlast,
    // The processor: a request is answered in the cycle behind it.
    input                   cpu_read, cpu_write,
    input  [31:0]           cpu_address, cpu_wdata,
    input  [3:0]            cpu_strobe,
    output reg [31:0]       cpu_rdata
);
  localparam STEP = DATA / 8, WORDS = DATA / 32, PLACE = BYTES_LOG2 - 2;
  reg [31:0] words [0:(1 << PLACE) - 1];

  // Writes of the device.
  reg writes;
  reg [31:0] to;
  assign awready = !writes && !bvalid;
  assign wready = writes;
  // Reads of the device: `left` cycles until the first data, then `beats` + 1 of them.
  reg reads;
  reg [31:0] from, left;
  reg [7:0] beats;
  assign arready = !reads;
  assign rvalid = reads && left == 0;
  assign rlast = beats == 0;

  integer n;
  always @* for (n = 0; n < WORDS; n = n + 1) rdata[32*n+:32] = words[from[2+:PLACE] + n];

  always @(posedge clk) begin
    if (awvalid && awready) begin
      writes <= 1;
      to <= awaddr;
      bid <= awid;
    end
    if (bvalid && bready) bvalid <= 0;
    if (wvalid && wready) begin
      for (n = 0; n < STEP; n = n + 1)
        if (wstrb[n]) words[to[2+:PLACE] + n / 4][8*(n%4)+:8] <= wdata[8*n+:8];
      to <= to + STEP;
      if (wlast) begin
        writes <= 0;
        bvalid <= 1;
      end
    end
    if (arvalid && arready) begin
      reads <= 1;
      from <= araddr & -STEP;
      beats <= arlen;
      rid <= arid;
      left <= LATENCY;
    end else if (reads && left != 0) left <= left - 1;
    else if (rvalid && rready) begin
      from <= from + STEP;
      beats <= beats - 1;
      if (rlast) reads <= 0;
    end
    if (cpu_read) cpu_rdata <= words[cpu_address[2+:PLACE]];
    for (n = 0; n < 4; n = n + 1)
      if (cpu_write && cpu_strobe[n]) words[cpu_address[2+:PLACE]][8*n+:8] <= cpu_wdata[8*n+:8];
    if (!resetn) begin
      writes <= 0;
      reads <= 0;
      bvalid <= 0;
    end
  end
endmodule
