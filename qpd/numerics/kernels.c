/* Arithmetic in a floating format, one pass over memory: what PyTorch's operations would give when
   each of them rounds, bit for bit. Compiled by kernels.py, for this machine. No fused multiply and
   add (-ffp-contract=off): it would round once where a format rounds twice. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

typedef struct {
    int32_t dropped;        /* mantissa bits that float32 has and the format has not */
    uint32_t half;          /* just under half a unit of the last bit that stays */
    uint32_t kept;          /* mask of the bits that stay */
    float smallest_normal;
    float addend;           /* added to a subnormal and taken off: its last bit is the format's */
    float largest;
    float beyond;           /* what becomes of larger ones: infinity, or the largest */
} Format;

static inline float rounded(float x, const Format f)
{
    uint32_t bits, tie;
    float normal, size = fabsf(x), small = copysignf((size + f.addend) - f.addend, x), found;
    memcpy(&bits, &x, 4);
    tie = f.dropped ? (bits >> f.dropped) & 1 : 0;
    bits = (bits + tie + f.half) & f.kept;
    memcpy(&normal, &bits, 4);
    found = size < f.smallest_normal ? small : normal;
    found = fabsf(found) > f.largest ? copysignf(f.beyond, found) : found;
    return x != x ? x : found;
}

void qpd_round(float *to, const float *from, size_t count, const Format *format)
{
    const Format f = *format;
    for (size_t i = 0; i < count; i++)
        to[i] = rounded(from[i], f);
}

typedef struct {
    float beta1, rest1;     /* 1 - beta1 */
    float beta2, rest2;     /* of a root: the roots of both */
    float correction1, correction2;
    float rate;             /* negative */
    float eps, scale;       /* gradients are divided by `scale` */
} Step;

static inline float larger_of(float a, float b) { return a > b || a != a ? a : b; }
static inline float smaller_of(float a, float b) { return a < b || a != a ? a : b; }

static inline float hypotenuse(float a, float b, const Format f)
{
    float larger = larger_of(a, b), smaller = smaller_of(a, b);
    float ratio = rounded(smaller / (larger == 0.0f ? 1.0f : larger), f);
    float square = rounded(1.0f + rounded(ratio * ratio, f), f);
    return rounded(larger * rounded(sqrtf(square), f), f);
}

/* hadam.py's moments and step, then kahan.py's sum. `is_root` and `sums` are constants where it is
   called, so that each of the four loops is compiled by itself. */
static inline __attribute__((always_inline)) void
adam(float *restrict value, float *restrict m, float *restrict v, float *restrict lost,
     const float *restrict gradient, size_t count, const Step s, const Format f, const int is_root,
     const int sums)
{
    for (size_t i = 0; i < count; i++) {
        float g = rounded(gradient[i] / s.scale, f), step, root;
        float first = rounded(rounded(s.beta1 * m[i], f) + rounded(s.rest1 * g, f), f);
        float second;
        if (is_root) {
            float a = fabsf(rounded(s.beta2 * v[i], f)), b = fabsf(rounded(s.rest2 * g, f));
            second = hypotenuse(a, b, f);
            root = rounded(second / s.correction2, f);
        } else {
            float square = rounded(s.rest2 * rounded(g * g, f), f);
            second = rounded(rounded(s.beta2 * v[i], f) + square, f);
            root = rounded(sqrtf(rounded(second / s.correction2, f)), f);
        }
        m[i] = first;
        v[i] = second;
        step = rounded(first / s.correction1, f);
        step = rounded(s.rate * rounded(step / rounded(root + s.eps, f), f), f);
        if (sums) {
            float owed = rounded(step - lost[i], f), total = rounded(value[i] + owed, f);
            lost[i] = rounded(rounded(total - value[i], f) - owed, f);
            value[i] = total;
        } else {
            value[i] = rounded(value[i] + step, f);
        }
    }
}

enum { BLOCK = 512 };       /* numbers of float16 that are float32 at once */

/* What float16 holds, as float32; subnormals by a product, as their exponent is none. */
static void widen(float *restrict to, const uint16_t *restrict from, size_t count)
{
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < count; i++) {
        uint32_t bits = (uint32_t)(from[i] & 0x7fff) << 13;
        float size;
        if ((from[i] & 0x7c00) == 0x7c00)
            bits |= 0x7f800000;
        memcpy(&size, &bits, 4);
        size = (from[i] & 0x7c00) == 0x7c00 ? size : size * 0x1p112f;
        to[i] = from[i] & 0x8000 ? -size : size;
    }
}

/* Of numbers that float16 has: the inverse. */
static void narrow(uint16_t *restrict to, const float *restrict from, size_t count)
{
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++) {
        float size = fabsf(from[i]), scaled = size * 0x1p-112f;
        uint32_t bits, sign;
        memcpy(&bits, size <= 65504.0f ? &scaled : &size, 4);
        memcpy(&sign, from + i, 4);
        bits = size <= 65504.0f ? bits >> 13 : 0x7c00 | ((bits >> 13) & 0x3ff);
        to[i] = (uint16_t)(bits | ((sign >> 16) & 0x8000));
    }
}

void qpd_adam(float *value, float *m, float *v, float *lost, const float *gradient, size_t count,
              const Step *step, const Format *format, int is_root)
{
    const Step s = *step;
    const Format f = *format;
    if (is_root && lost)
        adam(value, m, v, lost, gradient, count, s, f, 1, 1);
    else if (is_root)
        adam(value, m, v, lost, gradient, count, s, f, 1, 0);
    else if (lost)
        adam(value, m, v, lost, gradient, count, s, f, 0, 1);
    else
        adam(value, m, v, lost, gradient, count, s, f, 0, 0);
}

/* The same on tensors of float16, block by block. */
void qpd_adam_half(uint16_t *value, uint16_t *m, uint16_t *v, uint16_t *lost,
                   const uint16_t *gradient, size_t count, const Step *step, const Format *format,
                   int is_root)
{
    float kept[4][BLOCK], given[BLOCK];
    uint16_t *places[4] = {value, m, v, lost};
    for (size_t start = 0; start < count; start += BLOCK) {
        size_t size = count - start < BLOCK ? count - start : BLOCK;
        for (int i = 0; i < (lost ? 4 : 3); i++)
            widen(kept[i], places[i] + start, size);
        widen(given, gradient + start, size);
        qpd_adam(kept[0], kept[1], kept[2], lost ? kept[3] : NULL, given, size, step, format,
                 is_root);
        for (int i = 0; i < (lost ? 4 : 3); i++)
            narrow(places[i] + start, kept[i], size);
    }
}

/* kahan.py's soft update of `scaled`, the target times `scale`; `target` is what plays. */
void qpd_soft_update(float *restrict target, float *restrict scaled, float *restrict lost,
                     const float *restrict online, size_t count, float tau, float scale,
                     const Format *format)
{
    const Format f = *format;
    for (size_t i = 0; i < count; i++) {
        float step = rounded(rounded(scale * online[i], f) - scaled[i], f);
        float owed = rounded(rounded(tau * step, f) - lost[i], f);
        float total = rounded(scaled[i] + owed, f);
        lost[i] = rounded(rounded(total - scaled[i], f) - owed, f);
        scaled[i] = total;
        target[i] = rounded(total / scale, f);
    }
}

void qpd_soft_update_half(uint16_t *target, uint16_t *scaled, uint16_t *lost,
                          const uint16_t *online, size_t count, float tau, float scale,
                          const Format *format)
{
    float kept[3][BLOCK], given[BLOCK];
    uint16_t *places[3] = {target, scaled, lost};
    for (size_t start = 0; start < count; start += BLOCK) {
        size_t size = count - start < BLOCK ? count - start : BLOCK;
        for (int i = 1; i < 3; i++)
            widen(kept[i], places[i] + start, size);
        widen(given, online + start, size);
        qpd_soft_update(kept[0], kept[1], kept[2], given, size, tau, scale, format);
        for (int i = 0; i < 3; i++)
            narrow(places[i] + start, kept[i], size);
    }
}
