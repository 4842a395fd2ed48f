// All layers by P neurons and S inputs a clock, which share these P*S multipliers.
`default_nettype none
module qpd_network #(
`include "qpd_constants.svh"
) (
    input  wire                  clk,
    input  wire                  rst,
    // A level a transfer, in order; layers are computed after the last one.
    input  wire                  x_valid,
    input  wire                  x_last,
    input  wire [INPUT_AT-1:0]   x_index,
    input  wire [7:0]            x_level,
    output wire                  done,     // for one clock: accumulators of the head are there
    input  wire                  read,
    input  wire [OUTPUT_AT-1:0]  y_index,
    output logic signed [ACC-1:0] y_acc    // of the index that was there when `read`
);
  localparam LA = $clog2(MOST_CHUNKS);
  localparam CW = 16;
  typedef enum logic [2:0] {WAIT, MAC, FILL, DRAIN, EMPTY} state_t;
  state_t state;

  // The constants; a tool puts what is large into block RAM.
  (* ram_style = YOSYS_STYLE, rom_style = ROM_STYLE *) logic [P*S*B-1:0] weights  [0:WEIGHT_WORDS-1];
  (* ram_style = TABLE_YOSYS_STYLE, rom_style = TABLE_ROM_STYLE *)
  logic [PARAM-1:0] params [0:NEURONS-1];
  initial begin
    $readmemh("weights.hex", weights);
    $readmemh("params.hex", params);
  end

  logic [CW-1:0] chunk, left, neuron, count;
  logic [WEIGHT_AT-1:0] weight_at;
  logic [PARAM_AT-1:0] param_at;
  logic [LAYER-1:0] layer;
  // Through wires: not every tool selects from a constant by a signal.
  wire [TABLE-1:0] all_inputs = LAYER_INPUTS, all_outputs = LAYER_OUTPUTS;
  wire [CW-1:0] layer_inputs = all_inputs[CW*layer +: CW];
  wire [CW-1:0] layer_outputs = all_outputs[CW*layer +: CW];
  wire last_layer = 32'(layer) == LAYERS - 1;
  wire bank = layer[0];

  // Levels are written by the encoder and, so many clocks after its accumulator, by every neuron.
  localparam DELAY = 7;
  logic [CW*DELAY-1:0] at;
  logic [DELAY-1:0] drain_valid;
  logic [7:0] drained;
  wire write = x_valid || (drain_valid[DELAY-1] && !last_layer);
  wire [CW-1:0] write_at = x_valid ? CW'(x_index) : at[CW*(DELAY-1) +: CW];
  wire [7:0] write_level = x_valid ? x_level : drained;
  wire write_bank = x_valid ? 1'b0 : ~bank;
  wire [CW-1:0] write_row = write_at / CW'(S), write_lane = write_at % CW'(S);

  // Multiply: ROM and levels, a register, products, their sums, the accumulators. Levels of the
  // layer that is read and of the one that is written lie S side by side. What a block RAM reads is
  // registered once more, as its own output is late.
  localparam MACS = 4;
  logic [P*S*B-1:0] read_word, word;
  logic [8*S-1:0] x;
  always_ff @(posedge clk) begin
    read_word <= weights[weight_at];
    word <= read_word;
  end
  for (genvar j = 0; j < S; j++) begin : g_level
    logic [7:0] levels [0:2*(1<<LA)-1];
    logic [7:0] found;
    logic used;
    always_ff @(posedge clk) begin
      if (write && 32'(write_lane) == j) levels[{write_bank, write_row[LA-1:0]}] <= write_level;
      found <= levels[{bank, chunk[LA-1:0]}];
      used <= j < 32'(left);
      x[8*j +: 8] <= used ? found : 8'd0;
    end
  end

  // A weight of B bits is odd, +-1, +-3 ..., or even, 0, +-2 ...: of narrow ones the multiples of a
  // level are added up once for all lanes, and a lane only chooses.
  localparam NARROW = B <= 3;
  wire [44*S-1:0] multiples;
  for (genvar j = 0; j < S; j++) begin : g_multiples
    wire [10:0] v = {3'd0, x[8*j +: 8]};
    wire [10:0] three = v + (v << 1);
    assign multiples[44*j +: 44] = !NARROW ? '0
        : EVEN != 0 ? {v << 3, three << 1, v << 2, v << 1} : {(v << 3) - v, v + (v << 2), three, v};
  end

  logic [MACS-1:0] mac_valid, mac_first;
  logic [P*ACC-1:0] acc;
  for (genvar i = 0; i < P; i++) begin : g_lane
    logic [S*ACC-1:0] products;
    for (genvar j = 0; j < S; j++) begin : g_product
      wire [B-1:0] n = word[(i*S+j)*B +: B];
      if (NARROW) begin : g_add
        wire [43:0] mine = multiples[44*j +: 44];
        wire negative = ~n[B-1];
        // Which multiple: n mirrored at the middle; of even weights their magnitude's half, less 1.
        wire [B-2:0] mirrored = n[B-2:0] ^ {(B-1){negative}};
        wire [2:0] half = 3'(mirrored) + 3'(EVEN != 0 && negative);
        wire [1:0] which = 2'(half - 3'(EVEN));
        wire [10:0] some = which[1] ? (which[0] ? mine[43:33] : mine[32:22])
            : which[0] ? mine[21:11] : mine[10:0];
        wire [10:0] chosen = EVEN != 0 && half == 3'd0 ? 11'd0 : some;
        wire [ACC-1:0] wide = {{(ACC-11){1'b0}}, chosen};
        always_ff @(posedge clk) products[j*ACC +: ACC] <= negative ? -wide : wide;
      end else begin : g_multiply
        wire signed [B:0] w = {~n[B-1], n[B-2:0], EVEN == 0};
        wire signed [8:0] v = {1'b0, x[8*j +: 8]};
        wire signed [B+9:0] product = w * v;
        always_ff @(posedge clk) products[j*ACC +: ACC] <= ACC'(product);
        wire unused_product = &{1'b0, product};  // its highest bits, where accumulators are narrow
      end
    end
    logic signed [ACC-1:0] total, sum;
    always_comb begin
      total = '0;
      for (int j = 0; j < S; j++) total = total + $signed(products[j*ACC +: ACC]);
    end
    wire [ACC-1:0] next = i + 1 < P ? acc[((i+1)%P)*ACC +: ACC] : '0;
    always_ff @(posedge clk) begin
      sum <= total;
      if (mac_valid[MACS-1]) acc[i*ACC +: ACC] <= (mac_first[MACS-1] ? '0 : acc[i*ACC +: ACC]) + sum;
      else if (state == DRAIN) acc[i*ACC +: ACC] <= next;
    end
  end

  // Requantize, a neuron a clock: bias, then thresholds or multiplier and shift.
  logic [PARAM-1:0] read_param, param1;
  logic [PARAM-1:ACC] param2;
  logic signed [ACC-1:0] acc0, acc1, acc2;
  logic signed [ACC-1:0] outputs [0:OUTPUTS-1];
  always_ff @(posedge clk) begin
    read_param <= params[param_at];
    acc0 <= acc[ACC-1:0];
    param1 <= read_param;
    acc1 <= acc0;
    param2 <= param1[PARAM-1:ACC];
    acc2 <= acc1 + $signed(param1[ACC-1:0]);
    at <= {at[CW*(DELAY-1)-1:0], neuron};
    if (drain_valid[2] && last_layer) outputs[at[2*CW +: OUTPUT_AT]] <= acc2;
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

  // The next group's accumulators are set after the last one's have left; only a layer's last group
  // is waited for.
  wire group_done = 32'(count) == P - 1 || neuron + 1'b1 == layer_outputs;
  logic finished;
  assign done = finished;
  always_ff @(posedge clk) begin
    mac_valid <= {mac_valid[MACS-2:0], 1'b0};
    mac_first <= {mac_first[MACS-2:0], 1'b0};
    drain_valid <= {drain_valid[DELAY-2:0], state == DRAIN};
    finished <= 1'b0;
    if (state == MAC) begin
      mac_valid[0] <= 1'b1;
      mac_first[0] <= chunk == 0;
    end
    case (state)
      WAIT: if (x_valid && x_last) state <= MAC;
      MAC: begin
        weight_at <= weight_at + 1'b1;
        if (32'(left) <= S) begin
          chunk <= '0;
          left <= layer_inputs;
          count <= '0;
          state <= FILL;
        end else begin
          chunk <= chunk + 1'b1;
          left <= left - CW'(S);
        end
      end
      FILL: begin
        count <= count + 1'b1;
        if (count == MACS) begin
          count <= '0;
          state <= DRAIN;
        end
      end
      DRAIN: begin
        param_at <= param_at + 1'b1;
        neuron <= neuron + 1'b1;
        count <= group_done ? '0 : count + 1'b1;
        if (group_done) state <= neuron + 1'b1 == layer_outputs ? EMPTY : MAC;
      end
      EMPTY: begin
        count <= count + 1'b1;
        if (count == (last_layer ? 2 : DELAY)) begin
          count <= '0;
          neuron <= '0;
          left <= layer_outputs;
          layer <= layer + 1'b1;
          state <= MAC;
          if (last_layer) begin
            layer <= '0;
            left <= LAYER_INPUTS[CW-1:0];
            weight_at <= '0;
            param_at <= '0;
            finished <= 1'b1;
            state <= WAIT;
          end
        end
      end
      default: state <= WAIT;
    endcase
    if (rst) begin
      state <= WAIT;
      finished <= 1'b0;
      chunk <= '0;
      neuron <= '0;
      count <= '0;
      left <= LAYER_INPUTS[CW-1:0];
      layer <= '0;
      weight_at <= '0;
      param_at <= '0;
      mac_valid <= '0;
      drain_valid <= '0;
    end
  end
  // Only to say that nothing reads it.
  wire unused = &{1'b0, write_row, multiples, ROM_STYLE[0], YOSYS_STYLE[0], TABLE_ROM_STYLE[0],
                  TABLE_YOSYS_STYLE[0], 1'b0};
endmodule
`default_nettype wire
