package io.spendhook;

import static io.spendhook.TestRun.equal;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;

final class ChainTest {
  /** A chain that is watched and was read up to a number. */
  private static Chain watched(long upTo) {
    Chain chain = new Chain();
    chain.watch(true);
    chain.read(0, upTo);
    return chain;
  }

  static void isOpenWhileTheOneBeforeADeliveryIsMissing() throws Exception {
    long[] numbers = {1, 2, 4, 5, 9, 10};
    List<Integer> order = new ArrayList<>(List.of(1, 2, 3, 4, 5));
    Random random = new Random(1);
    for (int i = 0; i < 500; i++) {
      Collections.shuffle(order, random);
      Chain chain = watched(1);
      Set<Integer> came = new HashSet<>(Set.of(0));
      for (int at : order) {
        chain.delivered(numbers[at], numbers[at - 1]);
        came.add(at);
        boolean missing = came.stream().anyMatch(n -> n > 0 && !came.contains(n - 1));
        equal(order + ", open after " + came, missing, chain.awaitHighest(0) > 0);
        equal(order + ", missing after " + came, missing, chain.missing(10));
      }
      chain.delivered(11L, 10L);
      equal(0L, chain.awaitHighest(0));
    }
  }

  static void knowsWhatTheFeedHas() throws Exception {
    Long[][] cases = {{7L, null, 7L, 0L}, {7L, null, 6L, 1L}, {7L, 0L, 6L, 1L}, {7L, 5L, 4L, 1L}, {7L, 5L, 5L, 0L}, {7L, 5L, 9L, 0L}, {null, null, 0L, 0L}};
    for (Long[] c : cases) {
      Chain chain = watched(0);
      chain.delivered(c[0], c[1]);
      chain.read(0, c[2]);
      equal(List.of(c[2]).toString(), c[3] == 1, chain.awaitHighest(0) > 0);
    }
  }

  static void keepsDeliveriesWhileItIsWatchedAndNotTooMany() throws Exception {
    Chain chain = new Chain();
    chain.delivered(7L, 5L);
    chain.watch(true);
    equal(0L, chain.awaitHighest(1));
    for (long n = 0; n <= 10_000; n++) {
      chain.delivered(2 * n + 100, 2 * n + 99);
    }
    equal(20_100L, chain.awaitHighest(60_000));
    chain.read(0, 20_099);
    equal("the one that was not kept", 20_100L, chain.awaitHighest(0));
    chain.read(0, 20_100);
    equal(0L, chain.awaitHighest(0));
  }

  static void forgivesLateDeliveries() throws Exception {
    Chain chain = watched(1);
    chain.delivered(3L, 2L);
    long asked = chain.awaitHighest(0);
    chain.delivered(2L, 1L);
    chain.delivered(5L, 4L);
    equal(3L, asked);
    equal(false, chain.missing(asked));
    equal(true, chain.missing(5));
  }

  static void survivesWrongNumbers() throws Exception {
    long wrong = 100_000_000_000_000_000L;
    for (long previous : new long[] {0, 1, wrong - 1}) {
      Chain chain = watched(1);
      chain.delivered(wrong, previous);
      chain.read(chain.reading(), 5);
      equal(0L, chain.awaitHighest(0));
      chain.delivered(8L, 7L);
      equal(8L, chain.awaitHighest(0));
    }
  }
}
