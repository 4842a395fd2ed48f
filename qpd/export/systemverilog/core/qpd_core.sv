// A quantized policy in integers: raw float32 features in, accumulators and actions out.
// P neurons by S inputs are multiplied a clock; all layers share these P*S multipliers.
`default_nettype none
module qpd_core
  import qpd_constants::*;
(
    input  wire logic                     clk,
    input  wire logic                     rst,      // synchronous
    // One feature a transfer: the bits of its float32.
    input  wire logic                     s_valid,
    output logic                          s_ready,
    input  wire logic [31:0]              s_data,
    // One output a transfer. m_action: its code, or (valid with m_last) the chosen action.
    output logic                          m_valid,
    input  wire logic                     m_ready,
    output logic                          m_last,
    output logic signed [ACC-1:0]         m_acc,
    output logic [ACTION-1:0]             m_action
);
  localparam int LA = $clog2(MOST_CHUNKS);
  localparam int CW = 16;
  typedef enum logic [3:0] {
    FEATURE, SEARCH, COMPARE, STORE, MAC, FILL, DRAIN, EMPTY, FETCH, CODE, CODE_COMPARE, DECIDE, SEND
  } state_t;
  state_t state;

  // The constants; a tool puts what is large into block RAM.
  (* rom_style = ROM_STYLE *) logic [P*S*B-1:0]     weights  [0:WEIGHT_WORDS-1];
  (* rom_style = ROM_STYLE *) logic [PARAM-1:0]     params   [0:NEURONS-1];
  (* rom_style = ROM_STYLE *) logic [31:0]          features [0:256*INPUTS-1];
  (* rom_style = ROM_STYLE *) logic signed [ACC-1:0] codes   [0:CODES-1];
  initial begin
    $readmemh("weights.hex", weights);
    $readmemh("params.hex", params);
    $readmemh("features.hex", features);
    $readmemh("codes.hex", codes);
  end

  // Levels of the layer that is read and of the one that is written, S side by side.
  logic [7:0] levels [0:S-1][0:2*(1<<LA)-1];
  logic signed [ACC-1:0] outputs [0:OUTPUTS-1];

  logic [CW-1:0] chunk, done, left, neuron, count, index;
  logic [31:0] weight_at, param_at;
  logic [LAYER-1:0] layer;
  wire [CW-1:0] layer_inputs = CW'(32'(LAYER_INPUTS[16*layer +: 16]));
  wire [CW-1:0] layer_outputs = CW'(32'(LAYER_OUTPUTS[16*layer +: 16]));
  wire last_layer = int'(layer) == LAYERS - 1;
  wire bank = layer[0];

  // Features: the level is the number of thresholds reached, by bisection. Floats are ordered as
  // integers once the negative ones are flipped; NaN is level 0.
  logic [31:0] key, feature_threshold;
  logic [7:0] level, step;
  wire [7:0] candidate = level | step;
  wire not_a_number = s_data[30:0] > 31'h7f800000;
  always_ff @(posedge clk) feature_threshold <= features[{24'(index), candidate}[FEATURE_AT-1:0]];

  // Multiply: ROM and levels, then products and their sum, then the accumulators.
  logic [P*S*B-1:0] word;
  logic [7:0] x [0:S-1];
  logic [2:0] mac_valid, mac_first;
  logic signed [ACC-1:0] sum [0:P-1], acc [0:P-1];
  always_ff @(posedge clk) word <= weights[weight_at[WEIGHT_AT-1:0]];
  for (genvar j = 0; j < S; j++) begin : g_read
    always_ff @(posedge clk) x[j] <= j < int'(left) ? levels[j][{bank, chunk[LA-1:0]}] : 8'd0;
  end

  // An odd weight of B bits is the sum of +-2^i, the signs its code's bits: adders will do.
  function automatic logic signed [ACC-1:0] times(input logic [B-1:0] n, input logic [7:0] v);
    if (B <= 3) begin
      times = '0;
      for (int i = 0; i < B; i++)
        times = n[i] ? times + ACC'(v) * ACC'(1 << i) : times - ACC'(v) * ACC'(1 << i);
    end else begin
      logic signed [B:0] w;
      logic signed [B+9:0] product;
      w = {~n[B-1], n[B-2:0], 1'b1};
      product = (B+10)'(w) * (B+10)'($signed({1'b0, v}));
      times = ACC'(product);
    end
  endfunction

  // Generated, not looped over: Verilator refuses delayed writes in loops that it does not unroll.
  for (genvar i = 0; i < P; i++) begin : g_lane
    logic signed [ACC-1:0] total;
    always_comb begin
      total = '0;
      for (int j = 0; j < S; j++) total = total + times(word[(i*S+j)*B +: B], x[j]);
    end
    always_ff @(posedge clk) begin
      sum[i] <= total;
      if (mac_valid[1]) acc[i] <= (mac_first[1] ? '0 : acc[i]) + sum[i];
      else if (state == DRAIN) acc[i] <= i + 1 < P ? acc[(i+1)%P] : '0;
    end
  end

  // Requantize, a neuron a clock: bias, then thresholds or multiplier and shift.
  logic [PARAM-1:0] param1;
  logic [PARAM-1:ACC] param2;
  logic signed [ACC-1:0] acc1, acc2;
  logic [3:0] drain_valid;
  logic [CW-1:0] at1, at2, at3, at4;
  logic [7:0] level4;
  always_ff @(posedge clk) begin
    param1 <= params[param_at[PARAM_AT-1:0]];
    acc1 <= acc[0];
    param2 <= param1[PARAM-1:ACC];
    acc2 <= acc1 + $signed(param1[ACC-1:0]);
    at1 <= neuron; at2 <= at1; at3 <= at2; at4 <= at3;
    if (drain_valid[1] && last_layer) outputs[at2[OUTPUT_AT-1:0]] <= acc2;
  end
  generate
    if (THRESHOLDS != 0) begin : g_thresholds
      logic [TOP-1:0] reached;
      always_ff @(posedge clk) begin
        for (int t = 0; t < TOP; t++) reached[t] <= acc2 >= $signed(param2[(t+1)*ACC +: ACC]);
        level4 <= 8'($countones(reached));
      end
    end else begin : g_multiplier
      logic signed [ACC+31:0] product;
      logic [5:0] shift;
      logic signed [ACC+31:0] rounded;
      always_comb rounded = ((product >>> (shift - 6'd1)) + 1) >>> 1;
      always_ff @(posedge clk) begin
        product <= (ACC+32)'(acc2) * (ACC+32)'($signed({1'b0, param2[ACC +: 31]}));
        shift <= param2[ACC+31 +: 6];
        level4 <= rounded < 0 ? 8'd0 : rounded > (ACC+32)'(TOP) ? 8'(TOP) : 8'(rounded);
      end
    end
  endgenerate

  // Levels are written by the encoder and, four clocks after its accumulator, by every neuron.
  logic [CW-1:0] write_at;
  logic [7:0] write_level;
  logic write_bank, write;
  always_comb begin
    write = state == STORE || (drain_valid[3] && !last_layer);
    write_at = state == STORE ? index : at4;
    write_level = state == STORE ? level : level4;
    write_bank = state == STORE ? 1'b0 : ~bank;
  end
  for (genvar j = 0; j < S; j++) begin : g_write
    always_ff @(posedge clk)
      if (write && int'(write_at) % S == j)
        levels[j][{write_bank, LA'(int'(write_at) / S)}] <= write_level;
  end

  logic signed [ACC-1:0] output_now, code_threshold, best;
  logic [ACTION-1:0] code, code_step, choice;
  wire [ACTION-1:0] code_candidate = code | code_step;
  always_ff @(posedge clk) begin
    output_now <= outputs[index[OUTPUT_AT-1:0]];
    code_threshold <= codes[code_candidate[CODE_AT-1:0]];
  end

  assign s_ready = state == FEATURE;
  assign m_valid = state == SEND;
  assign m_acc = output_now;
  assign m_last = int'(index) == OUTPUTS - 1;
  assign m_action = CODES > 1 ? code : choice;

  always_ff @(posedge clk) begin
    mac_valid <= {mac_valid[1:0], 1'b0};
    mac_first <= {mac_first[1:0], 1'b0};
    drain_valid <= {drain_valid[2:0], state == DRAIN};
    if (state == MAC) begin
      mac_valid[0] <= 1'b1;
      mac_first[0] <= chunk == 0;
    end
    case (state)
      FEATURE: if (s_valid) begin
        key <= s_data[31] ? ~s_data : {1'b1, s_data[30:0]};
        level <= 8'd0;
        step <= 8'h80;
        state <= not_a_number ? STORE : SEARCH;
      end
      SEARCH: state <= COMPARE;
      COMPARE: begin
        if (key >= feature_threshold) level <= candidate;
        step <= step >> 1;
        state <= step == 8'd1 ? STORE : SEARCH;
      end
      STORE: if (int'(index) == INPUTS - 1) begin
        index <= '0;
        state <= MAC;
      end else begin
        index <= index + 1'b1;
        state <= FEATURE;
      end
      MAC: begin
        weight_at <= weight_at + 1;
        if (int'(left) <= S) begin
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
        if (count == 2) begin
          count <= '0;
          state <= DRAIN;
        end
      end
      DRAIN: begin
        param_at <= param_at + 1;
        neuron <= neuron + 1'b1;
        count <= count + 1'b1;
        if (int'(count) == P - 1 || neuron + 1'b1 == layer_outputs) begin
          count <= '0;
          state <= EMPTY;
        end
      end
      EMPTY: begin
        count <= count + 1'b1;
        if (count == 4) begin
          count <= '0;
          state <= MAC;
          if (neuron == layer_outputs) begin
            neuron <= '0;
            left <= CW'(32'(LAYER_OUTPUTS[16*layer +: 16]));
            layer <= layer + 1'b1;
            if (last_layer) begin
              layer <= '0;
              left <= CW'(32'(LAYER_INPUTS[15:0]));
              weight_at <= '0;
              param_at <= '0;
              state <= FETCH;
            end
          end
        end
      end
      FETCH: begin
        code <= '0;
        code_step <= ACTION'(CODES >> 1);
        state <= CODE;
      end
      CODE: state <= CODES > 1 ? CODE_COMPARE : DECIDE;
      CODE_COMPARE: begin
        if (output_now >= code_threshold) code <= code_candidate;
        code_step <= code_step >> 1;
        state <= code_step == 1 ? DECIDE : CODE;
      end
      DECIDE: begin
        if (index == 0 || output_now > best) begin
          best <= output_now;
          choice <= ACTION'(index);
        end
        state <= SEND;
      end
      SEND: if (m_ready) begin
        index <= m_last ? '0 : index + 1'b1;
        state <= m_last ? FEATURE : FETCH;
      end
      default: state <= FEATURE;
    endcase
    if (rst) begin
      state <= FEATURE;
      {chunk, neuron, count, index} <= '0;
      left <= CW'(32'(LAYER_INPUTS[15:0]));
      layer <= '0;
      weight_at <= '0;
      param_at <= '0;
      mac_valid <= '0;
      drain_valid <= '0;
    end
  end
  // Only to say that nothing reads it.
  wire unused = &{1'b0, mac_valid[2], mac_first[2], done, weight_at, param_at, 1'b0};
  assign done = '0;
endmodule
`default_nettype wire
