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

/* dot[j] = x.w[j] */
static inline void qpd_dot_1x4(const uint8_t *x, const int8_t *const *w, uint32_t n, int32_t *dot)
{
    int32x4_t acc[4];
    const uint32_t whole = n & ~15u;
    for (int j = 0; j < 4; ++j) {
        acc[j] = vdupq_n_s32(0);
    }
    for (uint32_t i = 0; i < whole; i += 16) {
        const uint8x16_t levels = vld1q_u8(x + i);
        for (int j = 0; j < 4; ++j) {
            acc[j] = QPD_DOT(acc[j], levels, vld1q_s8(w[j] + i));
        }
    }
    for (int j = 0; j < 4; ++j) {
        dot[j] = vaddvq_s32(acc[j]) + qpd_offset(w[j], whole);
        for (uint32_t i = whole; i < n; ++i) {
            dot[j] += x[i] * w[j][i];
        }
    }
}

/* dot0[j] = x0.w[j], dot1[j] = x1.w[j] */
static inline void qpd_dot_2x4(const uint8_t *x0, const uint8_t *x1, const int8_t *const *w,
                               uint32_t n, int32_t *dot0, int32_t *dot1)
{
    int32x4_t acc[8];
    const uint32_t whole = n & ~15u;
    for (int j = 0; j < 8; ++j) {
        acc[j] = vdupq_n_s32(0);
    }
    for (uint32_t i = 0; i < whole; i += 16) {
        const uint8x16_t levels0 = vld1q_u8(x0 + i), levels1 = vld1q_u8(x1 + i);
        for (int j = 0; j < 4; ++j) {
            const int8x16_t weights = vld1q_s8(w[j] + i);
            acc[j] = QPD_DOT(acc[j], levels0, weights);
            acc[4 + j] = QPD_DOT(acc[4 + j], levels1, weights);
        }
    }
    for (int j = 0; j < 4; ++j) {
        const int32_t offset = qpd_offset(w[j], whole);
        dot0[j] = vaddvq_s32(acc[j]) + offset;
        dot1[j] = vaddvq_s32(acc[4 + j]) + offset;
        for (uint32_t i = whole; i < n; ++i) {
            dot0[j] += x0[i] * w[j][i];
            dot1[j] += x1[i] * w[j][i];
        }
    }
}

#endif
