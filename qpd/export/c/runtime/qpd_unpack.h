/* Golden observations from their (count, level) runs. */
#ifndef QPD_UNPACK_H
#define QPD_UNPACK_H

#include <stdint.h>
#include <string.h>

#include "qpd_flash.h"
#include "qpd_student.h"

/* One observation of QPD_INPUT_BYTES levels; returns where the next one's runs begin. */
static const QPD_FLASH uint8_t *qpd_unpack(const QPD_FLASH uint8_t *runs, uint8_t *observation)
{
    uint32_t filled = 0;
    while (filled < QPD_INPUT_BYTES) {
        memset(observation + filled, runs[1], runs[0]);
        filled += runs[0];
        runs += 2;
    }
    return runs;
}

#endif
