package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.math.BigDecimal;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class EmitterTest {
  private static final TestClock CLOCK = new TestClock(1_000_000);

  private static Emitter emitter(TestServer server, Pause pause) {
    return Emitter.builder().url(server.url()).token("token").build(pause, () -> 1, CLOCK);
  }

  private static NewEvent event(String id) {
    return NewEvent.of(id, "PAYMENT_PAID", Instant.ofEpochSecond(1_795_167_000));
  }

  private static List<NewEvent> events(int count, String prefix) {
    List<NewEvent> events = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      events.add(event(prefix + i));
    }
    return events;
  }

  /** An answer with one result for each text: ACCEPTED, or REJECTED with the seconds after which it passes. */
  private static String results(String... results) {
    List<Object> items = new ArrayList<>();
    for (String result : results) {
      String[] parts = result.split(" ");
      Map<String, Object> item = new HashMap<>(Map.of("id", "x", "status", parts[0]));
      if (parts.length > 1) {
        item.put("error", Map.of("code", "RATE_LIMITED", "message", "too many", "retryAfter", new BigDecimal(parts[1])));
      } else if (parts[0].equals("REJECTED") || parts[0].equals("CONFLICT")) {
        item.put("error", Map.of("code", "INVALID", "message", "not so", "errors", List.of(Map.of("field", "/id", "code", "INVALID", "message", "bad"))));
      }
      items.add(item);
    }
    return Json.write(Map.of("results", items));
  }

  static void sends() throws Exception {
    try (TestServer server = new TestServer().answer(202, results("ACCEPTED")).answer(207, results("REJECTED"))) {
      Emitter emitter = Emitter.builder().url(server.url() + "/base/").token("token").company("c").build();
      NewEvent event = event("pay-1").withMetadata(Map.of("amount", new BigDecimal("12.50"))).withError("E", null);
      equal(new Result("pay-1", Result.Status.ACCEPTED, null), emitter.send(event));
      TestServer.Received received = server.received.get(0);
      equal("POST /base/api/v1/events Bearer token", received.method() + " " + received.url() + " " + received.authorization());
      equal(
          "[{\"id\":\"pay-1\",\"event\":\"PAYMENT_PAID\",\"timestamp\":\"2026-11-20T09:30:00Z\",\"metadata\":{\"amount\":12.50},\"errorCode\":\"E\",\"companyUuid\":\"c\"}]",
          received.body());
      RejectedException e = throwing(RejectedException.class, () -> emitter.send(event.withCompany("d")));
      equal("event pay-1 is refused: REJECTED INVALID: not so", e.getMessage());
      equal(List.of(new Result.Field("/id", "INVALID", "bad")), e.result().error().fields());
      equal(true, server.received.get(1).body().contains("\"companyUuid\":\"d\""));
    }
  }

  static void repeatsTheSameBytes() throws Exception {
    try (TestServer server = new TestServer()) {
      server.hangUp().answer(502, "").answer(504, "").answer(503, "", "Retry-After", "3");
      server.answer(429, "{\"code\":\"RATE_LIMITED\"}", "Retry-After", "Mon, 12 Jan 1970 13:46:50 GMT").answer(202, results("DUPLICATE"));
      TestClock pause = new TestClock(0);
      equal(Result.Status.DUPLICATE, emitter(server, pause).send(event("pay-1")).status());
      equal(6, server.received.size());
      equal(1L, server.received.stream().map(TestServer.Received::body).distinct().count());
      equal(Duration.ofMillis(500 + 1000 + 2000 + 3000 + 10_000), pause.slept); // the date is in 10 s
    }
  }

  static void repeatsRefusedEventsAlone() throws Exception {
    try (TestServer server = new TestServer()) {
      server.answer(207, results("ACCEPTED", "REJECTED 2", "CONFLICT", "REJECTED 5")).answer(207, results("ACCEPTED", "REJECTED 1")).answer(202, results("ACCEPTED"));
      TestClock pause = new TestClock(0);
      List<Result> results = emitter(server, pause).sendAll(events(4, "e"));
      equal(List.of("e0", "e1", "e2", "e3"), results.stream().map(Result::id).toList());
      equal("[ACCEPTED, ACCEPTED, CONFLICT, ACCEPTED]", results.stream().map(Result::status).toList().toString());
      equal(Duration.ofSeconds(6), pause.slept);
      equal(List.of("[e0, e1, e2, e3]", "[e1, e3]", "[e3]"), server.received.stream().map(EmitterTest::ids).toList());
    }
  }

  private static String ids(TestServer.Received received) {
    try {
      return ((List<?>) Json.parse(received.body())).stream().map(e -> ((Map<?, ?>) e).get("id")).toList().toString();
    } catch (java.text.ParseException e) {
      throw new AssertionError(e);
    }
  }

  static void givesUpInTime() throws Exception {
    try (TestServer server = new TestServer().answer(207, results("ACCEPTED", "REJECTED 20"))) {
      server.answer(503, "{\"code\":\"STORAGE_FULL\",\"detail\":\"full\"}", "Retry-After", "25");
      TestClock pause = new TestClock(0);
      EmitException e = throwing(EmitException.class, () -> emitter(server, pause).sendAll(events(2, "e")));
      equal(Arrays.asList(new Result("e0", Result.Status.ACCEPTED, null), null), e.results());
      equal("STORAGE_FULL", ((ApiException) e.getCause()).code());
      equal(Duration.ofSeconds(45), pause.slept); // 25 s more would be 70 s
      equal(3, server.received.size());
    }
  }

  static void doesNotRepeatInVain() throws Exception {
    for (int status : List.of(307, 401, 403, 404, 500)) {
      try (TestServer server = new TestServer()) {
        server.answer(status, "", "Location", server.url());
        EmitException e = throwing(EmitException.class, () -> emitter(server, new TestClock(0)).send(event("a")));
        equal(status, ((ApiException) e.getCause()).status());
        equal(1, server.received.size());
      }
    }
    for (String body : List.of("", "<html>", "[]", "{}", results(), results("ACCEPTED", "ACCEPTED"), results("LOST"), "{\"results\":[7]}")) {
      try (TestServer server = new TestServer().answer(202, body)) {
        throwing(body, EmitException.class, () -> emitter(server, new TestClock(0)).send(event("a")));
        equal(1, server.received.size());
      }
    }
  }

  static void makesTheRefusalOfOneItsResult() throws Exception {
    String malformed = "{\"code\":\"MALFORMED_BODY\",\"detail\":\"no\",\"errors\":[7,{\"field\":\"/id\",\"code\":\"C\",\"message\":\"m\"}]}";
    Map<String, Result.Error> cases = new LinkedHashMap<>();
    cases.put("413 {\"code\":\"BODY_TOO_LARGE\",\"detail\":\"large\"}", new Result.Error("BODY_TOO_LARGE", "large", List.of(), null));
    cases.put("413 <html>", new Result.Error("PAYLOAD_TOO_LARGE", "", List.of(), null)); // of a proxy
    cases.put("400 " + malformed, new Result.Error("MALFORMED_BODY", "no", List.of(new Result.Field("/id", "C", "m")), null));
    for (Map.Entry<String, Result.Error> c : cases.entrySet()) {
      try (TestServer server = new TestServer().answer(Integer.parseInt(c.getKey().substring(0, 3)), c.getKey().substring(4))) {
        List<Result> results = emitter(server, new TestClock(0)).sendAll(events(1, "e"));
        equal(List.of(new Result("e0", Result.Status.REJECTED, c.getValue())), results);
      }
    }
  }

  static void blamesEventsForNothingElse() throws Exception {
    for (int status : List.of(400, 422)) {
      try (TestServer server = new TestServer().answer(status, "{\"code\":\"COMPANY_REQUIRED\"}")) {
        EmitException e = throwing(EmitException.class, () -> emitter(server, new TestClock(0)).send(event("a")));
        equal("COMPANY_REQUIRED", ((ApiException) e.getCause()).code());
        equal(Arrays.asList((Result) null), e.results());
      }
    }
    for (int status : List.of(400, 413)) { // of the token endpoint
      try (TestServer server = new TestServer().answer(status, "{\"code\":\"MALFORMED_BODY\"}")) {
        Emitter emitter = Emitter.builder().url(server.url()).credentials("id", "s").build();
        EmitException e = throwing(EmitException.class, () -> emitter.send(event("a")));
        equal("emit events: no token: " + status + " MALFORMED_BODY", e.getMessage());
        equal(Arrays.asList((Result) null), e.results());
        equal(1, server.received.size());
      }
    }
  }

  /** A proxy with a limit of 500 bytes, and of 2 events. */
  static void dividesWhatIsTooLarge() throws Exception {
    try (TestServer server = new TestServer()) {
      server.answer(
          request -> {
            int count = request.split("PAYMENT_PAID", -1).length - 1;
            return count > 2 || request.length() > 500 ? "" : results(Collections.nCopies(count, "ACCEPTED").toArray(new String[0]));
          });
      List<NewEvent> events = events(7, "e");
      List<Result> results = emitter(server, new TestClock(0)).sendAll(events);
      equal(List.of("e0", "e1", "e2", "e3", "e4", "e5", "e6"), results.stream().map(Result::id).toList());
      equal(true, results.stream().allMatch(result -> result.status() == Result.Status.ACCEPTED));
      List<String> accepted = List.of("[e0]", "[e1, e2]", "[e3, e4]", "[e5, e6]");
      equal(accepted, server.received.stream().map(EmitterTest::ids).filter(accepted::contains).toList());

      events.set(3, event("e3").withMetadata(Map.of("m", "x".repeat(500))));
      results = emitter(server, new TestClock(0)).sendAll(events);
      equal(List.of("e0", "e1", "e2", "e3", "e4", "e5", "e6"), results.stream().map(Result::id).toList());
      equal(
          "[ACCEPTED, ACCEPTED, ACCEPTED, REJECTED, ACCEPTED, ACCEPTED, ACCEPTED]",
          results.stream().map(Result::status).toList().toString());
      equal("PAYLOAD_TOO_LARGE", results.get(3).error().code());
    }
  }

  static void goesOnAfterAnEventThatIsTooLarge() throws Exception {
    try (TestServer server = new TestServer().answer(202, results("ACCEPTED")).answer(413, "").answer(202, results("ACCEPTED"))) {
      List<NewEvent> events = List.of(event("a"), event("b").withMetadata(Map.of("m", "x".repeat(4 << 20))), event("c"));
      List<Result> results = emitter(server, new TestClock(0)).sendAll(events);
      equal("[ACCEPTED, REJECTED, ACCEPTED]", results.stream().map(Result::status).toList().toString());
      equal(List.of("[a]", "[b]", "[c]"), server.received.stream().map(EmitterTest::ids).toList());
    }
  }

  static void splits() throws Exception {
    String[] accepted = new String[1000];
    Arrays.fill(accepted, "ACCEPTED");
    try (TestServer server = new TestServer().answer(202, results(accepted)).answer(202, results("ACCEPTED"))) {
      equal(1001, emitter(server, new TestClock(0)).sendAll(events(1001, "e")).size());
      equal(2, server.received.size());
      equal("[e1000]", ids(server.received.get(1)));
    }
    try (TestServer server = new TestServer().answer(202, results("ACCEPTED", "ACCEPTED")).answer(202, results("ACCEPTED"))) {
      int overhead = event("e0").withMetadata(Map.of("m", "")).json(null).length();
      NewEvent half = event("e0").withMetadata(Map.of("m", "x".repeat((2 << 20) - 2 - overhead)));
      NewEvent longer = event("e0").withMetadata(Map.of("m", "x".repeat((2 << 20) - 1 - overhead)));
      equal(3, emitter(server, new TestClock(0)).sendAll(List.of(half, longer, half)).size());
      equal(List.of(4 << 20, 2 << 20), server.received.stream().map(r -> r.body().length()).toList());
      equal(List.of(), emitter(server, new TestClock(0)).sendAll(List.of()));
      equal(2, server.received.size());
    }
  }

  static void getsTokens() throws Exception {
    String token = "{\"access_token\":\"t%d\",\"token_type\":\"Bearer\",\"expires_in\":3600}";
    try (TestServer server = new TestServer()) {
      server.answer(503, "").answer(200, String.format(token, 1)).answer(202, results("ACCEPTED")).answer(202, results("ACCEPTED"));
      server.answer(200, String.format(token, 2)).answer(401, "").answer(200, String.format(token, 3)).answer(202, results("ACCEPTED")).answer(401, "");
      TestClock clock = new TestClock(0);
      Emitter emitter = Emitter.builder().url(server.url()).credentials("id:1", "s%ä").build(clock, () -> 1, clock);
      emitter.send(event("a"));
      clock.advance(Duration.ofSeconds(3569));
      emitter.send(event("a"));
      clock.advance(Duration.ofSeconds(1)); // 30 s before its end
      emitter.send(event("a"));
      EmitException e = throwing(EmitException.class, () -> emitter.send(event("a"))); // the new token is refused, too
      equal(401, ((ApiException) e.getCause()).status());
      String basic = "Basic aWQlM0ExOnMlMjUlQzMlQTQ="; // id%3A1:s%25%C3%A4
      equal(
          List.of(basic, basic, "Bearer t1", "Bearer t1", basic, "Bearer t2", basic, "Bearer t3", "Bearer t3", basic),
          server.received.stream().map(TestServer.Received::authorization).toList());
      equal("/oauth/token grant_type=client_credentials", server.received.get(0).url() + " " + server.received.get(0).body());
    }
  }

  static void asksForAScope() throws Exception {
    try (TestServer server = new TestServer().answer(200, "{\"access_token\":\"t\"}").answer(202, results("ACCEPTED"))) {
      Emitter.builder().url(server.url()).credentials("id", "s", "events:write a").build().send(event("a"));
      equal("grant_type=client_credentials&scope=events%3Awrite+a", server.received.get(0).body());
    }
  }

  /** The seconds after which a token is renewed, by what the answer says of its life. */
  static void renewsTokens() throws Exception {
    Map<String, Integer> cases = new LinkedHashMap<>();
    cases.put("", 270);
    for (String strange : List.of("0", "-1", "\"60\"", "null")) {
      cases.put(",\"expires_in\":" + strange, 270);
    }
    cases.put(",\"expires_in\":20", 10);
    cases.put(",\"expires_in\":60", 30);
    cases.put(",\"expires_in\":90.0", 60);
    cases.put(",\"expires_in\":1e99", (1 << 30) - 30);
    for (Map.Entry<String, Integer> c : cases.entrySet()) {
      try (TestServer server = new TestServer()) {
        String token = "{\"access_token\":\"t\"" + c.getKey() + "}";
        String accepted = results("ACCEPTED");
        server.answer(200, token).answer(202, accepted).answer(202, accepted).answer(200, token).answer(202, accepted);
        TestClock clock = new TestClock(0);
        Emitter emitter = Emitter.builder().url(server.url()).credentials("id", "s").build(clock, () -> 1, clock);
        emitter.send(event("a"));
        clock.advance(Duration.ofMillis(1000L * c.getValue() - 1));
        emitter.send(event("a"));
        equal(c.getKey(), 3, server.received.size());
        clock.advance(Duration.ofMillis(1));
        emitter.send(event("a"));
        equal(c.getKey(), 5, server.received.size());
      }
    }
  }

  static void backsOff() {
    equal(Duration.ofMillis(250), Emitter.backoff(0, 0));
    equal(Duration.ofMillis(500), Emitter.backoff(0, 1));
    equal(Duration.ofSeconds(16), Emitter.backoff(5, 1));
    equal(Duration.ofSeconds(30), Emitter.backoff(6, 1));
    equal(Duration.ofSeconds(15), Emitter.backoff(Integer.MAX_VALUE, 0));
  }

  static void readsRetryAfter() {
    Instant now = Instant.ofEpochSecond(0);
    equal(Duration.ofSeconds(9), ApiException.retryAfter("9", now));
    equal(Duration.ofSeconds(1 << 30), ApiException.retryAfter("999999999999999999", now));
    equal(Duration.ofSeconds(10), ApiException.retryAfter("Thu, 01 Jan 1970 00:00:10 GMT", now));
    for (String text : List.of("", "-1", "1.5", "soon", "9".repeat(100), "Wed, 31 Dec 1969 00:00:10 GMT")) {
      equal(text, Duration.ZERO, ApiException.retryAfter(text, now));
    }
  }

  static void refusesEvents() {
    throwing(IllegalArgumentException.class, () -> NewEvent.of("", "A", "2026-11-20T09:30:00Z"));
    throwing(NullPointerException.class, () -> NewEvent.of("a", "A", (Instant) null));
    throwing(IllegalArgumentException.class, () -> event("a").withMetadata(Map.of("x", Double.NaN)));
    throwing(IllegalArgumentException.class, () -> event("a").withMetadata(Map.of("x", "\ud83e")));
    Map<String, Object> inner = new HashMap<>(Map.of("n", 1));
    NewEvent event = event("a").withMetadata(Map.of("inner", inner));
    inner.put("n", 2);
    equal(true, event.json(null).contains("\"n\":1")); // a repeat has the same bytes
  }
}
