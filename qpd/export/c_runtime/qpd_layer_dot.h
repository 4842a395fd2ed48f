/* A layer by dot products: patches of a strip of positions are gathered once, then multiplied with
 * two rows of weights at a time. Serves every CPU; qpd_dot_*.h has the inner loops. */
#ifndef QPD_LAYER_DOT_H
#define QPD_LAYER_DOT_H

#include "qpd_layer.h"

#if !defined(QPD_PORTABLE) && defined(__ARM_FEATURE_DOTPROD)
#include "qpd_dot_neon.h"
#elif !defined(QPD_PORTABLE) && defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
#include "qpd_dot_arm_dsp.h"
#else
#include "qpd_dot_portable.h"
#endif

/* What gathering and unpacking need: QPD_STRIP patches and two rows of weights. */
struct qpd_scratch {
    uint8_t patches[QPD_STRIP * QPD_PATCH_BYTES];
    int8_t rows[2][QPD_UNPACKED_BYTES];
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

/* 2 dot + sum + bias to the level, or (in the head) to the logit. */
static inline void qpd_finish(const struct qpd_layer *layer, uint32_t output, int32_t dot,
                              int32_t sum, uint8_t *levels, int32_t *logits)
{
    const int32_t acc = 2 * dot + sum + layer->bias[output];
    if (layer->multiplier) {
        levels[output] =
            qpd_requantize(acc, layer->multiplier[output], layer->shift[output], layer->top);
    } else {
        logits[output] = acc;
    }
}

/* `count` patches, `stride` bytes apart, to `count` x outputs levels. */
static void qpd_strip(const struct qpd_layer *layer, const uint8_t *patches, uint32_t stride,
                      uint32_t count, struct qpd_scratch *scratch, uint8_t *levels,
                      int32_t *logits)
{
    int32_t sums[QPD_STRIP], dot[4];
    const uint32_t outputs = layer->outputs, n = layer->inputs;
    for (uint32_t p = 0; p < count; ++p) {
        sums[p] = qpd_sum(patches + p * stride, n);
    }
    for (uint32_t o = 0; o < outputs; o += 2) {
        const uint32_t next = o + 1 < outputs ? o + 1 : o; /* an odd last row is done twice */
        const int8_t *w0 = qpd_weight_row(layer, o, scratch->rows[0]);
        const int8_t *w1 = qpd_weight_row(layer, next, scratch->rows[1]);
        uint32_t p = 0;
        for (; p + 2 <= count; p += 2) {
            const uint8_t *x = patches + p * stride;
            qpd_dot_2x2(x, x + stride, w0, w1, n, dot);
            qpd_finish(layer, o, dot[0], sums[p], levels + p * outputs, logits);
            qpd_finish(layer, next, dot[1], sums[p], levels + p * outputs, logits);
            qpd_finish(layer, o, dot[2], sums[p + 1], levels + (p + 1) * outputs, logits);
            qpd_finish(layer, next, dot[3], sums[p + 1], levels + (p + 1) * outputs, logits);
        }
        if (p < count) {
            qpd_dot_1x2(patches + p * stride, w0, w1, n, dot);
            qpd_finish(layer, o, dot[0], sums[p], levels + p * outputs, logits);
            qpd_finish(layer, next, dot[1], sums[p], levels + p * outputs, logits);
        }
    }
}

static void qpd_layer_dot(const struct qpd_layer *layer, const uint8_t *input, uint8_t *levels,
                          int32_t *logits, struct qpd_scratch *scratch)
{
    if (layer->side == 1) { /* a linear layer's patch is its input */
        qpd_strip(layer, input, 0, 1, scratch, levels, logits);
        return;
    }
    for (uint32_t y = 0; y < layer->side; ++y) {
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
