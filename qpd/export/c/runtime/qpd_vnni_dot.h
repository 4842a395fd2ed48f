/* Dot products and requantization with AVX512-VNNI; qpd_layer_vnni.h says what they are for. */
#ifndef QPD_VNNI_DOT_H
#define QPD_VNNI_DOT_H

#include <immintrin.h>

#include "qpd_layer.h"

#define QPD_INLINE static inline __attribute__((always_inline))
#define QPD_FRAMES (QPD_IMAGE && !QPD_OWN_IMAGE)

/* Where a patch begins in the layer's input, and which of the outputs it makes. */
struct qpd_patch {
    uint32_t offset, position;
};

/* Patches to compute. */
struct qpd_work {
    const struct qpd_layer *layer;
    const uint8_t *input;
    const int8_t *weights;
    const struct qpd_patch *patches;
    const int32_t *sums; /* by position: the sum of the patch */
    uint8_t *levels;
    uint32_t count;
};

/* Requantization of 16 outputs, 64-bit lanes for the even and the odd ones. */
struct qpd_scales {
    __m512i bias, even, odd, shift_even, shift_odd, half_even, half_odd, top;
    __mmask16 outputs;
#if QPD_TABLES
    const uint8_t *table;
#endif
};

QPD_INLINE struct qpd_scales qpd_load_scales(const struct qpd_layer *layer, uint32_t block)
{
    struct qpd_scales s;
    const uint32_t first = 16 * block, rest = layer->outputs - first;
    s.outputs = (__mmask16)(rest < 16 ? (1u << rest) - 1u : 0xffffu);
    s.bias = _mm512_maskz_loadu_epi32(s.outputs, layer->bias + first);
    if (layer->multiplier) {
        const __m512i one = _mm512_set1_epi64(1), low = _mm512_set1_epi64(0xff);
        const __m512i shift =
            _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(s.outputs, layer->shift + first));
        s.even = _mm512_maskz_loadu_epi32(s.outputs, layer->multiplier + first);
        s.odd = _mm512_srli_epi64(s.even, 32);
        s.shift_even = _mm512_and_si512(shift, low);
        s.shift_odd = _mm512_srli_epi64(shift, 32);
        s.half_even = _mm512_sllv_epi64(one, _mm512_sub_epi64(s.shift_even, one));
        s.half_odd = _mm512_sllv_epi64(one, _mm512_sub_epi64(s.shift_odd, one));
#if QPD_TABLES
        s.top = _mm512_set1_epi64(QPD_LAST_ENTRY);
        s.table = layer->table;
#else
        s.top = _mm512_set1_epi64(layer->top);
#endif
    }
    return s;
}

/* Exactly qpd_requantize or qpd_look_up, for 16 accumulators. */
QPD_INLINE void qpd_store_levels(__m512i acc, const struct qpd_scales *s, uint8_t *levels)
{
    acc = _mm512_max_epi32(acc, _mm512_setzero_si512());
    __m512i even = _mm512_mul_epu32(acc, s->even);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(acc, 32), s->odd);
    even = _mm512_srlv_epi64(_mm512_add_epi64(even, s->half_even), s->shift_even);
    odd = _mm512_srlv_epi64(_mm512_add_epi64(odd, s->half_odd), s->shift_odd);
    even = _mm512_min_epu64(even, s->top);
    odd = _mm512_min_epu64(odd, s->top);
    const __m512i both = _mm512_or_si512(even, _mm512_slli_epi64(odd, 32));
#if QPD_TABLES
    uint32_t index[16];
    _mm512_storeu_si512(index, both);
    for (uint32_t o = 0; s->outputs >> o; ++o) {
        levels[o] = s->table[index[o]];
    }
#else
    const __m128i bytes = _mm512_cvtepi32_epi8(both);
    if (s->outputs == 0xffffu) {
        _mm_storeu_si128((__m128i *)levels, bytes);
    } else {
        _mm_mask_storeu_epi8(levels, s->outputs, bytes);
    }
#endif
}

QPD_INLINE __m512i qpd_broadcast(const uint8_t *x)
{
    int32_t word;
    memcpy(&word, x, 4);
    return _mm512_set1_epi32(word);
}

/* The last 1 to 3 inputs of a layer, and zeros: there is nothing to read behind them. */
QPD_INLINE __m512i qpd_last(const uint8_t *x, uint32_t count)
{
    int32_t word = 0;
    memcpy(&word, x, count);
    return _mm512_set1_epi32(word);
}

/* Adds the products of one run of 4 * words bytes of P patches and B blocks of weights. */
QPD_INLINE void qpd_run(__m512i *acc, const uint8_t *const *x, size_t at, const int8_t *w,
                        size_t block_bytes, uint32_t words, const uint32_t P, const uint32_t B)
{
#pragma GCC unroll 4
    for (uint32_t c = 0; c < words; ++c) {
        __m512i weights[4];
#pragma GCC unroll 4
        for (uint32_t b = 0; b < B; ++b) {
            weights[b] = _mm512_loadu_si512(w + b * block_bytes + 64 * c);
        }
#pragma GCC unroll 8
        for (uint32_t p = 0; p < P; ++p) {
            const __m512i levels = qpd_broadcast(x[p] + at + 4 * c);
#pragma GCC unroll 4
            for (uint32_t b = 0; b < B; ++b) {
                acc[p * B + b] = _mm512_dpbusd_epi32(acc[p * B + b], levels, weights[b]);
            }
        }
    }
}

/* Levels of one patch from its B accumulators; see qpd_group. */
QPD_INLINE void qpd_finish_patch(const struct qpd_work *work, const struct qpd_scales *scales,
                                 const __m512i *acc, uint32_t position, uint32_t block,
                                 const uint32_t B, const int still)
{
    const uint32_t real = still ? B / 2 : B;
    const __m512i sum = _mm512_set1_epi32(work->sums[position]);
    uint8_t *levels = work->levels + position * work->layer->outputs + 16 * block;
#pragma GCC unroll 4
    for (uint32_t b = 0; b < real; ++b) {
        __m512i dot = acc[b];
        if (still) { /* 4 quarters + rests */
            dot = _mm512_add_epi32(_mm512_slli_epi32(acc[2 * b], 2), acc[2 * b + 1]);
        }
        dot = _mm512_add_epi32(_mm512_slli_epi32(dot, 1), _mm512_add_epi32(sum, scales[b].bias));
        qpd_store_levels(dot, &scales[b], levels + 16 * b);
    }
}

/* P patches times B blocks of 16 outputs, from `block` on. `planes` is 1, or 4 for the frames of
 * conv1; with `still`, one frame stands for four, and blocks 2b and 2b + 1 are the quarters and the
 * rests of the summed weights of block b. */
QPD_INLINE void qpd_group(const struct qpd_work *work, uint32_t block, uint32_t from, uint32_t to,
                          const uint32_t P, const uint32_t B, const uint32_t planes,
                          const int still)
{
    const struct qpd_layer *layer = work->layer;
    const int frames = still || planes == 4; /* conv1, whose geometry is known here */
    const uint32_t words = frames ? 16 * planes : layer->inputs / 4;
    const size_t block_bytes = (size_t)words * 64;
    const uint32_t real = still ? B / 2 : B;
    struct qpd_scales scales[4];
#pragma GCC unroll 4
    for (uint32_t b = 0; b < real; ++b) {
        scales[b] = qpd_load_scales(layer, block + b);
    }
    for (uint32_t j = from; j < to; j += P) {
        const int8_t *w = work->weights + (still ? 2 * block : block) * block_bytes;
        const uint8_t *x[8];
        uint32_t position[8];
        __m512i acc[16];
#pragma GCC unroll 8
        for (uint32_t p = 0; p < P; ++p) { /* past the end the last patch is done again */
            const struct qpd_patch patch = work->patches[j + p < to ? j + p : to - 1];
            x[p] = work->input + patch.offset;
            position[p] = patch.position;
        }
#pragma GCC unroll 16
        for (uint32_t a = 0; a < P * B; ++a) {
            acc[a] = _mm512_setzero_si512();
        }
        for (uint32_t plane = 0; frames && plane < planes; ++plane) {
#pragma GCC unroll 8
            for (uint32_t row = 0; row < 8; ++row, w += 128) {
                qpd_run(acc, x, plane * 7056 + row * 84, w, block_bytes, 2, P, B);
            }
        }
#if QPD_OWN_IMAGE
        for (uint32_t plane = 0; plane < layer->planes; ++plane) {
            const size_t at = (size_t)plane * layer->plane_stride;
            for (uint32_t row = 0; row < layer->rows; ++row, w += 16 * layer->row_bytes) {
                qpd_run(acc, x, at + row * layer->row_stride, w, block_bytes,
                        layer->row_bytes / 4u, P, B);
            }
        }
#else
        for (uint32_t row = 0; !frames && row < layer->rows; ++row, w += 16 * layer->row_bytes) {
            qpd_run(acc, x, (size_t)(row * layer->row_stride), w, block_bytes,
                    layer->row_bytes / 4u, P, B);
        }
#endif
#pragma GCC unroll 8
        for (uint32_t p = 0; p < P; ++p) {
            qpd_finish_patch(work, scales, acc + p * B, position[p], block, B, still);
        }
    }
}

/* The sum of n bytes. */
QPD_INLINE __m512i qpd_add_bytes(__m512i sums, const uint8_t *x, uint32_t n)
{
    const __m512i zero = _mm512_setzero_si512();
    for (; n >= 64; n -= 64, x += 64) {
        sums = _mm512_add_epi64(sums, _mm512_sad_epu8(_mm512_loadu_si512(x), zero));
    }
    const __m512i rest = _mm512_maskz_loadu_epi8((UINT64_C(1) << n) - 1, x);
    return _mm512_add_epi64(sums, _mm512_sad_epu8(rest, zero));
}

#if QPD_FRAMES || QPD_OWN_IMAGE
#define QPD_GROUP(name, P, B, planes, still)                                       \
    static void name(const struct qpd_work *work, uint32_t block)                  \
    {                                                                              \
        const uint32_t whole = work->count / (P) * (P);                            \
        qpd_group(work, block, 0, whole, P, B, planes, still);                     \
        if (work->count - whole > 2) {                                             \
            qpd_group(work, block, whole, work->count, (P) / 2, B, planes, still); \
        } else if (work->count > whole) {                                          \
            qpd_group(work, block, whole, work->count, 1, B, planes, still);       \
        }                                                                          \
    }

QPD_GROUP(qpd_group_1, 8, 1, 1, 0)
QPD_GROUP(qpd_group_2, 8, 2, 1, 0)
QPD_GROUP(qpd_group_4, 4, 4, 1, 0)
#if QPD_FRAMES
QPD_GROUP(qpd_group_frames_1, 8, 1, 4, 0)
QPD_GROUP(qpd_group_frames_2, 8, 2, 4, 0)
QPD_GROUP(qpd_group_frames_4, 4, 4, 4, 0)
QPD_GROUP(qpd_group_still_1, 8, 2, 1, 1)
QPD_GROUP(qpd_group_still_2, 4, 4, 1, 1)
#endif

/* All blocks of the layer; `one`, `two` and `four` do so many at a time (`four` may be null). */
typedef void (*qpd_group_function)(const struct qpd_work *, uint32_t);

static void qpd_all_blocks(const struct qpd_work *work, qpd_group_function one,
                           qpd_group_function two, qpd_group_function four)
{
    const uint32_t blocks = (work->layer->outputs + 15u) / 16u;
    uint32_t block = 0;
    for (; four && block + 4 <= blocks; block += 4) {
        four(work, block);
    }
    for (; block + 2 <= blocks; block += 2) {
        two(work, block);
    }
    if (block < blocks) {
        one(work, block);
    }
}

#if QPD_FRAMES
static void qpd_frames_patches(const struct qpd_work *work)
{
    qpd_all_blocks(work, qpd_group_frames_1, qpd_group_frames_2, qpd_group_frames_4);
}

static void qpd_still_patches(const struct qpd_work *work)
{
    qpd_all_blocks(work, qpd_group_still_1, qpd_group_still_2, 0);
}
#endif

static void qpd_conv_patches(const struct qpd_work *work)
{
    qpd_all_blocks(work, qpd_group_1, qpd_group_2, qpd_group_4);
}

static int32_t qpd_patch_sum(const struct qpd_layer *layer, const uint8_t *x)
{
    const uint32_t planes = QPD_OWN_IMAGE ? (uint32_t)layer->planes : 1; /* frames sum up cells */
    __m512i sums = _mm512_setzero_si512();
    for (uint32_t plane = 0; plane < planes; ++plane) {
        const uint8_t *from = x + (size_t)plane * layer->plane_stride;
        for (uint32_t row = 0; row < layer->rows; ++row, from += layer->row_stride) {
            sums = qpd_add_bytes(sums, from, layer->row_bytes);
        }
    }
    return (int32_t)_mm512_reduce_add_epi64(sums);
}
#endif

/* B blocks of a linear layer; H accumulators each, since one would wait for itself. */
QPD_INLINE void qpd_linear_group(const struct qpd_layer *layer, const int8_t *weights,
                                 const uint8_t *x, uint32_t block, int32_t sum, uint8_t *levels,
                                 int32_t *logits, const uint32_t B, const uint32_t H)
{
    const uint32_t whole = layer->inputs / 4, rest = layer->inputs % 4;
    const uint32_t words = whole + (rest != 0);
    const int8_t *w = weights + (size_t)block * words * 64;
    __m512i acc[8];
#pragma GCC unroll 8
    for (uint32_t a = 0; a < B * H; ++a) {
        acc[a] = _mm512_setzero_si512();
    }
    uint32_t i = 0;
    for (; i + H <= whole; i += H) {
#pragma GCC unroll 8
        for (uint32_t h = 0; h < H; ++h) {
            const __m512i input = qpd_broadcast(x + 4 * (i + h));
#pragma GCC unroll 4
            for (uint32_t b = 0; b < B; ++b) {
                const int8_t *at = w + ((size_t)b * words + i + h) * 64;
                acc[h * B + b] =
                    _mm512_dpbusd_epi32(acc[h * B + b], input, _mm512_loadu_si512(at));
            }
        }
    }
    for (; i < words; ++i) {
        const __m512i input = i < whole ? qpd_broadcast(x + 4 * i) : qpd_last(x + 4 * i, rest);
#pragma GCC unroll 4
        for (uint32_t b = 0; b < B; ++b) {
            const int8_t *at = w + ((size_t)b * words + i) * 64;
            acc[b] = _mm512_dpbusd_epi32(acc[b], input, _mm512_loadu_si512(at));
        }
    }
#pragma GCC unroll 4
    for (uint32_t b = 0; b < B; ++b) {
        const struct qpd_scales scales = qpd_load_scales(layer, block + b);
        __m512i dot = acc[b];
#pragma GCC unroll 8
        for (uint32_t h = 1; h < H; ++h) {
            dot = _mm512_add_epi32(dot, acc[h * B + b]);
        }
        dot = _mm512_add_epi32(_mm512_slli_epi32(dot, 1), scales.bias);
        dot = _mm512_add_epi32(dot, _mm512_set1_epi32(sum));
        if (layer->multiplier) {
            qpd_store_levels(dot, &scales, levels + 16 * (block + b));
        } else {
            _mm512_mask_storeu_epi32(logits + 16 * (block + b), scales.outputs, dot);
        }
    }
}

static void qpd_linear_vnni(const struct qpd_layer *layer, const int8_t *weights, const uint8_t *x,
                            uint8_t *levels, int32_t *logits)
{
    const uint32_t blocks = (layer->outputs + 15u) / 16u;
    const __m512i sums = qpd_add_bytes(_mm512_setzero_si512(), x, layer->inputs);
    const int32_t sum = QPD_ZERO_WEIGHT ? 0 : (int32_t)_mm512_reduce_add_epi64(sums);
    uint32_t block = 0;
    for (; block + 4 <= blocks; block += 4) {
        qpd_linear_group(layer, weights, x, block, sum, levels, logits, 4, 2);
    }
    for (; block + 2 <= blocks; block += 2) {
        qpd_linear_group(layer, weights, x, block, sum, levels, logits, 2, 4);
    }
    if (block < blocks) {
        qpd_linear_group(layer, weights, x, block, sum, levels, logits, 1, 8);
    }
}

/* [block of 16 outputs][inputs / 4, rounded up][16][4] from rows of weights; returns the end. */
static int8_t *qpd_lay_out(const struct qpd_layer *layer, int8_t *to)
{
    static int8_t buffer[QPD_UNPACKED_BYTES];
    const uint32_t n = layer->inputs, words = (n + 3) / 4;
    for (uint32_t o = 0; o < layer->outputs; ++o) {
        const int8_t *row = qpd_weight_row(layer, o, buffer);
        for (uint32_t i = 0; i < n; ++i) {
            to[((o / 16 * words + i / 4) * 16 + o % 16) * 4 + i % 4] = row[i];
        }
    }
    return to + (layer->outputs + 15u) / 16u * 64u * words;
}

#if QPD_FRAMES
/* conv1's weights summed over the four frames, as 4 * quarter + rest (0..3): int8 both. */
static void qpd_lay_out_still(const struct qpd_layer *layer, int8_t *to)
{
    static int8_t buffer[QPD_UNPACKED_BYTES];
    for (uint32_t o = 0; o < layer->outputs; ++o) {
        const int8_t *row = qpd_weight_row(layer, o, buffer);
        for (uint32_t i = 0; i < 64; ++i) {
            const int32_t sum = row[i] + row[i + 64] + row[i + 128] + row[i + 192];
            const int32_t quarter = (sum + 512) / 4 - 128;
            int8_t *at = to + ((o / 16 * 2 * 16 + i / 4) * 16 + o % 16) * 4 + i % 4;
            at[0] = (int8_t)quarter;
            at[16 * 64] = (int8_t)(sum - 4 * quarter);
        }
    }
}
#endif

#endif
