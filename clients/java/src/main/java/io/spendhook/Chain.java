package io.spendhook;

import java.util.TreeMap;

/** Knows which deliveries have come, by the event that each of them names as the one before it. Safe for concurrent use. */
final class Chain {
  private static final int MAX_WAITING = 10_000;

  private final TreeMap<Long, Long> waiting = new TreeMap<>(); // those that came before the one that they name, by its number
  private boolean watched;
  private long upTo; // no event up to this number is missing
  private long unknown; // the highest number of a delivery that named none

  /** Only a chain that is watched keeps deliveries. */
  synchronized void watch(boolean on) {
    watched = on;
    waiting.clear();
    unknown = 0;
  }

  /** Notes the number of an event and of the one before it; null and 0: unknown. */
  synchronized void delivered(Long number, Long previous) {
    if (!watched || number == null || number <= upTo) {
      return;
    }
    boolean known = previous != null && previous != 0;
    if (known && previous <= upTo) {
      link(number);
      return;
    }
    if (!known || waiting.size() == MAX_WAITING) {
      unknown = Math.max(unknown, number);
    } else {
      waiting.put(previous, number);
    }
    notifyAll();
  }

  /** Notes that the feed is about to be read, which answers all questions so far. Its result is for {@link #read}. */
  synchronized long reading() {
    waiting.clear();
    unknown = 0;
    return upTo;
  }

  /** Notes that the feed was read up to a number. before is higher only after a failover or a wrong number. */
  synchronized void read(long before, long number) {
    if (before > number) {
      upTo = number;
    }
    link(number);
  }

  /** Notes that nothing up to a number is missing, and goes on with the deliveries that follow. */
  private void link(long number) {
    upTo = Math.max(upTo, number);
    while (!waiting.isEmpty() && waiting.firstKey() <= upTo) {
      upTo = Math.max(upTo, waiting.pollFirstEntry().getValue());
    }
  }

  /** Returns whether the predecessor of a delivery up to a number may be missing still. */
  synchronized boolean missing(long number) {
    return unknown > upTo || waiting.values().stream().anyMatch(n -> n <= number);
  }

  /**
   * Waits for a delivery whose predecessor may be missing, for at most a time, and returns the highest number of one; 0: there
   * is none.
   */
  synchronized long awaitHighest(long millis) throws InterruptedException {
    long end = System.nanoTime() + millis * 1_000_000;
    for (long left = millis; left > 0 && highest() == 0; left = (end - System.nanoTime()) / 1_000_000) {
      wait(left);
    }
    return highest();
  }

  private long highest() {
    long ofWaiting = waiting.values().stream().mapToLong(n -> n).max().orElse(0);
    return unknown > upTo ? Math.max(unknown, ofWaiting) : ofWaiting;
  }
}
