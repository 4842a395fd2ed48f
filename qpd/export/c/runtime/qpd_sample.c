/* Sampling from the softmax of integer logits, without floats: weights 2^-z in 16-bit fixed point.
 * Those above 2^-8 are within 0.7% of the exact ones, smaller ones are rounded down, to 0 below 2^-16. */
#include "qpd.h"

/* 2^(-z / 2^16) * 2^16 for z >= 0: the fraction by a parabola through 2^0, 2^-1/2 and 2^-1. */
static uint32_t qpd_power(uint64_t z)
{
    const uint64_t whole = z >> 16, fraction = z & 0xffff;
    if (whole > 16) {
        return 0;
    }
    const uint64_t down = (fraction * (UINT64_C(44012) - ((UINT64_C(11244) * fraction) >> 16))) >> 16;
    return (uint32_t)((65536 - down) >> whole);
}

int qpd_sample(const int32_t *logits, uint32_t *state)
{
    /* Logits so far below the largest one have no weight: 17 bits, in units of the logits. */
    const uint64_t far = (UINT64_C(17) << 32) / QPD_LOGIT_BITS_Q32;
    uint64_t weights[QPD_ACTIONS], total = 0;
    int32_t largest = logits[0];
    for (int action = 1; action < QPD_ACTIONS; ++action) {
        largest = logits[action] > largest ? logits[action] : largest;
    }
    for (int action = 0; action < QPD_ACTIONS; ++action) {
        const uint64_t below = (uint64_t)((int64_t)largest - logits[action]);
        /* The scale is Q32, and the product below 2^37; >> 16 leaves Q16. */
        weights[action] = below > far ? 0 : qpd_power((below * QPD_LOGIT_BITS_Q32) >> 16);
        total += weights[action];
    }
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    *state = x;
    uint64_t point = (total * x) >> 32;
    for (int action = 0; action < QPD_ACTIONS - 1; ++action) {
        if (point < weights[action]) {
            return action;
        }
        point -= weights[action];
    }
    return QPD_ACTIONS - 1;
}
