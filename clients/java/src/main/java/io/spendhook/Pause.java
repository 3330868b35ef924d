package io.spendhook;

import java.time.Duration;

/** The passing of time, which tests replace. */
interface Pause {
  /** That of the system. */
  Pause SYSTEM =
      new Pause() {
        @Override
        public long nanos() {
          return System.nanoTime();
        }

        @Override
        public void sleep(Duration time) throws InterruptedException {
          Thread.sleep(time.toMillis());
        }
      };

  /** Returns a time that never goes back. */
  long nanos();

  /** Waits. */
  void sleep(Duration time) throws InterruptedException;
}
