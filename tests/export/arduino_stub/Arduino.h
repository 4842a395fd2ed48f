/* As much of Arduino's core as the example uses, for an emulated ATmega: Serial on USART 0. */
#ifndef ARDUINO_H
#define ARDUINO_H

#include <avr/io.h>
#include <avr/pgmspace.h>
#include <stdint.h>

class __FlashStringHelper;
#define F(text) (reinterpret_cast<const __FlashStringHelper *>(PSTR(text)))

unsigned long micros();
inline unsigned long millis() { return micros() / 1000; }

struct Uart {
    operator bool() const { return true; }
    void begin(unsigned long) { UCSR0B = 1 << TXEN0; }
    void put(char c) {
        while (!(UCSR0A & (1 << UDRE0))) {
        }
        UDR0 = c;
    }
    void print(const __FlashStringHelper *text) {
        const char *at = reinterpret_cast<const char *>(text);
        while (const char c = pgm_read_byte(at++)) {
            put(c);
        }
    }
    void print(unsigned long number) {
        if (number > 9) {
            print(number / 10);
        }
        put(static_cast<char>('0' + number % 10));
    }
    void print(int number) { print(static_cast<unsigned long>(number)); }
    template <typename T> void println(T value) {
        print(value);
        put('\n');
    }
};
extern Uart Serial;

#endif
