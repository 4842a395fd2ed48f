/* Runs a sketch's setup and stops: simavr ends when the processor sleeps without interrupts. */
#include "Arduino.h"

#include <avr/interrupt.h>
#include <avr/sleep.h>

Uart Serial;

/* Timer 1 counts cycles / 1,024: 64 microseconds at 16 MHz. */
unsigned long micros()
{
    TCCR1B = 1 << CS12 | 1 << CS10;
    return TCNT1 * 64UL;
}

void setup();

int main()
{
    setup();
    cli();
    sleep_enable();
    sleep_cpu();
}
