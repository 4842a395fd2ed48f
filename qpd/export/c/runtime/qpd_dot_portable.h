/* Dot products in plain C, written so that a compiler vectorizes them. */
#ifndef QPD_DOT_H
#define QPD_DOT_H

#include <stdint.h>
#include <string.h>

#define QPD_KERNEL_NAME "portable"

/* Bytes in pairs: a halfword holds the sum of 257 of them. */
static inline int32_t qpd_sum(const uint8_t *x, uint32_t n)
{
    uint32_t sum = 0, i = 0;
    while (n - i >= 4) {
        uint32_t even = 0, odd = 0, words = (n - i) / 4 < 256 ? (n - i) / 4 : 256;
        for (uint32_t k = 0; k < words; ++k) {
            uint32_t word;
            memcpy(&word, x + i + 4 * k, 4);
            even += word & 0xff00ffu;
            odd += word >> 8 & 0xff00ffu;
        }
        sum += (even & 0xffffu) + (even >> 16) + (odd & 0xffffu) + (odd >> 16);
        i += 4 * words;
    }
    for (; i < n; ++i) {
        sum += x[i];
    }
    return (int32_t)sum;
}

/* dot[j] = x.w[j]. A function of its own, with a single vector of x: so GCC 12 makes one VPDPBUSD
 * (or two PMADDWD) of each product; inlined or with two x, it spills registers. */
#ifdef __GNUC__
__attribute__((noinline))
#endif
static void qpd_dot_1x4(const uint8_t *x, const int8_t *const *w, uint32_t n, int32_t *dot)
{
    const int8_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    int32_t a = 0, b = 0, c = 0, d = 0;
    for (uint32_t i = 0; i < n; ++i) {
        a += x[i] * w0[i];
        b += x[i] * w1[i];
        c += x[i] * w2[i];
        d += x[i] * w3[i];
    }
    dot[0] = a;
    dot[1] = b;
    dot[2] = c;
    dot[3] = d;
}

/* dot0[j] = x0.w[j], dot1[j] = x1.w[j] */
static inline void qpd_dot_2x4(const uint8_t *x0, const uint8_t *x1, const int8_t *const *w,
                               uint32_t n, int32_t *dot0, int32_t *dot1)
{
    qpd_dot_1x4(x0, w, n, dot0);
    qpd_dot_1x4(x1, w, n, dot1);
}

#endif
