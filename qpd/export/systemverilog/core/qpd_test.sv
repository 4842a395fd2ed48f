// Plays the golden vectors and compares every output: the first one at once, which is timed, the
// others with pauses on both sides.
module qpd_test #(
`include "qpd_constants.svh"
);
  localparam int VECTORS = qpd_golden::VECTORS;
  logic clk = 0, rst = 1, s_valid = 0, s_ready, m_valid, m_ready = 0, m_last;
  logic [31:0] s_data = 0;
  logic signed [ACC-1:0] m_acc;
  logic [ACTION-1:0] m_action;
  logic [31:0] given[0:VECTORS*INPUTS-1];
  logic [31:0] wanted[0:2*VECTORS*OUTPUTS-1];
  int sent = 0, got = 0, wrong = 0, idle = 0;
  longint clocks = 0, start = 0, latency = 0, last_level = 0, layers = 0;
  wire pauses = got >= OUTPUTS;
  qpd_core core (.*);
  always #5 clk = ~clk;
  initial begin
    $readmemh("golden_observations.hex", given);
    $readmemh("golden_outputs.hex", wanted);
  end
  // Stimuli change on the falling edge: the core samples settled signals.
  always @(negedge clk) begin
    rst <= clocks < 4;
    clocks <= clocks + 1;
    s_valid <= clocks > 4 && sent < VECTORS * INPUTS && !(pauses && clocks % 7 == 0);
    m_ready <= clocks > 4 && !(pauses && clocks % 5 == 0);
    // One multiplier takes a clock a weight, of which no student's file has so many.
    if (idle > 100000000) $fatal(1, "FAIL: no answer");
  end
  assign s_data = given[sent < VECTORS*INPUTS ? sent : 0];
  always @(posedge clk) if (!rst) begin
    idle <= (s_valid && s_ready) || (m_valid && m_ready) ? 0 : idle + 1;
    if (s_valid && s_ready) begin
      if (sent % INPUTS == 0) start <= clocks;
      sent <= sent + 1;
    end
    if (m_valid && m_ready) begin
      if (32'(m_acc) != wanted[2*got] || ((CODES > 1 || m_last) && 32'(m_action) != wanted[2*got+1])
          || m_last != (got % OUTPUTS == OUTPUTS - 1)) begin
        if (wrong < 5) $display("output %0d: %0d, code %0d", got, m_acc, m_action);
        wrong <= wrong + 1;
      end
      got <= got + 1;
      if (m_last && !pauses) latency <= clocks - start;
    end
    if (!pauses && core.x_valid && core.x_last) last_level <= clocks;
    if (!pauses && core.done) layers <= clocks - last_level;
    if (got == VECTORS * OUTPUTS) begin
      if (wrong != 0) $fatal(1, "FAIL: %0d of %0d outputs are wrong", wrong, got);
      $display("PASS: %0d vectors, %0d clocks each, %0d of them for the layers", VECTORS, latency, layers);
      $finish;
    end
  end
endmodule
