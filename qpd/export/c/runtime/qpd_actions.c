/* From the head's outputs to an action, in integers: codes by binary search in a table, the best
 * choice of each part, or the switches that are on. */
#include "qpd.h"

#include "qpd_action_tables.h"

#ifdef __FAST_MATH__
#error "qpd_actions.c needs IEEE arithmetic: compile it without -ffast-math"
#endif

void qpd_act(const uint8_t *observation, qpd_action *action)
{
    int32_t outputs[QPD_OUTPUTS];
    qpd_outputs(observation, outputs);
    qpd_decide(outputs, action);
}

#if QPD_BOX
void qpd_decide(const int32_t *outputs, qpd_action *action)
{
    for (uint16_t i = 0; i < QPD_ACTIONS; ++i) {
        /* The code is the number of thresholds that the output has reached; they never fall. */
        uint16_t reached = 0, beyond = QPD_ACTION_TOP;
        while (reached < beyond) {
            const uint16_t middle = (uint16_t)((reached + beyond) / 2u);
            if (outputs[i] >= qpd_thresholds[middle]) {
                reached = (uint16_t)(middle + 1u);
            } else {
                beyond = middle;
            }
        }
        action[i] = (uint8_t)reached;
    }
}

float qpd_action_value(uint8_t code, uint16_t index)
{
    /* Volatile: every step is rounded to a float, in the reference engine's order. */
    const volatile float unit = 2.0f * (float)code / (float)QPD_ACTION_TOP; /* 2 code is exact */
    const volatile float share = unit - 1.0f;
    const volatile float above = share + 1.0f;
    const volatile float half = 0.5f * above;
    const volatile float part = half * qpd_action_width[index];
    const volatile float value = qpd_action_low[index] + part;
    const float low = qpd_action_low[index], high = qpd_action_high[index];
    return value < low ? low : value > high ? high : value;
}

int32_t qpd_action_scaled(uint8_t code, int32_t from, int32_t to)
{
    /* floor(x + 1/2) = floor((2 code width + top) / (2 top)); C rounds quotients towards 0. */
    const int64_t above = 2 * ((int64_t)to - from) * code + QPD_ACTION_TOP;
    const int64_t whole = above / (2 * QPD_ACTION_TOP);
    return (int32_t)(from + whole - (above % (2 * QPD_ACTION_TOP) < 0));
}
#elif QPD_MULTI_DISCRETE
void qpd_decide(const int32_t *outputs, qpd_action *action)
{
    for (uint16_t part = 0; part < QPD_ACTIONS; ++part) {
        uint16_t best = 0;
        for (uint16_t choice = 1; choice < qpd_choices[part]; ++choice) {
            best = outputs[choice] > outputs[best] ? choice : best;
        }
        action[part] = best;
        outputs += qpd_choices[part];
    }
}
#else
void qpd_decide(const int32_t *outputs, qpd_action *action)
{
    for (uint16_t i = 0; i < QPD_ACTIONS; ++i) {
        action[i] = outputs[i] > 0;
    }
}
#endif
