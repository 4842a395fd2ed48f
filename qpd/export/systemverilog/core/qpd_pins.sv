// The core behind shift registers, for packages with too few pins: `qpd fpga` routes it there.
// A feature is shifted in, highest bit first, then taken; an output is shifted out, action first.
`default_nettype none
module qpd_pins #(
`include "qpd_constants.svh"
) (
    input  wire clk,
    input  wire rst,
    input  wire in_shift,
    input  wire in_bit,
    input  wire s_valid,
    output wire s_ready,
    input  wire out_shift,
    output wire out_bit,
    output wire m_valid,
    input  wire m_ready,
    output wire m_last
);
  wire signed [ACC-1:0] m_acc;
  wire [ACTION-1:0] m_action;
  logic [31:0] feature;
  logic [ACC+ACTION-1:0] answer;
  qpd_core core (
      .clk, .rst, .s_valid, .s_ready, .s_data(feature),
      .m_valid, .m_ready, .m_last, .m_acc, .m_action
  );
  assign out_bit = answer[ACC+ACTION-1];
  always_ff @(posedge clk) begin
    if (in_shift) feature <= {feature[30:0], in_bit};
    if (m_valid && m_ready) answer <= {m_action, m_acc};
    else if (out_shift) answer <= answer << 1;
  end
endmodule
`default_nettype wire
