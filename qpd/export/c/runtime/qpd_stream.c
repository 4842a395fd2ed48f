/* Observations from a file to logits in another: qpd_stream IN OUT. QPD_INPUT_BYTES bytes in,
 * QPD_ACTIONS + 1 int32 (the action, then its logits) out for each. */
#include <stdio.h>

#include "qpd.h"

int main(int argc, char **argv)
{
    static uint8_t observation[QPD_INPUT_BYTES];
    int32_t answer[1 + QPD_ACTIONS];
    /* A microcontroller under semihosting is given no arguments. */
    FILE *in = fopen(argc > 2 ? argv[1] : "observations.bin", "rb");
    FILE *out = fopen(argc > 2 ? argv[2] : "logits.bin", "wb");
    if (!in || !out) {
        printf("usage: qpd_stream OBSERVATIONS LOGITS\n");
        return 2;
    }
    while (fread(observation, 1, sizeof observation, in) == sizeof observation) {
        answer[0] = qpd_act(observation, answer + 1);
        if (fwrite(answer, sizeof answer, 1, out) != 1) {
            return 1;
        }
    }
    fclose(in);
    return fclose(out) ? 1 : 0;
}
