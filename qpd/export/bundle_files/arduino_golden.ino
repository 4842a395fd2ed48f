// Plays the golden vectors on the board and prints PASS if every level and logit is right.
#include <qpd.h>

void setup() {
  Serial.begin(115200);
  while (!Serial && millis() < 5000) {
  }
  const unsigned long before = micros();
  const int failed = qpd_check();
  const unsigned long spent = micros() - before;
  if (failed) {
    Serial.print(F("FAIL: golden vector "));
    Serial.println(failed);
  } else {
    Serial.print(F("PASS: "));
    Serial.print(QPD_GOLDEN);
    Serial.print(F(" golden vectors of " QPD_NAME ", microseconds for all: "));
    Serial.println(spent);
  }
}

void loop() {
}
