/* From the emulator's screens to the observation, as ALE's vector environments preprocess Atari:
 * grey, the maximum of two screens, area-averaged to 84x84, a stack of four. */
#ifndef QPD_PREPROCESS_H
#define QPD_PREPROCESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QPD_SCREEN_HEIGHT 210
#define QPD_SCREEN_WIDTH 160

/* A new episode: an empty stack. Push the first frame after it. */
void qpd_clear(uint8_t *observation);

/* Pushes one frame onto observation [4][84][84], from the last two screens of the frame skip, RGB
 * uint8 [210][160][3]. The same screen twice takes no maximum. */
void qpd_push_rgb(uint8_t *observation, const uint8_t *before, const uint8_t *after);

#ifdef __cplusplus
}
#endif

#endif
