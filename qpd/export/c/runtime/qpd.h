/* A quantized student: integers from the observation to the action. Not reentrant (one static
 * arena); call from one thread at a time. See README.md. */
#ifndef QPD_H
#define QPD_H

#include <stdint.h>

#include "qpd_student.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The head's accumulators for one observation: QPD_OUTPUTS of them, in units of QPD_LOGIT_SCALE.
 * The observation is QPD_INPUT_BYTES uint8 levels; an image as [channel][row][column], Atari's
 * frames as [4][84][84], oldest first; features beside an image follow it. It is only read: no
 * call remembers an earlier one's. */
void qpd_outputs(const uint8_t *observation, int32_t *outputs);

#if QPD_DISCRETE
/* Logits (QPD_ACTIONS of them, in units of QPD_LOGIT_SCALE) of one observation, as in qpd_outputs.
 * Returns the action with the largest logit, the first of equals. */
int qpd_act(const uint8_t *observation, int32_t *logits);
#else
/* One number of an action. QPD_BOX: its code, 0 for the lower bound, QPD_ACTION_TOP for the upper
 * one, in equal steps. QPD_MULTI_DISCRETE: the choice of a part. QPD_MULTI_BINARY: 0 or 1. */
#if QPD_MULTI_DISCRETE
typedef uint16_t qpd_action;
#else
typedef uint8_t qpd_action;
#endif

/* The action (QPD_ACTIONS numbers) of one observation, as in qpd_outputs. */
void qpd_act(const uint8_t *observation, qpd_action *action);

/* The action of outputs, which qpd_act computes in passing. */
void qpd_decide(const int32_t *outputs, qpd_action *action);
#endif

#if QPD_BOX
/* A code as an integer from `from` to `to`, such as a DAC or a PWM timer takes: half a step rounds
 * up, towards larger numbers. `to` may be the smaller one. */
int32_t qpd_action_scaled(uint8_t code, int32_t from, int32_t to);

/* A code in the units of the environment: the number that the reference engine gives, bit for bit.
 * `index` is the action's, 0 to QPD_ACTIONS - 1. Needs IEEE single precision, no math library. */
float qpd_action_value(uint8_t code, uint16_t index);
#endif

#if QPD_SAMPLES
/* Of students of policies (PPO, A2C), not of Q-learners (DQN), whose logits are no policy: an
 * action drawn from softmax(logits * QPD_LOGIT_SCALE) in fixed point. `state` is any seed but 0;
 * it is moved on by each call (xorshift32). */
int qpd_sample(const int32_t *logits, uint32_t *state);
#endif

/* How the layers are computed: "vnni", "neon-i8mm", "neon-dotprod", "arm-dsp" or "portable". */
const char *qpd_kernel_name(void);

#if !QPD_IMAGE
#if !QPD_DISCRETE && !QPD_OWN_IMAGE
/* From sensor values to the action in one call; see qpd_levels_from_floats and
 * qpd_levels_from_counts, of which these return the answer. */
int qpd_act_on_floats(const float *values, qpd_action *action);
int qpd_act_on_counts(const int32_t *counts, const int32_t *low, const int32_t *high,
                      qpd_action *action);
#endif

/* Levels of QPD_FEATURES features in the units of the training environment (QPD_LOW_0 to
 * QPD_HIGH_0, and so on): round(QPD_INPUT_TOP (x - low) / (high - low)), halves to even. Beyond its
 * range a feature saturates, infinities included; NaN is level 0. Returns how many features were
 * NaN or beyond their range. Needs IEEE single precision, no math library. */
int qpd_levels_from_floats(const float *values, uint8_t *levels);

/* The same in integers alone, from ADC counts or any fixed point: low[i] and high[i] are the counts
 * at which feature i is QPD_LOW_i and QPD_HIGH_i; high < low turns the sensor round. Halves go up
 * (away from low). Where low equals high the level is 0. Returns how many were beyond their range. */
int qpd_levels_from_counts(const int32_t *counts, const int32_t *low, const int32_t *high,
                           uint8_t *levels);

/* The count of a feature's value, for a sensor that reads `at_zero` at count 0 and `per_count` more
 * with every count. A constant expression: the compiler does it, not the device. */
#define QPD_COUNT(value, at_zero, per_count)              \
    ((int32_t)(((value) - (at_zero)) / (per_count) +      \
               ((((value) - (at_zero)) / (per_count)) < 0 ? -0.5 : 0.5)))
#endif

/* The golden vectors, from the floats on where there are any: 0, or the number of the first that
 * fails, counted from 1. In qpd_check.c, which a program may leave out. */
int qpd_check(void);

#ifdef __cplusplus
}
#endif

#endif
