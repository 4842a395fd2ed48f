/* One layer, and what all kernels share. Convolutions and linear layers are both dot products of
 * a patch with rows of weights; a linear layer has one patch.
 *
 * A patch is `planes` x `rows` runs of `row_bytes` contiguous bytes: for the first convolution
 * channels (4 frames) x 8 rows x 8 pixels, for the others (height, width, channel) 1 x kernel x
 * kernel * channels. Weights lie in the same order, one row per output.
 *
 * Weights are levels n of the odd integers 2n - M, M = 2^bits - 1. With m = n - 2^(bits-1), which
 * fits int8: sum (2n - M) x = 2 sum m x + sum x. Where QPD_ZERO_WEIGHT is 1 they are the even
 * integers 2m, 0 among them, and there is no sum x. */
#ifndef QPD_LAYER_H
#define QPD_LAYER_H

#include <stdint.h>
#include <string.h>

#include "qpd_flash.h"
#include "qpd_student.h"

struct qpd_layer {
    /* bits == 8: int8 m; else n packed lowest bit first, rows on whole bytes */
    const QPD_FLASH void *weights;
    const QPD_FLASH int32_t *bias;
    const QPD_FLASH int32_t *multiplier; /* null in the head, whose accumulators are the logits */
    const QPD_FLASH uint8_t *shift;
#if QPD_TABLES
    const QPD_FLASH uint8_t *table; /* the level of each index up to QPD_LAST_ENTRY */
#endif
    uint32_t inputs; /* planes * rows * row_bytes */
    uint16_t outputs;
    uint8_t bits;
    uint8_t top; /* largest level of the activations */
#if QPD_OWN_IMAGE /* as below, but of any size, and `down` patches per column of the output */
    uint32_t planes, rows, row_bytes, plane_stride, row_stride, side, down, step_x, step_y;
#else
    uint8_t planes, rows;
    uint16_t row_bytes;
    uint16_t plane_stride, row_stride; /* bytes from plane to plane and row to row of the input */
    uint16_t side;                     /* patches per row and column of the output */
    uint16_t step_x, step_y;           /* bytes from patch to patch */
#endif
};

/* Patches per column of the output. */
static inline uint32_t qpd_down(const struct qpd_layer *layer)
{
#if QPD_OWN_IMAGE
    return layer->down;
#else
    return layer->side;
#endif
}

/* Whether the layer's single patch is its input: a linear layer, or a convolution of such a size. */
static inline int qpd_is_whole(const struct qpd_layer *layer)
{
#if QPD_OWN_IMAGE
    return layer->row_bytes == layer->inputs;
#else
    return layer->side == 1;
#endif
}

/* clamp((acc * multiplier + 2^(shift - 1)) >> shift, 0, top); a negative acc gives 0. */
static inline uint8_t qpd_requantize(int32_t acc, int32_t multiplier, uint8_t shift, uint8_t top)
{
    /* Without branches, which half of the activations would take at random. */
    const uint64_t product = (uint64_t)(uint32_t)(acc > 0 ? acc : 0) * (uint32_t)multiplier;
    const uint64_t level = (product + (UINT64_C(1) << (shift - 1))) >> shift;
    return level < top ? (uint8_t)level : top;
}

#if QPD_TABLES
/* The same with the table's last index for a top, and the level that the table has there. */
static inline uint8_t qpd_look_up(int32_t acc, int32_t multiplier, uint8_t shift,
                                  const QPD_FLASH uint8_t *table)
{
    const uint64_t product = (uint64_t)(uint32_t)(acc > 0 ? acc : 0) * (uint32_t)multiplier;
    const uint64_t index = (product + (UINT64_C(1) << (shift - 1))) >> shift;
    return table[index < QPD_LAST_ENTRY ? (uint16_t)index : QPD_LAST_ENTRY];
}
#endif

static inline const QPD_FLASH uint8_t *qpd_row_pointer(const struct qpd_layer *layer, uint32_t output)
{
    const uint32_t row_bytes = (layer->inputs * layer->bits + 7) / 8;
    return (const QPD_FLASH uint8_t *)layer->weights + output * row_bytes;
}

/* The row of `output` as int8 m: in place where bits == 8 and flash can be read like RAM, else in
 * `buffer`. */
static const int8_t *qpd_weight_row(const struct qpd_layer *layer, uint32_t output, int8_t *buffer)
{
    const QPD_FLASH uint8_t *packed = qpd_row_pointer(layer, output);
    const uint32_t bits = layer->bits, mask = (1u << bits) - 1u;
    const int32_t middle = (int32_t)1 << (bits - 1);
    if (bits == 8) {
#ifdef QPD_FLASH_IS_APART
        for (uint32_t i = 0; i < layer->inputs; ++i) {
            buffer[i] = (int8_t)packed[i];
        }
        return buffer;
#else
        return (const int8_t *)packed;
#endif
    }
    if (bits == 4) { /* the common width, without the bit reservoir */
        for (uint32_t i = 0; i + 1 < layer->inputs; i += 2, ++packed) {
            buffer[i] = (int8_t)((*packed & 15) - 8);
            buffer[i + 1] = (int8_t)((*packed >> 4) - 8);
        }
        if (layer->inputs & 1u) {
            buffer[layer->inputs - 1] = (int8_t)((*packed & 15) - 8);
        }
        return buffer;
    }
    uint32_t reservoir = 0, available = 0;
    for (uint32_t i = 0; i < layer->inputs; ++i) {
        if (available < bits) {
            reservoir |= (uint32_t)*packed++ << available;
            available += 8;
        }
        buffer[i] = (int8_t)((int32_t)(reservoir & mask) - middle);
        reservoir >>= bits;
        available -= bits;
    }
    return buffer;
}

#endif
