/* Layers with AVX512-VNNI (VPDPBUSD: 64 products an instruction), and what it pays to skip.
 *
 * Weights are laid out anew once, [block of 16 outputs][inputs / 4][16][4]; a few patches at a time
 * keep their accumulators in registers and broadcast 4 input bytes each. Three exact savings:
 * a patch of zeros (the black of most games) gives a vector that is known beforehand; where the
 * four frames of a patch are the same, conv1 multiplies one frame with the sum of their weights;
 * and sums of patches come from sums over 4x4 cells (QPD_FRAMES). Of own images every patch is
 * multiplied. */
#ifndef QPD_LAYER_VNNI_H
#define QPD_LAYER_VNNI_H

#include <immintrin.h>

#include "qpd_layer.h"
#include "qpd_vnni_dot.h"

#define QPD_MOST_PATCHES 400

static struct qpd_vnni {
    int8_t weights[QPD_PREPARED_BYTES];
    const int8_t *layer_weights[QPD_LAYERS]; /* null: left to qpd_layer_dot */
    const int8_t *still_weights;             /* conv1 where four frames are one */
    const uint8_t *dead[QPD_LAYERS]; /* levels of a patch that saw only zeros; null: not known */
    uint8_t dead_levels[QPD_EVEN_BYTES + QPD_ODD_BYTES];
    uint32_t dead_rows[21]; /* bit x of [y]: the current layer's input is dead there */
    int32_t sums[QPD_MOST_PATCHES];
    struct qpd_patch moving[QPD_MOST_PATCHES], still[QPD_MOST_PATCHES];
    int prepared;
} qpd_vnni;

#if QPD_FRAMES
/* Which patches of a layer are dead: those whose kernel x kernel inputs all are. */
static void qpd_mark_dead(uint32_t i, uint32_t kernel, uint32_t stride)
{
    const uint32_t side = qpd_layers[i].side;
    if (!qpd_vnni.dead[i]) {
        memset(qpd_vnni.dead_rows, 0, sizeof qpd_vnni.dead_rows);
        return;
    }
    for (uint32_t y = 0; y < side; ++y) {
        uint32_t rows = ~UINT32_C(0), across, marked = 0;
        for (uint32_t row = 0; row < kernel; ++row) {
            rows &= qpd_vnni.dead_rows[y * stride + row];
        }
        across = rows;
        for (uint32_t x = 1; x < kernel; ++x) {
            across &= rows >> x;
        }
        for (uint32_t x = 0; stride > 1 && x < side; ++x) {
            marked |= (across >> (x * stride) & 1u) << x;
        }
        /* In place: no later y reads row y, since y * stride >= y. */
        qpd_vnni.dead_rows[y] = stride > 1 ? marked : across & ((UINT32_C(1) << side) - 1);
    }
}

/* The sum of each 4x4x4 cell of the frames; which cells are zero, and which are the same in all
 * four frames (bits of [21] rows). Two vectors cover a row of 21 cells: cells 0..15 and 5..20. */
static void qpd_survey(const uint8_t *frames, int32_t cells[21][21], uint32_t *still)
{
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    for (uint32_t y = 0; y < 21; ++y) {
        __m512i sum[2] = {zero, zero}, differs[2] = {zero, zero};
        for (uint32_t i = 0; i < 4; ++i) {
            const uint8_t *row = frames + (4 * y + i) * 84;
            for (uint32_t half = 0; half < 2; ++half) {
                const __m512i first = _mm512_loadu_si512(row + 20 * half);
                sum[half] = _mm512_dpbusd_epi32(sum[half], first, ones);
                for (uint32_t frame = 1; frame < 4; ++frame) {
                    const __m512i other = _mm512_loadu_si512(row + 20 * half + frame * 7056);
                    sum[half] = _mm512_dpbusd_epi32(sum[half], other, ones);
                    /* a | (b ^ c) */
                    differs[half] = _mm512_ternarylogic_epi32(differs[half], first, other, 0xf6);
                }
            }
        }
        _mm512_storeu_si512(&cells[y][0], sum[0]);
        _mm512_storeu_si512(&cells[y][5], sum[1]);
        qpd_vnni.dead_rows[y] = (uint32_t)_mm512_testn_epi32_mask(sum[0], sum[0]) |
                                (uint32_t)_mm512_testn_epi32_mask(sum[1], sum[1]) << 5;
        still[y] = (uint32_t)_mm512_testn_epi32_mask(differs[0], differs[0]) |
                   (uint32_t)_mm512_testn_epi32_mask(differs[1], differs[1]) << 5;
    }
}

/* Appends the patches of row y whose bits are set; returns the new count. */
static uint32_t qpd_list(const struct qpd_layer *layer, struct qpd_patch *list, uint32_t count,
                         uint32_t bits, uint32_t y)
{
    for (; bits; bits &= bits - 1) {
        const uint32_t x = (uint32_t)__builtin_ctz(bits);
        list[count].offset = y * layer->step_y + x * layer->step_x;
        list[count++].position = y * layer->side + x;
    }
    return count;
}

/* Copies the known levels to the dead patches of row y. */
static void qpd_fill_dead(const struct qpd_layer *layer, const uint8_t *known, uint32_t y,
                          uint8_t *levels)
{
    const uint32_t n = layer->outputs;
    for (uint32_t bits = qpd_vnni.dead_rows[y]; bits; bits &= bits - 1) {
        uint8_t *to = levels + (y * layer->side + (uint32_t)__builtin_ctz(bits)) * n;
        if (n == 16) { /* a constant size is one move, not a call */
            memcpy(to, known, 16);
        } else {
            memcpy(to, known, n);
        }
    }
}

/* Sums of 2x2 cells: those of row y of conv1's patches. */
QPD_INLINE void qpd_sum_cells(int32_t cells[21][21], uint32_t y)
{
    for (uint32_t x = 0; x < 20; ++x) {
        qpd_vnni.sums[20 * y + x] =
            cells[y][x] + cells[y][x + 1] + cells[y + 1][x] + cells[y + 1][x + 1];
    }
}

static void qpd_frames_vnni(const struct qpd_layer *layer, const uint8_t *frames, uint8_t *levels)
{
    struct qpd_work moving = {layer, frames, qpd_vnni.layer_weights[0], qpd_vnni.moving,
                              qpd_vnni.sums, levels, 0};
    struct qpd_work still = {layer, frames, qpd_vnni.still_weights, qpd_vnni.still,
                             qpd_vnni.sums, levels, 0};
    int32_t cells[21][21];
    uint32_t still_rows[21];
    qpd_survey(frames, cells, still_rows);
    qpd_mark_dead(0, 2, 1); /* 2x2 cells a patch */
    for (uint32_t y = 0; y < 20; ++y) {
        const uint32_t both = still_rows[y] & still_rows[y + 1], alike = both & both >> 1;
        const uint32_t live = ~qpd_vnni.dead_rows[y] & 0xfffffu;
        qpd_sum_cells(cells, y);
        still.count = qpd_list(layer, qpd_vnni.still, still.count, live & alike, y);
        moving.count = qpd_list(layer, qpd_vnni.moving, moving.count, live & ~alike, y);
        qpd_fill_dead(layer, qpd_vnni.dead[0], y, levels);
    }
    qpd_frames_patches(&moving);
    qpd_still_patches(&still);
}

static void qpd_conv_vnni(uint32_t i, const uint8_t *input, uint8_t *levels)
{
    const struct qpd_layer *layer = &qpd_layers[i];
    struct qpd_work work = {layer, input, qpd_vnni.layer_weights[i], qpd_vnni.moving,
                            qpd_vnni.sums, levels, 0};
    qpd_mark_dead(i, layer->rows, (uint32_t)layer->step_x * layer->rows / layer->row_bytes);
    for (uint32_t y = 0; y < layer->side; ++y) {
        const uint32_t live = ~qpd_vnni.dead_rows[y] & ((UINT32_C(1) << layer->side) - 1);
        work.count = qpd_list(layer, qpd_vnni.moving, work.count, live, y);
        qpd_fill_dead(layer, qpd_vnni.dead[i], y, levels);
    }
    for (uint32_t j = 0; j < work.count; ++j) {
        const struct qpd_patch patch = qpd_vnni.moving[j];
        qpd_vnni.sums[patch.position] = qpd_patch_sum(layer, input + patch.offset);
    }
    qpd_conv_patches(&work);
}
#endif

#if QPD_OWN_IMAGE
/* A convolution of an own image, QPD_MOST_PATCHES patches at a time. */
static void qpd_image_vnni(uint32_t i, const uint8_t *input, uint8_t *levels)
{
    const struct qpd_layer *layer = &qpd_layers[i];
    const uint32_t side = layer->side, all = side * qpd_down(layer);
    struct qpd_work work = {layer, input, qpd_vnni.layer_weights[i], qpd_vnni.moving,
                            qpd_vnni.sums, levels, 0};
    for (uint32_t first = 0; first < all; first += work.count) {
        work.count = all - first < QPD_MOST_PATCHES ? all - first : QPD_MOST_PATCHES;
        work.levels = levels + (size_t)first * layer->outputs;
        for (uint32_t j = 0; j < work.count; ++j) {
            const uint32_t y = (first + j) / side, x = (first + j) % side;
            const uint32_t offset = y * layer->step_y + x * layer->step_x;
            qpd_vnni.moving[j].offset = offset;
            qpd_vnni.moving[j].position = j;
            qpd_vnni.sums[j] = qpd_patch_sum(layer, input + offset);
        }
        qpd_conv_patches(&work);
    }
}
#endif

/* Layer i where this file can do it; else returns 0. */
static int qpd_layer_vnni(uint32_t i, const uint8_t *input, uint8_t *levels, int32_t *logits)
{
    const struct qpd_layer *layer = &qpd_layers[i];
    if (!qpd_vnni.layer_weights[i]) {
        memset(qpd_vnni.dead_rows, 0, sizeof qpd_vnni.dead_rows);
        return 0;
    }
    if (qpd_is_whole(layer)) {
        qpd_linear_vnni(layer, qpd_vnni.layer_weights[i], input, levels, logits);
        return 1;
    }
#if QPD_OWN_IMAGE
    qpd_image_vnni(i, input, levels);
#elif QPD_FRAMES
    if (i == 0) {
        qpd_frames_vnni(layer, input, levels);
    } else {
        qpd_conv_vnni(i, input, levels);
    }
#endif
    return 1;
}

/* Once: lays all weights out, and sends zeros through the convolutions to know the dead. */
static void qpd_vnni_prepare(uint8_t *even, uint8_t *odd)
{
    int8_t *to = qpd_vnni.weights;
    if (qpd_vnni.prepared) {
        return;
    }
    for (uint32_t i = 0; i < QPD_LAYERS; ++i) {
        if (qpd_layers[i].row_bytes % 4 == 0 ||
            qpd_layers[i].row_bytes == qpd_layers[i].inputs) { /* a linear layer may have a rest */
            qpd_vnni.layer_weights[i] = to;
            to = qpd_lay_out(&qpd_layers[i], to);
        }
    }
#if QPD_FRAMES
    static const uint8_t zeros[QPD_INPUT_BYTES];
    uint8_t *known = qpd_vnni.dead_levels;
    const uint8_t *input = zeros;
    qpd_vnni.still_weights = to;
    qpd_lay_out_still(&qpd_layers[0], to);
    for (uint32_t i = 0; i < QPD_LAYERS && qpd_vnni.layer_weights[i]; ++i) {
        uint8_t *levels = i % 2 ? odd : even;
        if (qpd_layers[i].side == 1) {
            break;
        }
        qpd_layer_vnni(i, input, levels, 0);
        memcpy(known, levels, qpd_layers[i].outputs);
        qpd_vnni.dead[i] = known;
        known += qpd_layers[i].outputs;
        input = levels;
    }
#else
    (void)even;
    (void)odd;
#endif
    qpd_vnni.prepared = 1;
}

#endif
