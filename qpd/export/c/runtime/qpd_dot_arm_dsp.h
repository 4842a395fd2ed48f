/* Dot products with SMLAD, two multiplications an instruction: Cortex-M4, M7, M33, and 32-bit
 * Cortex-A. Bytes 0, 2 and 1, 3 of a word become two pairs of halfwords. In assembly, since
 * GCC 12 neither folds the rotation into UXTB16 and SXTB16 nor keeps two patches and two rows in
 * the 14 registers. Unaligned words are allowed there. */
#ifndef QPD_DOT_H
#define QPD_DOT_H

#include <stdint.h>

#define QPD_KERNEL_NAME "arm-dsp"

static inline int32_t qpd_sum(const uint8_t *x, uint32_t n)
{
    uint32_t sum = 0, word;
    const uint8_t *end = x + (n & ~3u);
    while (x != end) {
        __asm__("ldr %0, [%1], #4\n\t"
                "usada8 %2, %0, %3, %2"
                : "=&r"(word), "+r"(x), "+r"(sum)
                : "r"(0)
                : "memory");
    }
    for (n &= 3u; n; --n) {
        sum += *x++;
    }
    return (int32_t)sum;
}

/* Two bytes (first 0 and 2, then with ROR 1 and 3) of one or two patches with those of two rows. */
#define QPD_PAIRS_1X2(rotate, step)           \
    "ldr %[p], [%[x0]]" step "\n\t"           \
    "uxtb16 %[p], %[p]" rotate "\n\t"         \
    "ldr %[u], [%[w0]]" step "\n\t"           \
    "sxtb16 %[u], %[u]" rotate "\n\t"         \
    "smlad %[a], %[p], %[u], %[a]\n\t"        \
    "ldr %[u], [%[w1]]" step "\n\t"           \
    "sxtb16 %[u], %[u]" rotate "\n\t"         \
    "smlad %[b], %[p], %[u], %[b]\n\t"

#define QPD_PAIRS_2X2(rotate, step)           \
    "ldr %[p], [%[x0]]" step "\n\t"           \
    "ldr %[q], [%[x1]]" step "\n\t"           \
    "ldr %[u], [%[w0]]" step "\n\t"           \
    "uxtb16 %[p], %[p]" rotate "\n\t"         \
    "uxtb16 %[q], %[q]" rotate "\n\t"         \
    "sxtb16 %[u], %[u]" rotate "\n\t"         \
    "smlad %[a], %[p], %[u], %[a]\n\t"        \
    "smlad %[c], %[q], %[u], %[c]\n\t"        \
    "ldr %[u], [%[w1]]" step "\n\t"           \
    "sxtb16 %[u], %[u]" rotate "\n\t"         \
    "smlad %[b], %[p], %[u], %[b]\n\t"        \
    "smlad %[d], %[q], %[u], %[d]\n\t"

/* Two patches with two rows: a, b of the first patch, c, d of the second. */
static inline void qpd_dot_2x2(const uint8_t *x0, const uint8_t *x1, const int8_t *w0,
                               const int8_t *w1, uint32_t n, int32_t *dot0, int32_t *dot1)
{
    int32_t a = 0, b = 0, c = 0, d = 0;
    uint32_t p, q, u;
    for (uint32_t words = n / 4; words; --words) {
        __asm__(QPD_PAIRS_2X2("", "") QPD_PAIRS_2X2(", ror #8", ", #4")
                : [x0] "+r"(x0), [x1] "+r"(x1), [w0] "+r"(w0), [w1] "+r"(w1), [a] "+r"(a),
                  [b] "+r"(b), [c] "+r"(c), [d] "+r"(d), [p] "=&r"(p), [q] "=&r"(q), [u] "=&r"(u)
                :
                : "memory");
    }
    for (n &= 3u; n; --n, ++x0, ++x1, ++w0, ++w1) {
        a += *x0 * *w0;
        b += *x0 * *w1;
        c += *x1 * *w0;
        d += *x1 * *w1;
    }
    dot0[0] = a;
    dot0[1] = b;
    dot1[0] = c;
    dot1[1] = d;
}

static inline void qpd_dot_1x2(const uint8_t *x0, const int8_t *w0, const int8_t *w1, uint32_t n,
                               int32_t *dot)
{
    int32_t a = 0, b = 0;
    uint32_t p, u;
    for (uint32_t words = n / 4; words; --words) {
        __asm__(QPD_PAIRS_1X2("", "") QPD_PAIRS_1X2(", ror #8", ", #4")
                : [x0] "+r"(x0), [w0] "+r"(w0), [w1] "+r"(w1), [a] "+r"(a), [b] "+r"(b),
                  [p] "=&r"(p), [u] "=&r"(u)
                :
                : "memory");
    }
    for (n &= 3u; n; --n, ++x0, ++w0, ++w1) {
        a += *x0 * *w0;
        b += *x0 * *w1;
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
