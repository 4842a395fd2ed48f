/* The golden vectors: floats to levels, counts to levels, levels to logits and actions. */
#include "qpd.h"

#include "qpd_flash.h"
#include "qpd_golden.h"
#include "qpd_unpack.h"

#if defined(QPD_FLASH_IS_APART) && QPD_CONSTANT_BYTES + QPD_GOLDEN_BYTES > QPD_FLASH_LIMIT
#error "AVR: student and golden vectors do not fit the 64 KB of flash that __flash reads"
#endif

#if !QPD_IMAGE
/* Floats, and counts that stand for the same levels, must give the features of `observation`. */
static int qpd_check_levels(int vector, const uint8_t *observation)
{
    /* Static: a linker says so where they do not fit, a stack would not. */
    static float values[QPD_FEATURES];
    static int32_t counts[QPD_FEATURES], low[QPD_FEATURES], high[QPD_FEATURES];
    static uint8_t levels[QPD_FEATURES];
    observation += QPD_INPUT_BYTES - QPD_FEATURES;
    for (uint16_t i = 0; i < QPD_FEATURES; ++i) {
        const uint32_t bits = qpd_golden_values[vector][i];
        memcpy(&values[i], &bits, 4);
        /* A sensor of 4 counts a level, every other one turned round; halfway to the level below, which
         * must round up, and 100 counts beyond the ends. */
        const int32_t step = i % 2 ? -4 : 4, level = observation[i];
        low[i] = -1000;
        high[i] = low[i] + QPD_INPUT_TOP * step;
        counts[i] = low[i] + level * step;
        counts[i] += level == 0 ? -25 * step : level == QPD_INPUT_TOP ? 25 * step : -step / 2;
    }
    qpd_levels_from_floats(values, levels);
    if (memcmp(levels, observation, QPD_FEATURES) != 0) {
        return 1;
    }
    qpd_levels_from_counts(counts, low, high, levels);
    return memcmp(levels, observation, QPD_FEATURES) != 0;
}
#endif

#if !QPD_DISCRETE
/* The action itself, and where it is continuous in the environment's units. */
static int qpd_check_action(int vector, const uint8_t *observation)
{
    qpd_action action[QPD_ACTIONS];
    qpd_act(observation, action);
    for (uint16_t a = 0; a < QPD_ACTIONS; ++a) {
        if (action[a] != qpd_golden_actions[vector][a]) {
            return 1;
        }
#if QPD_BOX
        const float value = qpd_action_value(action[a], a);
        const uint32_t wanted = qpd_golden_action_values[vector][a];
        if (memcmp(&value, &wanted, 4) != 0) {
            return 1;
        }
#endif
    }
    return 0;
}
#endif

int qpd_check(void)
{
    static uint8_t observation[QPD_INPUT_BYTES];
    const QPD_FLASH uint8_t *runs = qpd_golden_runs;
    int32_t logits[QPD_OUTPUTS];
    for (int i = 0; i < QPD_GOLDEN; ++i) {
        runs = qpd_unpack(runs, observation);
#if !QPD_IMAGE
        if (qpd_check_levels(i, observation)) {
            return i + 1;
        }
#endif
#if QPD_DISCRETE
        const int action = qpd_act(observation, logits);
        for (int a = 0; a < QPD_ACTIONS; ++a) {
            const int32_t wanted = qpd_golden_logits[i][a];
            if (logits[a] != wanted || wanted > qpd_golden_logits[i][action]) {
                return i + 1;
            }
        }
#else
        qpd_outputs(observation, logits);
        for (uint16_t a = 0; a < QPD_OUTPUTS; ++a) {
            if (logits[a] != qpd_golden_logits[i][a]) {
                return i + 1;
            }
        }
        if (qpd_check_action(i, observation)) {
            return i + 1;
        }
#endif
    }
    return 0;
}
