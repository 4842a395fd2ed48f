/* Dot products with NEON's dot-product instructions (ARMv8.2 and later): USDOT where the CPU has
 * i8mm; else SDOT on x - 128, corrected by 128 sum m. */
#ifndef QPD_DOT_H
#define QPD_DOT_H

#include <arm_neon.h>
#include <stdint.h>

#ifdef __ARM_FEATURE_MATMUL_INT8
#define QPD_KERNEL_NAME "neon-i8mm"
#define QPD_DOT(acc, x, w) vusdotq_s32(acc, x, w)
#else
#define QPD_KERNEL_NAME "neon-dotprod"
#define QPD_DOT(acc, x, w) \
    vdotq_s32(acc, vreinterpretq_s8_u8(veorq_u8(x, vdupq_n_u8(128))), w)
#endif

static inline int32_t qpd_sum(const uint8_t *x, uint32_t n)
{
    uint32x4_t sums = vdupq_n_u32(0);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        sums = vdotq_u32(sums, vld1q_u8(x + i), vdupq_n_u8(1));
    }
    uint32_t sum = vaddvq_u32(sums);
    for (; i < n; ++i) {
        sum += x[i];
    }
    return (int32_t)sum;
}

#ifndef __ARM_FEATURE_MATMUL_INT8
/* 128 sum m over the first n (a multiple of 16) weights: what x - 128 leaves out. */
static inline int32_t qpd_offset(const int8_t *w, uint32_t n)
{
    int32x4_t sums = vdupq_n_s32(0);
    for (uint32_t i = 0; i < n; i += 16) {
        sums = vdotq_s32(sums, vld1q_s8(w + i), vdupq_n_s8(1));
    }
    return 128 * vaddvq_s32(sums);
}
#else
static inline int32_t qpd_offset(const int8_t *w, uint32_t n)
{
    (void)w;
    (void)n;
    return 0;
}
#endif

static inline void qpd_dot_2x2(const uint8_t *x0, const uint8_t *x1, const int8_t *w0,
                               const int8_t *w1, uint32_t n, int32_t *dot)
{
    int32x4_t a = vdupq_n_s32(0), b = a, c = a, d = a;
    const uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        const uint8x16_t xa = vld1q_u8(x0 + i), xb = vld1q_u8(x1 + i);
        const int8x16_t wa = vld1q_s8(w0 + i), wb = vld1q_s8(w1 + i);
        a = QPD_DOT(a, xa, wa);
        b = QPD_DOT(b, xa, wb);
        c = QPD_DOT(c, xb, wa);
        d = QPD_DOT(d, xb, wb);
    }
    const int32_t offset0 = qpd_offset(w0, whole), offset1 = qpd_offset(w1, whole);
    dot[0] = vaddvq_s32(a) + offset0;
    dot[1] = vaddvq_s32(b) + offset1;
    dot[2] = vaddvq_s32(c) + offset0;
    dot[3] = vaddvq_s32(d) + offset1;
    for (uint32_t i = whole; i < n; ++i) {
        dot[0] += x0[i] * w0[i];
        dot[1] += x0[i] * w1[i];
        dot[2] += x1[i] * w0[i];
        dot[3] += x1[i] * w1[i];
    }
}

static inline void qpd_dot_1x2(const uint8_t *x, const int8_t *w0, const int8_t *w1, uint32_t n,
                               int32_t *dot)
{
    int32x4_t a = vdupq_n_s32(0), b = a;
    const uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        const uint8x16_t xa = vld1q_u8(x + i);
        a = QPD_DOT(a, xa, vld1q_s8(w0 + i));
        b = QPD_DOT(b, xa, vld1q_s8(w1 + i));
    }
    dot[0] = vaddvq_s32(a) + qpd_offset(w0, whole);
    dot[1] = vaddvq_s32(b) + qpd_offset(w1, whole);
    for (uint32_t i = whole; i < n; ++i) {
        dot[0] += x[i] * w0[i];
        dot[1] += x[i] * w1[i];
    }
}

#endif
