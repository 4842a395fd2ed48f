/* Observations from a file to actions in another: qpd_stream IN OUT. QPD_INPUT_BYTES bytes in; int32
 * out: the action (QPD_ACTIONS numbers, or one where QPD_DISCRETE), then the QPD_OUTPUTS outputs. */
#include <stdio.h>

#include "qpd.h"

#if QPD_DISCRETE
#define QPD_NUMBERS 1
#else
#define QPD_NUMBERS QPD_ACTIONS
#endif

int main(int argc, char **argv)
{
    static uint8_t observation[QPD_INPUT_BYTES];
    int32_t answer[QPD_NUMBERS + QPD_OUTPUTS];
    /* A microcontroller under semihosting is given no arguments. */
    FILE *in = argc == 2 ? NULL : fopen(argc > 2 ? argv[1] : "observations.bin", "rb");
    FILE *out = in ? fopen(argc > 2 ? argv[2] : "logits.bin", "wb") : NULL; /* which empties it */
    if (!out) {
        printf("usage: qpd_stream OBSERVATIONS LOGITS\n");
        return 2;
    }
    while (fread(observation, 1, sizeof observation, in) == sizeof observation) {
#if QPD_DISCRETE
        answer[0] = qpd_act(observation, answer + 1);
#else
        qpd_action action[QPD_ACTIONS];
        qpd_act(observation, action);
        for (int i = 0; i < QPD_ACTIONS; ++i) {
            answer[i] = action[i];
        }
        qpd_outputs(observation, answer + QPD_ACTIONS);
#endif
        if (fwrite(answer, sizeof answer, 1, out) != 1) {
            return 1;
        }
    }
    fclose(in);
    return fclose(out) ? 1 : 0;
}
