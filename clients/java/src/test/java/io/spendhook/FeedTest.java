package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Consumer;

final class FeedTest {
  private static final String SUBSCRIBER = "0197a1b2-0000-7000-8000-00000000000a";
  private static final String CHANGED = "{\"code\":\"FEED_CHANGED\"}";

  private static Feed feed(TestServer server) {
    return Feed.builder().url(server.url() + "/").token("secret").subscriber(SUBSCRIBER).build();
  }

  /** A page with the events of these numbers; a negative one is gone. */
  private static String page(long next, boolean more, int... numbers) {
    return page(next, next + "-1", more, numbers);
  }

  private static String page(long next, String cursor, boolean more, int... numbers) {
    List<Object> content = new ArrayList<>();
    for (int number : numbers) {
      Map<String, Object> item = new LinkedHashMap<>();
      item.put("sequence", Math.abs(number));
      item.put("id", "pay-" + Math.abs(number));
      item.put("event", "PAYMENT_PAID");
      if (number > 0) {
        item.put("body", InboxTest.body("pay-" + number, "{\"n\":1.0}"));
      } else {
        item.put("gone", "COMPACTED");
      }
      content.add(item);
    }
    return Json.write(Map.of("content", content, "next", next, "cursor", cursor, "more", more, "last", next, "forgotten", 1));
  }

  static void catchesUp() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(4, true, 1, 2, -3)).answer(200, page(9, true)).answer(200, page(12, false, 11))) {
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      f.inbox.handle(InboxTest.signed("pay-2", InboxTest.body("pay-2", "{\"n\":1.0}")));
      equal(new CaughtUp(2, 1, 3), f.inbox.catchUp());
      equal(List.of("pay-2", "pay-1", "pay-11"), f.ids());
      equal(11L, f.worked.get(2).sequence());
      equal("12-1", f.cursor());
      String path = "/api/v1/subscribers/" + SUBSCRIBER + "/feed?limit=100&";
      equal(List.of(path + "after=0&wait=0s", path + "cursor=4-1&wait=0s", path + "cursor=9-1&wait=0s"), urls(server));
      equal("Bearer secret", server.received.get(0).authorization());
      equal(204, f.inbox.handle(InboxTest.signed("pay-1", InboxTest.body("pay-1", "{}"))).status());
      equal("the events after a delivery of a known one", 3, f.worked.size());
    }
  }

  private static List<String> urls(TestServer server) {
    return server.received.stream().map(r -> r.url()).toList();
  }

  static void readsAPageAgainAfterAFailure() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(3, false, 1, 2, 3))) {
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      f.failing.add("pay-2");
      InboxException e = throwing(InboxException.class, f.inbox::catchUp);
      equal(true, e.getMessage().startsWith("event pay-2: "));
      equal(List.of("pay-1"), f.ids());
      equal("", f.cursor());
      f.failing.clear();
      equal(2L, f.inbox.catchUp().missing());
      equal(List.of("pay-1", "pay-2", "pay-3"), f.ids());
      equal("3-1", f.cursor());
    }
  }

  static void tellsWhatItPassesOver() throws Exception {
    String other = page(6, false, 5, -6).replace("COMPACTED", "QUARANTINED");
    try (TestServer server = new TestServer().answer(200, page(4, true, 1, -2, -3, 4)).answer(200, other)) {
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      equal(new CaughtUp(3, 3, 2), f.inbox.catchUp());
      equal(List.of(new Passed("pay-2", 2, "COMPACTED"), new Passed("pay-3", 3, "COMPACTED"), new Passed("pay-6", 6, "QUARANTINED")), f.passed);
    }
  }

  static void readsAPageAgainWhenItCannotTell() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(3, false, 1, -2, 3))) {
      List<String> worked = new ArrayList<>();
      List<Passed> passed = new ArrayList<>();
      Inbox<?> inbox =
          Inbox.builder(InboxTest.verifier(), new MemoryStore(), (e, t) -> worked.add(e.id()))
              .feed(feed(server))
              .passed(
                  event -> {
                    passed.add(event);
                    if (passed.size() == 1) {
                      throw new IllegalStateException("fails");
                    }
                  })
              .build();
      equal("event pay-2: java.lang.IllegalStateException: fails", throwing(InboxException.class, inbox::catchUp).getMessage());
      equal(List.of("pay-1"), worked);
      equal(new CaughtUp(1, 1, 1), inbox.catchUp());
      equal(List.of("pay-1", "pay-3"), worked);
      equal(2, passed.size());
    }
  }

  /** Each page but the last one has forgotten one event. */
  static void reportsWhatIsForgotten() throws Exception {
    try (TestServer server = new TestServer()) {
      server.answer(200, page(1, true, 1)).answer(200, page(2, false, 2));
      server.answer(200, page(3, true, 3)).answer(200, page(4, true, 4)).answer(409, CHANGED).answer(200, page(5, false, 5));
      server.answer(200, page(6, false, 6).replace("\"forgotten\":1", "\"forgotten\":0"));
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      f.inbox.catchUp();
      equal("the reports of a reading from the start", List.of(), f.errors);
      f.inbox.catchUp();
      List<String> reports = f.errors.stream().map(Throwable::getMessage).toList();
      equal(Collections.nCopies(2, "1 events since the last reading are no longer kept by the service"), reports);
      f.inbox.catchUp();
      equal("the reports after a page that has forgotten none", 2, f.errors.size());
      equal(List.of("pay-1", "pay-2", "pay-3", "pay-4", "pay-5", "pay-6"), f.ids());
    }
  }

  static void reportsWhatIsForgottenWhileItFollows() throws Exception {
    try (TestServer server = new TestServer()) {
      server.answer(200, page(1, true, 1)).answer(200, page(2, false, 2)).answer(200, page(3, false, 3)).answer(500, "");
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      Consumer<Throwable> onError =
          e -> {
            f.errors.add(e);
            if (e instanceof ApiException) {
              Thread.currentThread().interrupt();
            }
          };
      Inbox<?> inbox = Inbox.builder(InboxTest.verifier(), f.store, (e, t) -> {}).feed(feed(server)).onError(onError).build();
      throwing(InterruptedException.class, inbox::follow);
      equal("1 events since the last reading are no longer kept by the service", f.errors.get(0).getMessage());
      equal(2, f.errors.size());
    }
  }

  static void rewinds() throws Exception {
    String retried = page(2, false, 1, 2);
    try (TestServer server = new TestServer().answer(200, page(2, false, 1, -2)).answer(200, retried)) {
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      f.inbox.catchUp();
      f.inbox.rewind();
      equal("", f.cursor());
      equal(1L, f.inbox.catchUp().missing());
      equal(List.of("pay-1", "pay-2"), f.ids());
      equal(true, server.received.get(1).url().endsWith("&after=0&wait=0s"));
    }
  }

  static void rewindsWhileItReads() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(1, false, 1)).answer(200, page(3, false, -2, -3))) {
      List<Inbox<?>> inbox = new ArrayList<>();
      List<Passed> passed = new ArrayList<>();
      MemoryStore store = new MemoryStore();
      inbox.add(
          Inbox.builder(InboxTest.verifier(), store, (e, t) -> {})
              .feed(feed(server))
              .onError(e -> {})
              .passed(
                  event -> {
                    passed.add(event);
                    if (passed.size() == 1) {
                      inThread(inbox.get(0)::rewind);
                    }
                  })
              .build());
      inbox.get(0).catchUp();
      inbox.get(0).catchUp();
      equal("", store.transaction(t -> t.cursor()));
      inbox.get(0).catchUp();
      equal("3-1", store.transaction(t -> t.cursor()));
    }
  }

  /** Does something in another thread, and waits for it. */
  private static void inThread(TestRun.Action action) {
    CompletableFuture.runAsync(
            () -> {
              try {
                action.run();
              } catch (Exception e) {
                throw new CompletionException(e);
              }
            })
        .join();
  }

  /** Each delivery comes before the one that it names, which comes within 5 seconds. */
  static void readsEveryTenMinutesThoughNothingIsMissing() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(1, false, -1))) {
      List<Integer> readings = new ArrayList<>(); // their number at each pause
      List<Inbox<?>> inbox = new ArrayList<>();
      Duration[] slept = {Duration.ZERO};
      long[] number = {1};
      Runnable early = () -> deliver(inbox.get(0), number[0] += 2, number[0] - 1);
      Pause pause =
          new Pause() {
            @Override
            public long nanos() {
              return slept[0].toNanos();
            }

            @Override
            public void sleep(Duration time) throws InterruptedException {
              slept[0] = slept[0].plus(time);
              readings.add(server.received.size());
              if (readings.size() == 121) {
                throw new InterruptedException();
              }
              deliver(inbox.get(0), number[0] - 1, number[0] - 2);
              early.run();
            }
          };
      inbox.add(
          Inbox.builder(InboxTest.verifier(), new MemoryStore(), (e, t) -> {})
              .feed(feed(server))
              .passed(event -> early.run())
              .onError(e -> {})
              .build(pause));
      throwing(InterruptedException.class, inbox.get(0)::fillGaps);
      equal(List.of(1, 1, 2), List.of(readings.get(0), readings.get(119), readings.get(120)));
    }
  }

  private static void deliver(Inbox<?> inbox, long number, long previous) {
    try {
      String id = "pay-" + number;
      Request delivery = InboxTest.with(InboxTest.signed(id, "{}"), "webhook-sequence", "" + number);
      equal(204, inbox.handle(InboxTest.with(delivery, "webhook-previous", "" + previous)).status());
    } catch (Exception e) {
      throw new AssertionError(e);
    }
  }

  /** The events 2 and 3 were lost in a failover; another one has the number 2 now. */
  static void beginsAgainWhenTheFeedHasChanged() throws Exception {
    String other = page(2, "2-2", false, 2).replace("pay-2", "pay-new");
    try (TestServer server = new TestServer()) {
      server.answer(200, page(3, false, 1, 2, 3)).answer(409, CHANGED).answer(200, page(1, true, 1)).answer(200, other);
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      equal(3L, f.inbox.catchUp().missing());
      equal(1L, f.inbox.catchUp().missing());
      equal(List.of("pay-1", "pay-2", "pay-3", "pay-new"), f.ids());
      equal("2-2", f.cursor());
      String path = "/api/v1/subscribers/" + SUBSCRIBER + "/feed?limit=100&";
      equal(
          List.of(path + "after=0&wait=0s", path + "cursor=3-1&wait=0s", path + "after=0&wait=0s", path + "cursor=1-1&wait=0s"),
          urls(server));
    }
  }

  static void beginsAgainOnlyOnce() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(3, false, 1)).answer(409, CHANGED)) {
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      f.inbox.catchUp();
      for (int requests : List.of(3, 4)) {
        equal("FEED_CHANGED", throwing(ApiException.class, f.inbox::catchUp).code());
        equal(requests, server.received.size());
        equal("", f.cursor());
      }
    }
  }

  /** SQLite refuses a transaction that writes after it has read, if another one wrote in between. */
  static void writesFirst() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(3, false, 1))) {
      MemoryStore memory = new MemoryStore();
      Store<MemoryStore.Changes> store =
          new Store<>() {
            @Override
            public <R> R transaction(Action<MemoryStore.Changes, R> action) throws Exception {
              return memory.transaction(t -> action.run(new WritesFirst(t)));
            }
          };
      Inbox<?> inbox = Inbox.builder(InboxTest.verifier(), store, (e, t) -> {}).feed(feed(server)).build();
      equal(1L, inbox.catchUp().missing());
      equal("3-1", memory.transaction(t -> t.cursor()));
    }
  }

  private static final class WritesFirst implements Store.Transaction<MemoryStore.Changes> {
    private final Store.Transaction<MemoryStore.Changes> transaction;
    private boolean read;

    WritesFirst(Store.Transaction<MemoryStore.Changes> transaction) {
      this.transaction = transaction;
    }

    @Override
    public boolean add(String id, Long sequence) throws Exception {
      equal("it was read", false, read);
      return transaction.add(id, sequence);
    }

    @Override
    public String cursor() throws Exception {
      read = true;
      return transaction.cursor();
    }

    @Override
    public void setCursor(String cursor) throws Exception {
      equal("it was read", false, read);
      transaction.setCursor(cursor);
    }

    @Override
    public MemoryStore.Changes unwrap() {
      return transaction.unwrap();
    }
  }

  static void refusesOtherAnswers() throws Exception {
    for (String answer : List.of("", "[]", "{}", "<html>", page(3, "", true), page(3, false, 1).replace("\"cursor\"", "\"after\""), page(3, false, 1).replace("\"3-1\"", "3"), page(3, false, 1).replace("\"sequence\":1", "\"sequence\":1.5"),
        page(3, false, 1).replace("\"id\"", "\"di\""))) {
      try (TestServer server = new TestServer().answer(200, answer)) {
        InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
        throwing(answer, IOException.class, f.inbox::catchUp);
        equal("", f.cursor());
      }
    }
    try (TestServer server = new TestServer().answer(200, page(3, true))) {
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      throwing(IOException.class, f.inbox::catchUp);
      equal("the pages with one cursor", 2, server.received.size());
    }
    try (TestServer server = new TestServer().answer(404, "{\"code\":\"SUBSCRIBER_NOT_FOUND\",\"detail\":\"no\"}")) {
      ApiException e = throwing(ApiException.class, new InboxTest.Fixture(feed(server)).inbox::catchUp);
      equal("404 SUBSCRIBER_NOT_FOUND: no", e.getMessage());
    }
  }

  static void followsThroughErrors() throws Exception {
    try (TestServer server = new TestServer()) {
      for (int i = 0; i < 8; i++) {
        server.answer(500, "");
      }
      server.answer(200, page(1, false, 1)).answer(503, "", "Retry-After", "7").answer(409, CHANGED).answer(200, page(1, false)).hangUp();
      InboxTest.Fixture f = new InboxTest.Fixture(feed(server));
      Duration[] waited = {
        seconds(1), seconds(2), seconds(4), seconds(8), seconds(16), seconds(32), seconds(60), seconds(60), seconds(7), seconds(1)
      };
      List<Duration> waits = new ArrayList<>();
      Pause pause =
          new Pause() {
            @Override
            public long nanos() {
              return 0;
            }

            @Override
            public void sleep(Duration time) throws InterruptedException {
              waits.add(time);
              if (waits.size() == waited.length) {
                throw new InterruptedException();
              }
            }
          };
      Inbox<?> inbox =
          Inbox.builder(InboxTest.verifier(), f.store, (e, t) -> f.worked.add(e)).feed(feed(server)).onError(f.errors::add).build(pause);
      throwing(InterruptedException.class, inbox::follow);
      equal(List.of(waited), waits);
      equal(List.of("pay-1"), f.ids());
      equal(true, server.received.get(0).url().endsWith("&after=0&wait=20s"));
      equal(10, f.errors.size());
    }
  }

  static void endsWhenItIsInterrupted() throws Exception {
    try (TestServer server = new TestServer().answer(200, page(0, false))) {
      Thread.currentThread().interrupt();
      throwing(InterruptedException.class, new InboxTest.Fixture(feed(server)).inbox::follow);
      equal(false, Thread.interrupted());
    }
  }

  private static Duration seconds(long seconds) {
    return Duration.ofSeconds(seconds);
  }

  static void refusesSettings() {
    for (String url : List.of("http://spendhook.example.com", "http://127.evil.example", "http://localhost.example", "ftp://localhost", "localhost:80", "https://a@b.example", "https://a.example?b", "https://a.example#b")) {
      throwing(url, IllegalArgumentException.class, () -> Feed.builder().url(url).token("t").subscriber("s").build());
    }
    for (String url : List.of("https://a.example/base/", "http://localhost:1", "http://127.0.0.1", "http://[::1]:1")) {
      Feed.builder().url(url).token("t").subscriber("s").build();
    }
    Feed.builder().url("http://a.example").insecure(true).token("t").subscriber("s").build();
    throwing(IllegalArgumentException.class, () -> Feed.builder().url("https://a.example").subscriber("s").build());
    throwing(IllegalArgumentException.class, () -> Feed.builder().url("https://a.example").token("t").credentials("a", "b").subscriber("s").build());
    IllegalArgumentException e = throwing(IllegalArgumentException.class, () -> Feed.builder().token("a secret\n"));
    equal(false, e.toString().contains("a secret"));
  }
}
