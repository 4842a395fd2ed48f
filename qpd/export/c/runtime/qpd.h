/* A quantized student: integers from the observation to the logits. Not reentrant (one static
 * arena); call from one thread at a time. See README.md. */
#ifndef QPD_H
#define QPD_H

#include <stdint.h>

#include "qpd_student.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Logits (QPD_ACTIONS of them, in units of QPD_LOGIT_SCALE) of one observation (QPD_INPUT_BYTES
 * uint8 levels; frames as [4][84][84], oldest first). Returns the action with the largest logit,
 * the first of equals. */
int qpd_act(const uint8_t *observation, int32_t *logits);

/* For students of policies (PPO, A2C), not of Q-learners (DQN), whose logits are no policy: an
 * action drawn from softmax(logits * QPD_LOGIT_SCALE) in fixed point. `state` is any seed but 0;
 * it is moved on by each call (xorshift32). */
int qpd_sample(const int32_t *logits, uint32_t *state);

/* How the layers are computed: "vnni", "neon-i8mm", "neon-dotprod", "arm-dsp" or "portable". */
const char *qpd_kernel_name(void);

#if !QPD_IMAGE
/* Levels of QPD_INPUT_BYTES features in the units of the training environment (QPD_LOW_0 to
 * QPD_HIGH_0, and so on): round(255 (x - low) / (high - low)), halves to even. Beyond its range a
 * feature saturates, infinities included; NaN is level 0. Returns how many features were NaN or
 * beyond their range. Needs IEEE single precision, no math library. */
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
