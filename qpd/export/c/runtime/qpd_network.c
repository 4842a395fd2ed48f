/* From the observation to the outputs: the layers one after the other, in a static arena. */
#include "qpd.h"

#include <string.h>

#include "qpd_layer.h"
#include "qpd_layers.h"

#include "qpd_layer_dot.h"

#if !defined(QPD_PORTABLE) && defined(__AVX512VNNI__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__)
#include "qpd_layer_vnni.h"
#endif

/* Layers read one half and write the other. */
static struct qpd_arena {
    uint8_t even[QPD_EVEN_BYTES];
    uint8_t odd[QPD_ODD_BYTES];
    struct qpd_scratch scratch;
} qpd_arena;

#if defined(QPD_FLASH_IS_APART) && QPD_CONSTANT_BYTES > QPD_FLASH_LIMIT
#error "AVR: this student's constants do not fit the 64 KB of flash that __flash reads"
#endif

/* QPD_ARENA_BYTES is what qpd_student.h promises; a negative size stops the compiler. */
#ifdef QPD_FLASH_IS_APART
#define QPD_MOST_BYTES QPD_FLASH_ARENA_BYTES
#else
#define QPD_MOST_BYTES QPD_ARENA_BYTES
#endif
typedef char qpd_arena_fits[sizeof(struct qpd_arena) <= QPD_MOST_BYTES ? 1 : -1];

const char *qpd_kernel_name(void)
{
#ifdef QPD_LAYER_VNNI_H
    return "vnni";
#else
    return QPD_KERNEL_NAME;
#endif
}

void qpd_outputs(const uint8_t *observation, int32_t *outputs)
{
    const uint8_t *input = observation;
#ifdef QPD_LAYER_VNNI_H
    qpd_vnni_prepare(qpd_arena.even, qpd_arena.odd);
#endif
    for (uint32_t i = 0; i < QPD_LAYERS; ++i) {
        uint8_t *output = i % 2 ? qpd_arena.odd : qpd_arena.even;
#ifdef QPD_JOINS
        if (i == QPD_JOINS) { /* its input, which is the arena's, has room for them */
            uint8_t *joined = i % 2 ? qpd_arena.even : qpd_arena.odd;
            memcpy(joined + QPD_JOINED_AT, observation + QPD_INPUT_BYTES - QPD_FEATURES,
                   QPD_FEATURES);
        }
#endif
#ifdef QPD_LAYER_VNNI_H
        if (qpd_layer_vnni(i, input, output, outputs)) {
            input = output;
            continue;
        }
#endif
        qpd_layer_dot(&qpd_layers[i], input, output, outputs, &qpd_arena.scratch);
        input = output;
    }
}

#if QPD_DISCRETE
int qpd_act(const uint8_t *observation, int32_t *logits)
{
    int best = 0;
    qpd_outputs(observation, logits);
    for (int action = 1; action < QPD_ACTIONS; ++action) {
        best = logits[action] > logits[best] ? action : best;
    }
    return best;
}
#endif
