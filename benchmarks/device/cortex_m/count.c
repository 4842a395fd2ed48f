/* Instructions of a forward pass: under `qemu-system-arm -icount shift=0` an instruction takes one
 * nanosecond, and SysTick counts at 25 MHz, so a tick is 40 instructions. */
#include <stdint.h>
#include <stdio.h>

#include "qpd.h"
#include "qpd_golden.h"
#include "qpd_unpack.h"

#define SYSTICK ((volatile uint32_t *)0xe000e010)

int main(void)
{
    static uint8_t observation[QPD_INPUT_BYTES];
    const uint8_t *runs = qpd_golden_runs;
    int32_t logits[QPD_OUTPUTS];
#if !QPD_DISCRETE
    qpd_action action[QPD_ACTIONS];
#endif
    uint32_t most = 0;
    SYSTICK[1] = 0xffffff;
    SYSTICK[0] = 5;
    for (int i = 0; i < QPD_GOLDEN; ++i) {
        runs = qpd_unpack(runs, observation);
        SYSTICK[2] = 0;
        const uint32_t before = SYSTICK[2];
#if QPD_DISCRETE
        qpd_act(observation, logits);
#else
        qpd_act(observation, action);
#endif
        const uint32_t ticks = (before - SYSTICK[2]) & 0xffffff;
        most = ticks > most ? ticks : most;
#if !QPD_DISCRETE
        qpd_outputs(observation, logits);
#endif
        for (int a = 0; a < QPD_OUTPUTS; ++a) {
            if (logits[a] != qpd_golden_logits[i][a]) {
                printf("FAILED: vector %d\n", i);
                return 1;
            }
        }
    }
    printf("%lu\n", (unsigned long)most * 40);
    return 0;
}
