/* The golden-vector test: exit status 0 if every level and logit is the reference's. */
#include <stdio.h>

#include "qpd.h"

int main(void)
{
    const int failed = qpd_check();
    if (failed) {
        printf("FAILED: vector %d, kernels %s\n", failed, qpd_kernel_name());
        return 1;
    }
    printf("ok: %d golden vectors, kernels %s\n", QPD_GOLDEN, qpd_kernel_name());
    return 0;
}
