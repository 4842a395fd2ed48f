/* Where constants lie. AVR reads flash with instructions of its own: constants that are not marked
 * are copied to RAM, of which there is little. GCC's __flash does it in GNU C, not in C++ and not
 * in strict C (-std=c99), which lacks the word even though __FLASH is defined. */
#ifndef QPD_FLASH_H
#define QPD_FLASH_H

#if defined(__AVR__) && defined(__STRICT_ANSI__) && !defined(__cplusplus)
#error "AVR needs GNU C for __flash: compile with -std=gnu99 or -std=gnu11, not -std=c99"
#define QPD_FLASH
#elif defined(__AVR__) && defined(__FLASH) && !defined(__cplusplus)
#define QPD_FLASH __flash
#define QPD_FLASH_IS_APART
/* Its pointers have 16 bits, and vectors and the program's own tables lie there, too. */
#define QPD_FLASH_LIMIT 61440
#else
#define QPD_FLASH
#endif

#endif
