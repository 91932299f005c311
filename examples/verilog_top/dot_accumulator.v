// Dot product of two FP16 vectors, accumulated in FP32: one product each cycle, one rounding each.
// The fused multiply-add is generated; everything else is written by hand.
`default_nettype none
module dot_accumulator (
    input  wire        clk,
    input  wire        rst,    // synchronous, active high
    input  wire        valid,  // a and b hold the next pair
    input  wire        last,   // with valid: the vector's last pair
    input  wire [15:0] a,      // FP16
    input  wire [15:0] b,      // FP16
    output reg         done,   // for one cycle: sum belongs to the vector that just ended
    output reg  [31:0] sum     // FP32
);
    reg  [31:0] accumulator;
    wire [31:0] next;

    // next = a * b + accumulator, combinational
    arith_float_multiply_add_fp16_fp32 multiply_add (
        .a(a),
        .b(b),
        .c(accumulator),
        .o(next)
    );

    always @(posedge clk) begin
        done <= valid & last & ~rst;
        if (valid) begin
            sum         <= next;
            accumulator <= last ? 32'h00000000 : next;
        end
        if (rst) accumulator <= 32'h00000000;
    end
endmodule
`default_nettype wire
