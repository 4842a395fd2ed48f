/* A layer by dot products: patches of a strip of positions are gathered once, then multiplied with
 * four rows of weights at a time. Serves every CPU; qpd_dot_*.h has the inner loops. */
#ifndef QPD_LAYER_DOT_H
#define QPD_LAYER_DOT_H

#include "qpd_layer.h"

#if !defined(QPD_PORTABLE) && defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "qpd_dot_neon.h"
#elif !defined(QPD_PORTABLE) && defined(__ARM_FEATURE_SIMD32) && defined(__GNUC__) && \
    defined(__OPTIMIZE__) && !defined(__ARM_BIG_ENDIAN) /* -O0 has too few registers for it */
#include "qpd_dot_arm_dsp.h"
#else
#include "qpd_dot_portable.h"
#endif

/* What gathering and unpacking need: QPD_STRIP patches, four rows of weights, and
 * the dot products of a strip. */
struct qpd_scratch {
    uint8_t patches[QPD_STRIP * QPD_PATCH_BYTES];
#ifdef QPD_FLASH_IS_APART
    int8_t rows[4][QPD_ROW_BYTES];
#else
    int8_t rows[4][QPD_UNPACKED_BYTES];
#endif
    int32_t dots[QPD_STRIP_OUTPUTS];
};

static void qpd_gather(const struct qpd_layer *layer, const uint8_t *input, uint8_t *patch)
{
    for (uint32_t plane = 0; plane < layer->planes; ++plane) {
        const uint8_t *from = input + plane * layer->plane_stride;
        for (uint32_t row = 0; row < layer->rows; ++row) {
            if (layer->row_bytes == 8) { /* a constant size is two moves, not a call */
                memcpy(patch, from, 8);
            } else {
                memcpy(patch, from, layer->row_bytes);
            }
            patch += layer->row_bytes;
            from += layer->row_stride;
        }
    }
}

/* 2 dot + sum + bias of all outputs of one patch: to levels, or (in the head) to logits. In a loop
 * of its own, which compilers vectorize. */
static void qpd_finish(const struct qpd_layer *layer, const int32_t *restrict dots, int32_t sum,
                       uint8_t *restrict levels, int32_t *restrict logits)
{
    const QPD_FLASH int32_t *restrict bias = layer->bias;
    const QPD_FLASH int32_t *restrict multiplier = layer->multiplier;
    const QPD_FLASH uint8_t *restrict shift = layer->shift;
    const uint32_t outputs = layer->outputs;
    if (!multiplier) {
        for (uint32_t o = 0; o < outputs; ++o) {
            logits[o] = 2 * dots[o] + sum + bias[o];
        }
        return;
    }
#if QPD_TABLES
    for (uint32_t o = 0; o < outputs; ++o) {
        levels[o] = qpd_look_up(2 * dots[o] + sum + bias[o], multiplier[o], shift[o], layer->table);
    }
#else
    const uint8_t top = layer->top;
    for (uint32_t o = 0; o < outputs; ++o) {
        levels[o] = qpd_requantize(2 * dots[o] + sum + bias[o], multiplier[o], shift[o], top);
    }
#endif
}

/* `count` patches, `stride` bytes apart, to `count` x outputs levels. */
static void qpd_strip(const struct qpd_layer *layer, const uint8_t *patches, uint32_t stride,
                      uint32_t count, struct qpd_scratch *scratch, uint8_t *levels,
                      int32_t *logits)
{
    int32_t sums[QPD_STRIP];
    const int8_t *w[4];
    const uint32_t outputs = layer->outputs, n = layer->inputs, wide = (outputs + 3u) & ~3u;
    for (uint32_t p = 0; p < count; ++p) {
        sums[p] = QPD_ZERO_WEIGHT ? 0 : qpd_sum(patches + p * stride, n);
    }
    for (uint32_t o = 0; o < outputs; o += 4) {
        int32_t *dots = scratch->dots + o;
        for (uint32_t j = 0; j < 4; ++j) { /* rows past the end are the last one again */
            w[j] = o + j < outputs ? qpd_weight_row(layer, o + j, scratch->rows[j]) : w[j - 1];
        }
        uint32_t p = 0;
        for (; p + 2 <= count; p += 2) {
            const uint8_t *x = patches + p * stride;
            qpd_dot_2x4(x, x + stride, w, n, dots + p * wide, dots + (p + 1) * wide);
        }
        if (p < count) {
            qpd_dot_1x4(patches + p * stride, w, n, dots + p * wide);
        }
    }
    for (uint32_t p = 0; p < count; ++p) {
        qpd_finish(layer, scratch->dots + p * wide, sums[p], levels + p * outputs, logits);
    }
}

static void qpd_layer_dot(const struct qpd_layer *layer, const uint8_t *input, uint8_t *levels,
                          int32_t *logits, struct qpd_scratch *scratch)
{
    if (qpd_is_whole(layer)) {
        qpd_strip(layer, input, 0, 1, scratch, levels, logits);
        return;
    }
    for (uint32_t y = 0; y < qpd_down(layer); ++y) {
        for (uint32_t x = 0; x < layer->side; x += QPD_STRIP) {
            const uint32_t rest = layer->side - x, count = rest < QPD_STRIP ? rest : QPD_STRIP;
            const uint8_t *from = input + y * layer->step_y + x * layer->step_x;
            for (uint32_t p = 0; p < count; ++p) {
                qpd_gather(layer, from + p * layer->step_x, scratch->patches + p * layer->inputs);
            }
            qpd_strip(layer, scratch->patches, layer->inputs, count, scratch,
                      levels + (y * layer->side + x) * layer->outputs, logits);
        }
    }
}

#endif
