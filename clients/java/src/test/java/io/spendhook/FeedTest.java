package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

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
      equal("12-1", f.cursor(SUBSCRIBER));
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
      equal("", f.cursor(SUBSCRIBER));
      f.failing.clear();
      equal(2L, f.inbox.catchUp().missing());
      equal(List.of("pay-1", "pay-2", "pay-3"), f.ids());
      equal("3-1", f.cursor(SUBSCRIBER));
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
      equal("2-2", f.cursor(SUBSCRIBER));
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
        equal("", f.cursor(SUBSCRIBER));
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
      equal("3-1", memory.transaction(t -> t.cursor(SUBSCRIBER)));
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
    public String cursor(String feed) throws Exception {
      read = true;
      return transaction.cursor(feed);
    }

    @Override
    public void setCursor(String feed, String cursor) throws Exception {
      equal("it was read", false, read);
      transaction.setCursor(feed, cursor);
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
        equal("", f.cursor(SUBSCRIBER));
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
