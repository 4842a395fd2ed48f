/* A quantized student: integers from the observation to the logits. Not reentrant (one static
 * arena); call from one thread at a time. See README.md. */
#ifndef QPD_H
#define QPD_H

#include <stdint.h>

#include "qpd_student.h"

/* Logits (QPD_ACTIONS of them, in units of QPD_LOGIT_SCALE) of one observation (QPD_INPUT_BYTES
 * uint8 levels; frames as [4][84][84], oldest first). Returns the action with the largest logit,
 * the first of equals. */
int qpd_act(const uint8_t *observation, int32_t *logits);

/* An action drawn from softmax(logits * QPD_LOGIT_SCALE) in fixed point. `state` is any seed but 0;
 * it is moved on by each call (xorshift32). */
int qpd_sample(const int32_t *logits, uint32_t *state);

/* How the layers are computed: "vnni", "neon-i8mm", "neon-dotprod", "arm-dsp" or "portable". */
const char *qpd_kernel_name(void);

#endif
