/* Sensor values to levels: Eq. 4, as the reference engine computes it. */
#include "qpd.h"

#include <string.h>

#include "qpd_flash.h"

#ifdef __FAST_MATH__
#error "qpd_encode.c needs IEEE arithmetic: compile it without -ffast-math"
#endif

static const QPD_FLASH float qpd_low[QPD_FEATURES] = {QPD_LOWS};
static const QPD_FLASH float qpd_width[QPD_FEATURES] = {QPD_WIDTHS};

static int qpd_is_nan(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000);
}

int qpd_levels_from_floats(const float *values, uint8_t *levels)
{
    int outside = 0;
    for (uint16_t i = 0; i < QPD_FEATURES; ++i) {
        /* Volatile: every step is rounded to a float, where a compiler might keep more digits or
         * fuse two operations into one. */
        const volatile float above = values[i] - qpd_low[i];
        const volatile float unit = above / qpd_width[i];
        if (qpd_is_nan(values[i]) || !(unit >= 0.0f)) {
            levels[i] = 0;
            ++outside;
        } else if (unit >= 1.0f) {
            levels[i] = QPD_INPUT_TOP;
            outside += unit > 1.0f;
        } else {
            const volatile float scaled = unit * (float)QPD_INPUT_TOP;
            uint8_t level = (uint8_t)scaled;
            const volatile float rest = scaled - (float)level; /* exact */
            if (rest > 0.5f || (rest >= 0.5f && (level & 1u))) {
                ++level;
            }
            levels[i] = level;
        }
    }
    return outside;
}

int qpd_levels_from_counts(const int32_t *counts, const int32_t *low, const int32_t *high,
                           uint8_t *levels)
{
    int outside = 0;
    for (uint16_t i = 0; i < QPD_FEATURES; ++i) {
        const int64_t direction = high[i] < low[i] ? -1 : 1;
        const int64_t width = direction * ((int64_t)high[i] - low[i]);
        const int64_t above = direction * ((int64_t)counts[i] - low[i]);
        if (above < 0 || above > width) {
            ++outside;
        }
        if (above <= 0 || width == 0) {
            levels[i] = 0;
        } else if (above >= width) {
            levels[i] = QPD_INPUT_TOP;
        } else { /* width < 2^32: all products fit */
            const uint64_t twice = 2u * (uint64_t)width;
            levels[i] = (uint8_t)((2u * QPD_INPUT_TOP * (uint64_t)above + (uint64_t)width) / twice);
        }
    }
    return outside;
}

#if !QPD_DISCRETE && !QPD_OWN_IMAGE
int qpd_act_on_floats(const float *values, qpd_action *action)
{
    uint8_t levels[QPD_INPUT_BYTES];
    const int outside = qpd_levels_from_floats(values, levels);
    qpd_act(levels, action);
    return outside;
}

int qpd_act_on_counts(const int32_t *counts, const int32_t *low, const int32_t *high,
                      qpd_action *action)
{
    uint8_t levels[QPD_INPUT_BYTES];
    const int outside = qpd_levels_from_counts(counts, low, high, levels);
    qpd_act(levels, action);
    return outside;
}
#endif
