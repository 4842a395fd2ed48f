/* Dot products with SMLAD, two multiplications an instruction: Cortex-M4, M7, M33, and 32-bit
 * Cortex-A without NEON's dot product. Bytes 0, 2 and 1, 3 of a word become two pairs of
 * halfwords; SXTB16 and UXTB16 do that in one instruction each. */
#ifndef QPD_DOT_H
#define QPD_DOT_H

#include <arm_acle.h>
#include <stdint.h>
#include <string.h>

#define QPD_KERNEL_NAME "arm-dsp"

static inline uint32_t qpd_word(const void *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static inline uint32_t qpd_rotate8(uint32_t word)
{
    return (word >> 8) | (word << 24);
}

static inline int32_t qpd_sum(const uint8_t *x, uint32_t n)
{
    uint32_t sum = 0, i = 0;
    for (; i + 4 <= n; i += 4) {
        sum = __usada8(qpd_word(x + i), 0, sum);
    }
    for (; i < n; ++i) {
        sum += x[i];
    }
    return (int32_t)sum;
}

/* Two patches with two rows: as much as 14 registers hold. */
static inline void qpd_dot_2x2(const uint8_t *x0, const uint8_t *x1, const int8_t *w0,
                               const int8_t *w1, uint32_t n, int32_t *dot0,
                               int32_t *dot1)
{
    int32_t a = 0, b = 0, c = 0, d = 0;
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint32_t xa = qpd_word(x0 + i), xb = qpd_word(x1 + i);
        const uint32_t wa = qpd_word(w0 + i), wb = qpd_word(w1 + i);
        int16x2_t p = (int16x2_t)__uxtb16(xa), q = (int16x2_t)__uxtb16(xb);
        int16x2_t u = __sxtb16((int8x4_t)wa), v = __sxtb16((int8x4_t)wb);
        a = __smlad(p, u, a);
        b = __smlad(p, v, b);
        c = __smlad(q, u, c);
        d = __smlad(q, v, d);
        p = (int16x2_t)__uxtb16(qpd_rotate8(xa));
        q = (int16x2_t)__uxtb16(qpd_rotate8(xb));
        u = __sxtb16((int8x4_t)qpd_rotate8(wa));
        v = __sxtb16((int8x4_t)qpd_rotate8(wb));
        a = __smlad(p, u, a);
        b = __smlad(p, v, b);
        c = __smlad(q, u, c);
        d = __smlad(q, v, d);
    }
    for (; i < n; ++i) {
        a += x0[i] * w0[i];
        b += x0[i] * w1[i];
        c += x1[i] * w0[i];
        d += x1[i] * w1[i];
    }
    dot0[0] = a;
    dot0[1] = b;
    dot1[0] = c;
    dot1[1] = d;
}

static inline void qpd_dot_1x2(const uint8_t *x, const int8_t *w0, const int8_t *w1, uint32_t n,
                               int32_t *dot)
{
    int32_t a = 0, b = 0;
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint32_t xa = qpd_word(x + i), wa = qpd_word(w0 + i), wb = qpd_word(w1 + i);
        const int16x2_t p = (int16x2_t)__uxtb16(xa), q = (int16x2_t)__uxtb16(qpd_rotate8(xa));
        a = __smlad(p, __sxtb16((int8x4_t)wa), a);
        b = __smlad(p, __sxtb16((int8x4_t)wb), b);
        a = __smlad(q, __sxtb16((int8x4_t)qpd_rotate8(wa)), a);
        b = __smlad(q, __sxtb16((int8x4_t)qpd_rotate8(wb)), b);
    }
    for (; i < n; ++i) {
        a += x[i] * w0[i];
        b += x[i] * w1[i];
    }
    dot[0] = a;
    dot[1] = b;
}

/* dot[j] = x.w[j] */
static inline void qpd_dot_1x4(const uint8_t *x, const int8_t *const *w, uint32_t n, int32_t *dot)
{
    qpd_dot_1x2(x, w[0], w[1], n, dot);
    qpd_dot_1x2(x, w[2], w[3], n, dot + 2);
}

/* dot0[j] = x0.w[j], dot1[j] = x1.w[j] */
static inline void qpd_dot_2x4(const uint8_t *x0, const uint8_t *x1, const int8_t *const *w,
                               uint32_t n, int32_t *dot0, int32_t *dot1)
{
    qpd_dot_2x2(x0, x1, w[0], w[1], n, dot0, dot1);
    qpd_dot_2x2(x0, x1, w[2], w[3], n, dot0 + 2, dot1 + 2);
}

#endif
