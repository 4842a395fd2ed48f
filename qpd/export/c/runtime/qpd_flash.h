/* Where constants lie. AVR reads flash with instructions of its own: constants that are not marked
 * are copied to RAM, of which there is little. GCC's __flash does it in C, not in C++. */
#ifndef QPD_FLASH_H
#define QPD_FLASH_H

#if defined(__AVR__) && defined(__FLASH) && !defined(__cplusplus)
#define QPD_FLASH __flash
#define QPD_FLASH_IS_APART
#else
#define QPD_FLASH
#endif

#endif
