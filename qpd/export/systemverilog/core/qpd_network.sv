// All layers by P neurons and an input a clock, which share these P multipliers. While a group's
// accumulators leave one by one, the next group's are computed, of levels as they come.
`default_nettype none
module qpd_network #(
`include "qpd_constants.svh"
) (
    input  wire                  clk,
    input  wire                  rst,
    // A level a transfer, in order.
    input  wire                  x_valid,
    input  wire                  x_last,
    input  wire [INPUT_AT-1:0]   x_index,
    input  wire [7:0]            x_level,
    output wire                  done,     // for one clock: accumulators of the head are there
    input  wire                  read,
    input  wire [OUTPUT_AT-1:0]  y_index,
    output logic signed [ACC-1:0] y_acc    // of the index that was there when `read`
);
  localparam LA = $clog2(MOST_INPUTS);
  localparam CW = 16;

  // The constants; a tool puts what is large into block RAM.
  (* ram_style = YOSYS_STYLE, rom_style = ROM_STYLE *) logic [P*B-1:0] weights [0:WEIGHT_WORDS-1];
  (* ram_style = TABLE_YOSYS_STYLE, rom_style = TABLE_ROM_STYLE *)
  logic [PARAM-1:0] params [0:NEURONS-1];
  initial begin
    $readmemh("weights.hex", weights);
    $readmemh("params.hex", params);
  end

  // The next product is of the input at `place`, with so many left for this group of neurons; so
  // many neurons of the layer are left. Its first group may wait for levels: so many are ahead.
  logic [CW-1:0] place, left, neurons_left, ahead;
  logic [WEIGHT_AT-1:0] weight_at;
  logic [LAYER-1:0] layer;
  logic busy, ends, first_group, is_free;
  // What leaves: the next neuron and the group's number of neurons left. Then the same of the group
  // whose last product is on its way.
  logic [PARAM_AT-1:0] param_at;
  logic [CW-1:0] neuron, leaving_left, coming_left;
  logic leaving_ends, leaving_head, leaving_bank, coming_ends, coming_head, coming_bank;
  // Through wires: not every tool selects from a constant by a signal.
  wire [TABLE-1:0] all_inputs = LAYER_INPUTS, all_outputs = LAYER_OUTPUTS;
  wire [LAYER-1:0] next_layer = layer + 1'b1;
  wire [CW-1:0] layer_inputs = all_inputs[CW*layer +: CW];
  wire [CW-1:0] layer_outputs = all_outputs[CW*layer +: CW];
  wire [CW-1:0] next_outputs = all_outputs[CW*next_layer +: CW];
  wire last_layer = 32'(layer) == LAYERS - 1;
  wire last_group = 32'(neurons_left) <= P;
  wire bank = layer[0];
  wire leaves = leaving_left != 0;

  // Levels are written by the encoder and, so many clocks after its accumulator, by every neuron.
  localparam DELAY = 7;
  logic [CW*DELAY-1:0] at;
  logic [DELAY-1:0] drain_valid;
  logic [2:0] drain_last;
  logic [7:0] drained;
  wire write = x_valid || (drain_valid[DELAY-1] && !leaving_head);
  wire [CW-1:0] write_at = x_valid ? CW'(x_index) : at[CW*(DELAY-1) +: CW];
  wire [7:0] write_level = x_valid ? x_level : drained;
  wire write_bank = x_valid ? 1'b0 : ~leaving_bank;

  // Multiply: ROM and levels, a register, products, the accumulators. Levels of the layer that is
  // read and of the one that is written are the halves of a memory. What a block RAM reads is
  // registered once more, as its own output is late.
  localparam MACS = 3;
  logic [P*B-1:0] read_word, word;
  logic [7:0] levels [0:2*(1<<LA)-1];
  logic [7:0] read_level, x;
  always_ff @(posedge clk) begin
    if (write) levels[{write_bank, write_at[LA-1:0]}] <= write_level;
    read_level <= levels[{bank, place[LA-1:0]}];
    x <= read_level;
    read_word <= weights[weight_at];
    word <= read_word;
  end

  // A weight of B bits is odd, +-1, +-3 ..., or even, 0, +-2 ...: of narrow ones the multiples of a
  // level are added up once for all lanes, and a lane only chooses.
  localparam NARROW = B <= 3;
  wire [10:0] v = {3'd0, x}, three = v + (v << 1);
  wire [43:0] multiples = !NARROW ? '0
      : EVEN != 0 ? {v << 3, three << 1, v << 2, v << 1} : {(v << 3) - v, v + (v << 2), three, v};

  // Products are begun when their levels are there; a group's last ones when the accumulators that
  // they complete will find those before them gone, and none other on the way.
  logic [MACS-1:0] mac_valid, mac_first;
  logic [MACS:0] mac_last;
  wire issue = busy && (!first_group || ahead != 0) && (!ends || is_free);
  wire take = mac_last[MACS];
  wire [CW-1:0] more = ahead + CW'(write), fewer = more - 1'b1;
  logic [P*ACC-1:0] acc, leaving;
  for (genvar i = 0; i < P; i++) begin : g_lane
    logic signed [ACC-1:0] product;
    wire [B-1:0] n = word[i*B +: B];
    if (NARROW) begin : g_add
      wire negative = ~n[B-1];
      // Which multiple: n mirrored at the middle; of even weights their magnitude's half, less 1.
      wire [B-2:0] mirrored = n[B-2:0] ^ {(B-1){negative}};
      wire [2:0] half = 3'(mirrored) + 3'(EVEN != 0 && negative);
      wire [1:0] which = 2'(half - 3'(EVEN));
      wire [10:0] some = which[1] ? (which[0] ? multiples[43:33] : multiples[32:22])
          : which[0] ? multiples[21:11] : multiples[10:0];
      wire [10:0] chosen = EVEN != 0 && half == 3'd0 ? 11'd0 : some;
      wire [ACC-1:0] wide = {{(ACC-11){1'b0}}, chosen};
      always_ff @(posedge clk) product <= negative ? -wide : wide;
    end else begin : g_multiply
      wire signed [B:0] w = {~n[B-1], n[B-2:0], EVEN == 0};
      wire signed [8:0] level = {1'b0, x};
      wire signed [B+9:0] found = w * level;
      always_ff @(posedge clk) product <= ACC'(found);
      wire unused_found = &{1'b0, found};  // its highest bits, where accumulators are narrow
    end
    wire [ACC-1:0] next = i + 1 < P ? leaving[((i+1)%P)*ACC +: ACC] : '0;
    always_ff @(posedge clk) begin
      if (mac_valid[MACS-1])
        acc[i*ACC +: ACC] <= (mac_first[MACS-1] ? '0 : acc[i*ACC +: ACC]) + product;
      leaving[i*ACC +: ACC] <= take ? acc[i*ACC +: ACC] : next;
    end
  end

  // Requantize, a neuron a clock: bias, then thresholds or multiplier and shift.
  logic [PARAM-1:0] read_param, param1;
  logic [PARAM-1:ACC] param2;
  logic signed [ACC-1:0] acc0, acc1, acc2;
  logic signed [ACC-1:0] outputs [0:OUTPUTS-1];
  always_ff @(posedge clk) begin
    read_param <= params[param_at];
    acc0 <= leaving[ACC-1:0];
    param1 <= read_param;
    acc1 <= acc0;
    param2 <= param1[PARAM-1:ACC];
    acc2 <= acc1 + $signed(param1[ACC-1:0]);
    at <= {at[CW*(DELAY-1)-1:0], neuron};
    if (drain_valid[2] && leaving_head) outputs[at[2*CW +: OUTPUT_AT]] <= acc2;
  end
  if (THRESHOLDS != 0) begin : g_thresholds
    logic [TOP-1:0] reached;
    logic [7:0] count_reached, level4, level5;
    always_comb begin
      count_reached = '0;
      for (int t = 0; t < TOP; t++) count_reached = count_reached + 8'(reached[t]);
    end
    always_ff @(posedge clk) begin
      for (int t = 0; t < TOP; t++) reached[t] <= acc2 >= $signed(param2[(t+1)*ACC +: ACC]);
      level4 <= count_reached;
      level5 <= level4;
      drained <= level5;
    end
  end else begin : g_multiplier
    logic signed [ACC+31:0] product, whole, half;
    logic [5:0] shift, shift4;
    wire signed [31:0] factor = {1'b0, param2[ACC +: 31]};
    wire signed [ACC+31:0] rounded = (half + 1) >>> 1;
    wire signed [ACC+31:0] top = TOP;
    // Registers after the product: a tool moves them into its multipliers.
    always_ff @(posedge clk) begin
      product <= acc2 * factor;
      shift <= param2[ACC+31 +: 6] - 6'd1;
      whole <= product;
      shift4 <= shift;
      half <= whole >>> shift4;
      drained <= rounded < 0 ? 8'd0 : rounded > top ? 8'(TOP) : rounded[7:0];
    end
  end
  always_ff @(posedge clk) if (read) y_acc <= outputs[y_index];

  logic finished;
  assign done = finished;
  always_ff @(posedge clk) begin
    mac_valid <= {mac_valid[MACS-2:0], issue};
    mac_first <= {mac_first[MACS-2:0], place == 0};
    mac_last <= {mac_last[MACS-1:0], issue && ends};
    is_free <= !(issue && ends) && mac_last == 0 && 32'(leaving_left) <= MACS + 3;
    ahead <= issue && first_group ? fewer : more;
    if (issue) begin
      weight_at <= weight_at + 1'b1;
      place <= place + 1'b1;
      left <= left - 1'b1;
      ends <= left == 2;
      if (ends) begin
        place <= '0;
        left <= layer_inputs;
        ends <= layer_inputs == 1;
        first_group <= 1'b0;
        neurons_left <= neurons_left - CW'(P);
        coming_left <= last_group ? neurons_left : CW'(P);
        coming_ends <= last_group;
        coming_head <= last_layer;
        coming_bank <= bank;
        if (last_group) begin
          layer <= layer + 1'b1;
          first_group <= 1'b1;
          left <= layer_outputs;
          ends <= layer_outputs == 1;
          neurons_left <= next_outputs;
          busy <= !last_layer;
        end
      end
    end

    drain_valid <= {drain_valid[DELAY-2:0], leaves};
    drain_last <= {drain_last[1:0], leaves && leaving_ends && leaving_left == 1};
    if (leaves) begin
      param_at <= param_at + 1'b1;
      neuron <= leaving_ends && leaving_left == 1 ? '0 : neuron + 1'b1;
      leaving_left <= leaving_left - 1'b1;
    end
    if (take) begin
      leaving_left <= coming_left;
      leaving_ends <= coming_ends;
      leaving_head <= coming_head;
      leaving_bank <= coming_bank;
    end
    finished <= drain_last[2] && leaving_head;
    if (rst || finished) begin
      busy <= 1'b1;
      first_group <= 1'b1;
      left <= LAYER_INPUTS[CW-1:0];
      ends <= LAYER_INPUTS[CW-1:0] == 1;
      neurons_left <= LAYER_OUTPUTS[CW-1:0];
      layer <= '0;
      weight_at <= '0;
      param_at <= '0;
    end
    if (rst) begin
      finished <= 1'b0;
      place <= '0;
      ahead <= '0;
      neuron <= '0;
      leaving_left <= '0;
      is_free <= 1'b0;
      mac_valid <= '0;
      mac_last <= '0;
      drain_valid <= '0;
      drain_last <= '0;
    end
  end
  // Only to say that nothing reads it.
  wire unused = &{1'b0, x_last, write_at, multiples, ROM_STYLE[0], YOSYS_STYLE[0], TABLE_ROM_STYLE[0],
                  TABLE_YOSYS_STYLE[0], 1'b0};
endmodule
`default_nettype wire
