package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

final class InboxTest {
  static final long NOW = 1_795_167_000;
  static final String SECRET = "whsec_" + Base64.getEncoder().encodeToString("a secret of thirty-two bytes....".getBytes(StandardCharsets.UTF_8));
  private static final String COMPANY = "0197a1b2-0000-7000-8000-000000000001";

  static Verifier verifier() {
    return Verifier.builder().secrets(List.of(SECRET)).clock(new TestClock(NOW)).build();
  }

  static String body(String id, String metadata) {
    return "{\"id\":\"" + id + "\",\"companyUuid\":\"" + COMPANY
        + "\",\"event\":\"PAYMENT_PAID\",\"timestamp\":\"2026-11-20T09:30:00.000Z\",\"metadata\":" + metadata + "}";
  }

  static Request signed(String id, String body) throws Exception {
    return signed(id, body.getBytes(StandardCharsets.UTF_8));
  }

  static Request signed(String id, byte[] body) throws Exception {
    Mac mac = Mac.getInstance("HmacSHA256");
    mac.init(new SecretKeySpec(Base64.getDecoder().decode(SECRET.substring(6)), "HmacSHA256"));
    mac.update((id + "." + NOW + ".").getBytes(StandardCharsets.UTF_8));
    String signature = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
    Map<String, List<String>> headers =
        Map.of("Webhook-Id", List.of(id), "WEBHOOK-TIMESTAMP", List.of("" + NOW), "webhook-signature", List.of(signature), "webhook-sequence", List.of("4711"));
    return new Request("POST", "/hooks", headers, body);
  }

  static Request with(Request request, String header, String value) {
    Map<String, List<String>> headers = new HashMap<>(request.headers());
    headers.keySet().removeIf(header::equalsIgnoreCase);
    headers.put(header, List.of(value));
    return new Request(request.method(), request.url(), headers, request.body());
  }

  /** An inbox in memory, whose work fails for the events in failing. */
  static final class Fixture {
    final List<Event> worked = new ArrayList<>();
    final List<String> failing = new ArrayList<>();
    final List<Throwable> errors = new ArrayList<>();
    final List<Passed> passed = new ArrayList<>();
    final MemoryStore store = new MemoryStore();
    final TestClock clock = new TestClock(NOW);
    final Inbox<MemoryStore.Changes> inbox;

    Fixture(Feed feed) {
      Work<MemoryStore.Changes> work =
          (event, changes) -> {
            changes.onCommit(() -> worked.add(event));
            if (failing.contains(event.id())) {
              throw new IOException("the work fails");
            }
          };
      inbox = Inbox.builder(verifier(), store, work).feed(feed).onError(errors::add).passed(passed::add).build(clock);
    }

    Event only() {
      equal("the number of events", 1, worked.size());
      return worked.get(0);
    }

    List<String> ids() {
      return worked.stream().map(Event::id).toList();
    }

    String cursor() throws Exception {
      return store.transaction(t -> t.cursor());
    }
  }

  static void worksOnAnEventOnce() throws Exception {
    Fixture f = new Fixture(null);
    Request delivery = signed("pay-1", body("pay-1", "{\"amount\":12.50}"));
    equal(new Response(204, ""), f.inbox.handle(delivery));
    equal(new Response(204, ""), f.inbox.handle(delivery));
    Event event = f.only();
    equal("pay-1", event.id());
    equal("PAYMENT_PAID", event.type());
    equal(COMPANY, event.companyUuid());
    equal(Instant.ofEpochSecond(NOW), event.timestamp());
    equal(Map.of("amount", new BigDecimal("12.50")), event.metadata());
    equal(4711L, event.sequence());
    equal(true, Arrays.equals(delivery.body(), event.body()));
  }

  static void worksAgainAfterAFailure() throws Exception {
    Fixture f = new Fixture(null);
    f.failing.add("pay-1");
    Request delivery = signed("pay-1", body("pay-1", "{}"));
    equal(500, f.inbox.handle(delivery).status());
    equal("event pay-1: java.io.IOException: the work fails", f.errors.get(0).getMessage());
    equal(List.of(), f.ids());
    f.failing.clear();
    equal(204, f.inbox.handle(delivery).status());
    equal(List.of("pay-1"), f.ids());
  }

  static void answersAnErrorOfTheWork() throws Exception {
    List<Throwable> errors = new ArrayList<>();
    Work<MemoryStore.Changes> work =
        (event, changes) -> {
          throw new AssertionError("a bug");
        };
    Inbox<?> inbox = Inbox.builder(verifier(), new MemoryStore(), work).onError(errors::add).build();
    equal(500, inbox.handle(signed("pay-1", "{}")).status());
    equal(1, errors.size());
  }

  static void refusesWhatIsNotSigned() throws Exception {
    Fixture f = new Fixture(null);
    equal(401, f.inbox.handle(with(signed("pay-1", "{}"), "webhook-id", "pay-2")).status());
    equal(401, f.inbox.handle(new Request("POST", "/", Map.of(), new byte[0])).status());
    equal(List.of(), f.ids());
  }

  static void reportsRefusedDeliveriesOnceAMinute() throws Exception {
    Fixture f = new Fixture(null);
    Request forged = with(signed("pay-1", "{}"), "webhook-signature", "v1,AAAA");
    String report = "a delivery was refused: no v1 signature is that of a secret; check the signing secret";
    for (List<String> reports : List.of(List.of(report), List.of(report), List.of(report, report), List.of(report, report))) {
      equal(new Response(401, "no valid signature"), f.inbox.handle(forged));
      equal(reports, f.errors.stream().map(Throwable::getMessage).toList());
      f.clock.advance(Duration.ofSeconds(30));
    }
  }

  /** Without onError, no error vanishes. */
  static void logsErrorsByDefault() throws Exception {
    List<LogRecord> records = new ArrayList<>();
    Handler handler =
        new Handler() {
          @Override
          public void publish(LogRecord logged) {
            records.add(logged);
          }

          @Override
          public void flush() {}

          @Override
          public void close() {}
        };
    Logger logger = Logger.getLogger(Inbox.class.getName());
    logger.addHandler(handler);
    logger.setUseParentHandlers(false);
    try {
      Work<MemoryStore.Changes> work =
          (event, changes) -> {
            throw new IOException("the work fails");
          };
      Inbox.builder(verifier(), new MemoryStore(), work).build().handle(signed("pay-1", "{}"));
    } finally {
      logger.setUseParentHandlers(true);
      logger.removeHandler(handler);
    }
    equal(1, records.size());
    equal(Level.WARNING, records.get(0).getLevel());
    equal("event pay-1: java.io.IOException: the work fails", records.get(0).getMessage());
  }

  static void refusesALargeBody() throws Exception {
    Fixture f = new Fixture(null);
    equal(204, f.inbox.handle(signed("pay-1", new byte[Inbox.MAX_BODY])).status());
    equal(413, f.inbox.handle(signed("pay-2", new byte[Inbox.MAX_BODY + 1])).status());
    equal(List.of("pay-1"), f.ids());
  }

  static void answersAChallenge() throws Exception {
    Fixture f = new Fixture(null);
    String body = body("challenge-1", "{\"challenge\":\"YCNQ2\"}").replace("PAYMENT_PAID", "SUBSCRIBER_CHALLENGE");
    equal(new Response(200, "YCNQ2"), f.inbox.handle(signed("challenge-1", body)));
    equal(401, f.inbox.handle(with(signed("challenge-1", body), "webhook-signature", "v1,AAAA")).status());
    equal(List.of(), f.ids());
  }

  private static Response handshake(String origin, String method, String from) {
    Inbox<?> inbox = Inbox.builder(verifier(), new MemoryStore(), (e, t) -> {}).origin(origin).build();
    return inbox.handle(new Request(method, "/hooks", Map.of("WebHook-Request-Origin", List.of(from)), new byte[0]));
  }

  static void agreesToTheDaemonAlone() {
    String name = "hooks.example.com";
    Response consent =
        new Response(200, "", Map.of("Allow", "POST", "WebHook-Allowed-Origin", name, "WebHook-Allowed-Rate", "*"));
    for (String from : List.of(name, "Hooks.Example.COM")) {
      equal(consent, handshake(name, "OPTIONS", from));
    }
    Response refusal = new Response(405, "only POST is allowed", Map.of("Allow", "POST"));
    for (String from : List.of("evil.example.com", "*", "")) {
      equal(refusal, handshake(name, "OPTIONS", from));
    }
    equal(refusal, handshake(name, "GET", name));
    for (String from : List.of(name, "")) {
      equal(refusal, handshake("", "OPTIONS", from));
    }
    equal(refusal, new Fixture(null).inbox.handle(new Request("OPTIONS", "/", Map.of(), new byte[0])));
  }

  static void isUnavailableWithoutKeys() throws Exception {
    try (TestServer server = new TestServer().answer(500, "")) {
      Verifier verifier = Verifier.builder().keysUrl(server.url()).clock(new TestClock(NOW)).build();
      List<Throwable> errors = new ArrayList<>();
      Inbox<?> inbox = Inbox.builder(verifier, new MemoryStore(), (e, t) -> {}).onError(errors::add).build();
      equal(503, inbox.handle(with(signed("pay-1", "{}"), "webhook-signature", "v1a," + "A".repeat(86) + "==")).status());
      equal(1, errors.size());
    }
  }

  static void readsTheOtherFormats() throws Exception {
    Fixture f = new Fixture(null);
    f.inbox.handle(signed("a", body("a", "{}").replace(",\"metadata\":{}", "")));
    String cloudEvent =
        "{\"specversion\":\"1.0\",\"id\":\"b\",\"type\":\"PAYMENT_PAID\",\"subject\":\"" + COMPANY + "\",\"time\":\"2026-11-20T09:30:00.000Z\",\"data\":{\"metadata\":{}}}";
    f.inbox.handle(signed("b", cloudEvent));
    for (Event event : f.worked) {
      equal("PAYMENT_PAID", event.type());
      equal(COMPANY, event.companyUuid());
      equal(Instant.ofEpochSecond(NOW), event.timestamp());
      equal(null, event.metadata());
    }
    equal(List.of("a", "b"), f.ids());
  }

  /** Else the work would not know the event by its type. */
  static void largeNumbersDoNotMakeABodyUnreadable() throws Exception {
    for (String number : List.of("1".repeat(100_000), "1e99999999999")) {
      Fixture f = new Fixture(null);
      equal(204, f.inbox.handle(signed("pay-1", body("pay-1", "{\"n\":" + number + ",\"amount\":0.1000000000000000000001}"))).status());
      Event event = f.only();
      equal("PAYMENT_PAID", event.type());
      equal(COMPANY, event.companyUuid());
      equal(number, event.metadata().get("n").toString());
      equal(new BigDecimal("0.1000000000000000000001"), event.metadata().get("amount"));
    }
  }

  static void storesWhateverIsSigned() throws Exception {
    Fixture f = new Fixture(null);
    List<byte[]> bodies = new ArrayList<>();
    for (String text : List.of("", "no JSON", "[]", "7", "null", "{\"event\":7,\"metadata\":[],\"timestamp\":\"now\",\"companyUuid\":{}}", "{\"a\":1,\"a\":2}", "[".repeat(100_000))) {
      bodies.add(text.getBytes(StandardCharsets.UTF_8));
    }
    bodies.add(new byte[] {(byte) 0xff, 0});
    for (int i = 0; i < bodies.size(); i++) {
      equal(204, f.inbox.handle(with(signed("odd-" + i, bodies.get(i)), "webhook-sequence", "x")).status());
      Event event = f.worked.get(i);
      equal(Arrays.asList(null, null, null, null, null),
          Arrays.asList(event.type(), event.companyUuid(), event.timestamp(), event.metadata(), event.sequence()));
      equal(true, Arrays.equals(bodies.get(i), event.body()));
    }
  }

  static void needsAFeed() {
    Fixture f = new Fixture(null);
    throwing(IllegalStateException.class, f.inbox::catchUp);
    throwing(IllegalStateException.class, f.inbox::follow);
    throwing(IllegalStateException.class, f.inbox::fillGaps);
  }
}
