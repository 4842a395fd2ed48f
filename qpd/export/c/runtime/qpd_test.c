/* The golden-vector test: exit status 0 if every logit is the reference's. */
#include <stdio.h>

#include "qpd.h"
#include "qpd_golden.h"
#include "qpd_unpack.h"

int main(void)
{
    static uint8_t observation[QPD_INPUT_BYTES];
    const uint8_t *runs = qpd_golden_runs;
    int32_t logits[QPD_ACTIONS];
    for (int i = 0; i < QPD_GOLDEN; ++i) {
        runs = qpd_unpack(runs, observation);
        const int action = qpd_act(observation, logits);
        for (int a = 0; a < QPD_ACTIONS; ++a) {
            const long got = logits[a], wanted = qpd_golden_logits[i][a];
            if (got != wanted || wanted > qpd_golden_logits[i][action]) {
                printf("FAILED: vector %d, action %d: logit %ld, not %ld\n", i, a, got, wanted);
                return 1;
            }
        }
    }
    printf("ok: %d golden vectors, kernels %s\n", QPD_GOLDEN, qpd_kernel_name());
    return 0;
}
