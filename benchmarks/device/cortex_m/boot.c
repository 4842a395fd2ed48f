/* Start of a program on an emulated Cortex-M (QEMU's mps2-an385 and -an386): the vector table, the
 * stack, and newlib's start-up over semihosting (--specs=rdimon.specs). */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t stack_top;
extern void _start(void);
static void fault(void);

__attribute__((section(".vectors"), used)) static void *const vectors[] = {
    &stack_top, (void *)_start, (void *)fault, (void *)fault,
    (void *)fault, (void *)fault, (void *)fault,
};

static void fault(void)
{
    _Exit(99);
}
