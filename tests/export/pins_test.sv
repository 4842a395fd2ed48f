// The core behind shift registers: features go in and outputs come out one bit a clock, and each
// output must be the engine's. Only `qpd_pins`' own ports are used, as a board would.
module pins_test #(
`include "qpd_constants.svh"
);
  localparam int VECTORS = 8;
  logic clk = 0, rst = 1, in_shift = 0, in_bit = 0, s_valid = 0, s_ready;
  logic out_shift = 0, out_bit, m_valid, m_ready = 0, m_last, last;
  logic [31:0] given[0:qpd_golden::VECTORS*INPUTS-1];
  logic [31:0] wanted[0:2*qpd_golden::VECTORS*OUTPUTS-1];
  logic signed [ACC-1:0] acc;
  logic [ACTION-1:0] action;
  int wrong = 0, right = 0;
  qpd_pins pins (.*);
  always #5 clk = ~clk;
  task automatic send(logic [31:0] feature);
    in_shift = 1;
    for (int i = 31; i >= 0; i--) begin
      in_bit = feature[i];
      @(negedge clk);
    end
    in_shift = 0;
    s_valid = 1;
    while (!s_ready) @(negedge clk);
    @(negedge clk);
    s_valid = 0;
  endtask
  task automatic receive();
    m_ready = 1;
    while (!m_valid) @(negedge clk);
    last = m_last;
    @(negedge clk);
    m_ready = 0;
    out_shift = 1;
    for (int i = 0; i < ACC + ACTION; i++) begin
      {action, acc} = {action[ACTION-1:0], acc} << 1 | (ACC+ACTION)'(out_bit);
      @(negedge clk);
    end
    out_shift = 0;
  endtask
  initial begin
    $readmemh("golden_observations.hex", given);
    $readmemh("golden_outputs.hex", wanted);
    repeat (6) @(negedge clk);
    rst = 0;
    for (int v = 0; v < VECTORS; v++) begin
      for (int i = 0; i < INPUTS; i++) send(given[v*INPUTS+i]);
      for (int i = 0; i < OUTPUTS; i++) begin
        receive();
        if (32'(acc) == wanted[2*(v*OUTPUTS+i)] && last == (i == OUTPUTS - 1)
            && (!(CODES > 1 || last) || 32'(action) == wanted[2*(v*OUTPUTS+i)+1])) right++;
        else wrong++;
      end
    end
    $display("%0d outputs as the engine's, %0d wrong", right, wrong);
    $finish;
  end
endmodule
