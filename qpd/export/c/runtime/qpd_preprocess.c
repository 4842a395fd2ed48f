/* See qpd_preprocess.h. In integers: a pixel of the small frame covers 40/21 x 5/2 of the screen's,
 * so its average has weights in 1/21 and 1/2, and 200 of them; a half rounds to even. */
#include "qpd_preprocess.h"

#include <string.h>

#define SIDE 84

static uint8_t qpd_grey(const uint8_t *rgb)
{
    /* Up to 2.5 million: an int may have 16 bits. */
    const uint32_t sum =
        UINT32_C(2989) * rgb[0] + UINT32_C(5870) * rgb[1] + UINT32_C(1140) * rgb[2];
    return (uint8_t)((sum + 5000) / 10000);
}

void qpd_clear(uint8_t *observation)
{
    memset(observation, 0, 4 * SIDE * SIDE);
}

/* column[x] = sum over the rows that make row y of the small frame, weights 2 and 1: up to 1275. */
static void qpd_add_rows(const uint8_t *before, const uint8_t *after, uint32_t y, uint16_t *column)
{
    memset(column, 0, QPD_SCREEN_WIDTH * sizeof *column);
    for (uint32_t row = 5 * y / 2; 2 * row < 5 * y + 5; ++row) {
        const uint32_t top = 2 * row < 5 * y ? 5 * y : 2 * row; /* in half rows */
        const uint32_t bottom = 2 * row + 2 < 5 * y + 5 ? 2 * row + 2 : 5 * y + 5;
        for (uint32_t x = 0; x < QPD_SCREEN_WIDTH; ++x) {
            const uint32_t at = (row * QPD_SCREEN_WIDTH + x) * 3;
            const uint8_t a = qpd_grey(before + at), b = qpd_grey(after + at);
            column[x] = (uint16_t)(column[x] + (a > b ? a : b) * (bottom - top));
        }
    }
}

void qpd_push_rgb(uint8_t *observation, const uint8_t *before, const uint8_t *after)
{
    uint8_t *frame = observation + 3 * SIDE * SIDE;
    memmove(observation, observation + SIDE * SIDE, 3 * SIDE * SIDE);
    for (uint32_t y = 0; y < SIDE; ++y) {
        uint16_t column[QPD_SCREEN_WIDTH];
        qpd_add_rows(before, after, y, column);
        for (uint32_t x = 0; x < SIDE; ++x) {
            const uint32_t left = 40 * x, right = left + 40; /* in 1/21 columns */
            uint32_t sum = 0;
            for (uint32_t i = left / 21; 21 * i < right; ++i) {
                const uint32_t from = 21 * i < left ? left : 21 * i;
                const uint32_t to = 21 * i + 21 < right ? 21 * i + 21 : right;
                sum += column[i] * (to - from);
            }
            const uint32_t level = (sum + 100) / 200, half = sum % 200 == 100;
            *frame++ = (uint8_t)(level - (half & level & 1u));
        }
    }
}
