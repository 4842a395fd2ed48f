// How many thresholds of a row a key has reached, by bisection: a key every clock. A step takes two
// clocks, or three where its thresholds are LARGE or more: a block RAM's output is late. NAME0.hex
// has those of the first step, one a row.
`default_nettype none
module qpd_search #(
    parameter BITS = 8,
    parameter ROWS = 1,
    parameter ROW = 1,
    parameter KEY = 32,
    parameter LARGE = 64,
    parameter NAME = "features",
    parameter ROM_STYLE = "block",
    parameter YOSYS_STYLE = "block"
) (
    input  wire            clk,
    input  wire            go,        // nothing moves without it
    input  wire [KEY-1:0]  key,       // unsigned
    input  wire [ROW-1:0]  row,
    output wire [KEY-1:0]  found_key, // the key of `level`
    output wire [BITS-1:0] level
);
  wire [(BITS+1)*KEY-1:0] keys;
  wire [(BITS+1)*ROW-1:0] rows;
  wire [(BITS+1)*BITS-1:0] levels;
  assign keys[0 +: KEY] = key;
  assign rows[0 +: ROW] = row;
  assign levels[0 +: BITS] = '0;
  for (genvar t = 0; t < BITS; t++) begin : g_step
    localparam ENTRIES = ROWS << t;
    localparam AT = $clog2(ENTRIES) > 0 ? $clog2(ENTRIES) : 1;
    // The bits that are known say which half, quarter, ... of the row is left.
    wire [ROW+BITS-1:0] place =
        ((ROW+BITS)'(rows[t*ROW +: ROW]) << t) | (ROW+BITS)'(levels[t*BITS +: BITS]);
    wire [AT-1:0] at = AT'(place);
    wire unused_place = &{1'b0, place, 1'b0};  // its high bits are 0
    logic [KEY-1:0] threshold, key0, key1;
    logic [ROW-1:0] row0, row1;
    logic [BITS-1:0] level0, level1;
    if (ENTRIES >= LARGE) begin : g_large
      (* ram_style = YOSYS_STYLE, rom_style = ROM_STYLE *) logic [KEY-1:0] rom [0:ENTRIES-1];
      initial $readmemh({NAME, 8'd48 + 8'(t), ".hex"}, rom);
      logic [KEY-1:0] read, key_read;
      logic [ROW-1:0] row_read;
      logic [BITS-1:0] level_read;
      always_ff @(posedge clk) if (go) begin
        read <= rom[at];
        key_read <= keys[t*KEY +: KEY];
        row_read <= rows[t*ROW +: ROW];
        level_read <= levels[t*BITS +: BITS];
        threshold <= read;
        key0 <= key_read;
        row0 <= row_read;
        level0 <= level_read;
      end
    end else begin : g_small
      logic [KEY-1:0] rom [0:ENTRIES-1];
      initial $readmemh({NAME, 8'd48 + 8'(t), ".hex"}, rom);
      always_ff @(posedge clk) if (go) begin
        threshold <= rom[at];
        key0 <= keys[t*KEY +: KEY];
        row0 <= rows[t*ROW +: ROW];
        level0 <= levels[t*BITS +: BITS];
      end
    end
    always_ff @(posedge clk) if (go) begin
      key1 <= key0;
      row1 <= row0;
      level1 <= (level0 << 1) | BITS'(key0 >= threshold);
    end
    assign keys[(t+1)*KEY +: KEY] = key1;
    assign rows[(t+1)*ROW +: ROW] = row1;
    assign levels[(t+1)*BITS +: BITS] = level1;
  end
  assign found_key = keys[BITS*KEY +: KEY];
  assign level = levels[BITS*BITS +: BITS];
  wire unused = &{1'b0, rows[BITS*ROW +: ROW], ROM_STYLE[0], YOSYS_STYLE[0], 1'b0};
endmodule
`default_nettype wire
