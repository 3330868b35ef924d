package io.spendhook;

import java.util.TreeMap;

/** Knows which deliveries have come, by the event that each of them names as the one before it. Safe for concurrent use. */
final class Chain {
  private static final int MAX_WAITING = 10_000;

  private final TreeMap<Long, Long> waiting = new TreeMap<>(); // those that came before the one that they name, by its number
  private boolean watched;
  private long upTo; // no event up to this number is missing
  private long unknown; // up to this number the feed must be read: a delivery named none

  /** Only a chain that is watched keeps deliveries. */
  synchronized void watch(boolean on) {
    watched = on;
    waiting.clear();
    unknown = 0;
  }

  /** Notes the number of an event and of the one before it; null: unknown. */
  synchronized void delivered(Long number, Long previous) {
    if (!watched || number == null || number <= upTo) {
      return;
    }
    if (previous != null && previous <= upTo) {
      read(number);
      return;
    }
    if (previous == null || waiting.size() == MAX_WAITING) {
      unknown = Math.max(unknown, number);
    } else {
      waiting.put(previous, number);
    }
    notifyAll();
  }

  /** Notes that no event up to a number is missing, such as when the feed was read. */
  synchronized void read(long number) {
    upTo = Math.max(upTo, number);
    while (!waiting.isEmpty() && waiting.firstKey() <= upTo) {
      upTo = Math.max(upTo, waiting.pollFirstEntry().getValue());
    }
  }

  /** Returns whether an event may be missing. */
  synchronized boolean open() {
    return unknown > upTo || !waiting.isEmpty();
  }

  /** Waits until an event may be missing, for at most a time, and returns whether one may be. */
  synchronized boolean awaitOpen(long millis) throws InterruptedException {
    long end = System.nanoTime() + millis * 1_000_000;
    for (long left = millis; left > 0 && !open(); left = (end - System.nanoTime()) / 1_000_000) {
      wait(left);
    }
    return open();
  }
}
