package io.spendhook;

import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.time.ZoneOffset;

/** A clock that goes on only when a test says so. */
final class TestClock extends Clock implements Pause {
  private Instant now;
  Duration slept = Duration.ZERO;

  TestClock(long seconds) {
    now = Instant.ofEpochSecond(seconds);
  }

  void advance(Duration time) {
    now = now.plus(time);
  }

  @Override
  public Instant instant() {
    return now;
  }

  @Override
  public ZoneId getZone() {
    return ZoneOffset.UTC;
  }

  @Override
  public Clock withZone(ZoneId zone) {
    return this;
  }

  @Override
  public long nanos() {
    return now.getEpochSecond() * 1_000_000_000 + now.getNano();
  }

  @Override
  public void sleep(Duration time) {
    slept = slept.plus(time);
    advance(time);
  }
}
