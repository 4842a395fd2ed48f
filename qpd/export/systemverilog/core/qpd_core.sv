// A quantized policy in integers: raw float32 features in, accumulators and actions out.
// Features become levels, `qpd_network` computes the layers, outputs become codes or a choice.
`default_nettype none
module qpd_core #(
`include "qpd_constants.svh"
) (
    input  wire                      clk,
    input  wire                      rst,      // synchronous
    // One feature a transfer: the bits of its float32.
    input  wire                      s_valid,
    output wire                      s_ready,
    input  wire [31:0]               s_data,
    // One output a transfer. m_action: its code, or (valid with m_last) the chosen action.
    output wire                      m_valid,
    input  wire                      m_ready,
    output wire                      m_last,
    output wire signed [ACC-1:0]     m_acc,
    output wire [ACTION-1:0]         m_action
);
  // One observation at a time: its last output is taken before the next one's first feature.
  logic receiving;
  logic [INPUT_AT-1:0] taken;
  assign s_ready = receiving;
  wire take = s_valid && s_ready;

  // Floats are ordered as integers once the negative ones are flipped; NaN is level 0.
  wire not_a_number = s_data[30:0] > 31'h7f800000;
  logic [31:0] key;
  logic [INPUT_AT-1:0] row;
  logic [INPUT_CLOCKS:0] encoding;
  wire [INPUT_BITS-1:0] level;
  wire [31:0] unused_key;
  always_ff @(posedge clk) begin
    key <= not_a_number ? 32'd0 : s_data[31] ? ~s_data : {1'b1, s_data[30:0]};
    row <= taken;
    encoding <= rst ? '0 : {encoding[INPUT_CLOCKS-1:0], take};
  end
  qpd_search #(
      .BITS(INPUT_BITS), .ROWS(INPUTS), .ROW(INPUT_AT), .KEY(32), .LARGE(LARGE_ROM),
      .NAME("features"),
      .ROM_STYLE(TABLE_ROM_STYLE), .YOSYS_STYLE(TABLE_YOSYS_STYLE)
  ) encoder (.clk, .go(1'b1), .key, .row, .found_key(unused_key), .level);

  logic [INPUT_AT-1:0] encoded;
  wire x_valid = encoding[INPUT_CLOCKS];
  wire x_last = 32'(encoded) == INPUTS - 1;
  wire done;
  wire signed [ACC-1:0] y_acc;
  logic [OUTPUT_AT-1:0] y_index;
  logic sending;
  wire go = !m_valid || m_ready;
  qpd_network network (
      .clk, .rst, .x_valid, .x_last, .x_index(encoded), .x_level(8'(level)), .done,
      .read(go), .y_index, .y_acc
  );

  localparam STEPS = CODES > 1 ? CODE_CLOCKS + 1 : 2;
  logic [STEPS-1:0] valid, last;
  wire y_last = 32'(y_index) == OUTPUTS - 1;
  assign m_valid = valid[STEPS-1];
  assign m_last = last[STEPS-1];
  if (CODES > 1) begin : g_codes
    // Bisection in the thresholds that hold squash and rounding; a flipped sign makes them unsigned.
    wire [ACC-1:0] found;
    qpd_search #(
        .BITS(ACTION), .ROWS(1), .ROW(1), .KEY(ACC), .LARGE(LARGE_ROM),
        .NAME("codes"),
        .ROM_STYLE(TABLE_ROM_STYLE), .YOSYS_STYLE(TABLE_YOSYS_STYLE)
    ) decoder (
        .clk, .go, .key({~y_acc[ACC-1], y_acc[ACC-2:0]}), .row(1'b0), .found_key(found),
        .level(m_action)
    );
    assign m_acc = {~found[ACC-1], found[ACC-2:0]};
  end else begin : g_choice
    logic signed [ACC-1:0] now, best;
    logic [OUTPUT_AT-1:0] choice, position;
    assign m_acc = now;
    assign m_action = choice;
    always_ff @(posedge clk) begin
      if (go) begin
        now <= y_acc;
        if (valid[0]) begin
          position <= last[0] ? '0 : position + 1'b1;
          if (position == 0 || y_acc > best) begin
            best <= y_acc;
            choice <= position;
          end
        end
      end
      if (rst) position <= '0;
    end
  end

  always_ff @(posedge clk) begin
    if (take) begin
      taken <= taken + 1'b1;
      if (32'(taken) == INPUTS - 1) receiving <= 1'b0;
    end
    if (x_valid) encoded <= x_last ? '0 : encoded + 1'b1;
    if (go) begin
      valid <= {valid[STEPS-2:0], sending};
      last <= {last[STEPS-2:0], sending && y_last};
      if (sending) begin
        y_index <= y_last ? '0 : y_index + 1'b1;
        sending <= !y_last;
      end
    end
    if (done) sending <= 1'b1;
    if (m_valid && m_ready && m_last) begin
      receiving <= 1'b1;
      taken <= '0;
    end
    if (rst) begin
      receiving <= 1'b1;
      taken <= '0;
      encoded <= '0;
      y_index <= '0;
      sending <= 1'b0;
      valid <= '0;
    end
  end
  // Only to say that nothing reads it.
  wire unused = &{1'b0, unused_key, 1'b0};
endmodule
`default_nettype wire
