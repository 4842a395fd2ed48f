// Resets of one clock, at every clock after an observation: none may leave outputs behind, and the
// next observation must be answered as ever.
module reset_test #(
`include "qpd_constants.svh"
);
  logic clk = 0, rst = 1, s_valid = 0, s_ready, m_valid, m_ready = 1, m_last;
  logic [31:0] s_data = 0;
  logic signed [ACC-1:0] m_acc;
  logic [ACTION-1:0] m_action;
  logic [31:0] given[0:qpd_golden::VECTORS*INPUTS-1];
  logic [31:0] wanted[0:2*qpd_golden::VECTORS*OUTPUTS-1];
  int without = 0, wrong = 0, got, clocks;
  qpd_core core (.*);
  always #5 clk = ~clk;
  task automatic send(int vector);
    for (int i = 0; i < INPUTS; i++) begin
      s_data = given[vector*INPUTS+i];
      s_valid = 1;
      while (!s_ready) @(negedge clk);
      @(negedge clk);
    end
    s_valid = 0;
  endtask
  initial begin
    $readmemh("golden_observations.hex", given);
    $readmemh("golden_outputs.hex", wanted);
    for (int after = 0; after < 200; after++) begin
      rst = 1;
      repeat (6) @(negedge clk);
      rst = 0;
      @(negedge clk);
      send(0);
      repeat (after) @(negedge clk);
      rst = 1;
      @(negedge clk);
      rst = 0;
      repeat (200) begin
        @(negedge clk);
        if (m_valid) without++;
      end
      send(1);
      got = 0;
      for (clocks = 0; got < OUTPUTS && clocks < 1000; clocks++) begin
        @(negedge clk);
        if (m_valid) begin
          if (32'(m_acc) != wanted[2*(OUTPUTS+got)]) wrong++;
          got++;
        end
      end
      if (got != OUTPUTS) wrong++;
    end
    $display("%0d outputs without an observation, %0d wrong", without, wrong);
    $finish;
  end
endmodule
