/* Dot products in plain C, written so that a compiler vectorizes them. */
#ifndef QPD_DOT_H
#define QPD_DOT_H

#include <stdint.h>

#define QPD_KERNEL_NAME "portable"

static inline int32_t qpd_sum(const uint8_t *x, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
        sum += x[i];
    }
    return (int32_t)sum;
}

/* dot[0..3] = x0.w0, x0.w1, x1.w0, x1.w1 */
static inline void qpd_dot_2x2(const uint8_t *x0, const uint8_t *x1, const int8_t *w0,
                               const int8_t *w1, uint32_t n, int32_t *dot)
{
    int32_t a = 0, b = 0, c = 0, d = 0;
    for (uint32_t i = 0; i < n; ++i) {
        a += x0[i] * w0[i];
        b += x0[i] * w1[i];
        c += x1[i] * w0[i];
        d += x1[i] * w1[i];
    }
    dot[0] = a;
    dot[1] = b;
    dot[2] = c;
    dot[3] = d;
}

/* dot[0..1] = x.w0, x.w1 */
static inline void qpd_dot_1x2(const uint8_t *x, const int8_t *w0, const int8_t *w1, uint32_t n,
                               int32_t *dot)
{
    int32_t a = 0, b = 0;
    for (uint32_t i = 0; i < n; ++i) {
        a += x[i] * w0[i];
        b += x[i] * w1[i];
    }
    dot[0] = a;
    dot[1] = b;
}

#endif
