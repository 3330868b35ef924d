package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.net.URI;
import java.net.http.HttpClient;
import java.time.Duration;
import java.util.List;
import java.util.Map;

final class KeySetTest {
  private static final String ED25519 =
      "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"a\",\"x\":\"JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs\"}"; // of RFC 9421
  private static final String P256 =
      "{\"kty\":\"EC\",\"crv\":\"P-256\",\"kid\":\"b\",\"x\":\"qIVYZVLCrPZHGHjP17CTW0_-D9Lfw0EkjqF7xB4FivA\",\"y\":\"Mc4nN9LTDOBhfoUeg8Ye9WedFRhnZXZJA12Qp0zZ6F0\"}";
  static final String SET = "{\"keys\":[" + ED25519 + "," + P256 + ",{\"kty\":\"RSA\",\"x\":\"\"},7]}";

  private static KeySet of(TestServer server, TestClock clock) {
    return new KeySet(URI.create(server.url()), new Http(null), clock);
  }

  static void keepsTheKeysForFiveMinutesAtLeast() throws Exception {
    try (TestServer server = new TestServer().answer(200, SET, "Cache-Control", "public, max-age=1")) {
      TestClock clock = new TestClock(1_000_000);
      KeySet keys = of(server, clock);
      equal(List.of("a", "b"), keys.known().stream().map(Jwk::id).toList());
      clock.advance(Duration.ofSeconds(299));
      keys.known();
      equal(1, server.received.size());
      clock.advance(Duration.ofSeconds(1));
      keys.known();
      equal(2, server.received.size());
    }
  }

  static void keepsTheKeysAsTheDaemonSays() throws Exception {
    try (TestServer server = new TestServer().answer(200, SET, "Cache-Control", "public, Max-Age=600")) {
      TestClock clock = new TestClock(1_000_000);
      KeySet keys = of(server, clock);
      keys.known();
      clock.advance(Duration.ofSeconds(599));
      keys.known();
      equal(1, server.received.size());
      clock.advance(Duration.ofSeconds(1));
      keys.known();
      equal(2, server.received.size());
    }
  }

  static void readsAgainEveryFiveSecondsAtMost() throws Exception {
    try (TestServer server = new TestServer().answer(200, SET)) {
      TestClock clock = new TestClock(1_000_000);
      KeySet keys = of(server, clock);
      keys.known();
      keys.again();
      clock.advance(Duration.ofMillis(4_999));
      keys.again();
      equal(1, server.received.size());
      clock.advance(Duration.ofMillis(1));
      keys.again();
      equal(2, server.received.size());
    }
  }

  static void isUnavailableForFiveSecondsAfterAFailure() throws Exception {
    try (TestServer server = new TestServer().answer(500, "").answer(200, SET)) {
      TestClock clock = new TestClock(1_000_000);
      KeySet keys = of(server, clock);
      throwing(KeysUnavailableException.class, keys::known);
      throwing(KeysUnavailableException.class, keys::known);
      equal(1, server.received.size());
      clock.advance(Duration.ofSeconds(5));
      equal(2, keys.known().size());
    }
  }

  /** Else they would be used for as long as the clock has jumped back. */
  static void readsAgainWhenTheClockHasJumpedBack() throws Exception {
    try (TestServer server = new TestServer().answer(200, SET).answer(500, "").answer(200, SET)) {
      TestClock clock = new TestClock(1_000_000);
      KeySet keys = of(server, clock);
      keys.known();
      clock.advance(Duration.ofDays(-1));
      throwing(KeysUnavailableException.class, keys::known);
      clock.advance(Duration.ofDays(-1));
      equal("the keys after a failure that is in the future", 2, keys.known().size());
      equal(3, server.received.size());
    }
  }

  static void acceptsOnlyAKeySet() throws Exception {
    for (String body : List.of("", "[]", "{}", "{\"keys\":7}", "{\"keys\":[]} ", "{\"keys\":[]}" + " ".repeat(1 << 16))) {
      try (TestServer server = new TestServer().answer(200, body)) {
        KeySet keys = of(server, new TestClock(1_000_000));
        if (body.equals("{\"keys\":[]} ")) {
          equal(List.of(), keys.known());
        } else {
          throwing(body.strip(), KeysUnavailableException.class, keys::known);
        }
      }
    }
    try (TestServer server = new TestServer()) {
      server.answer(302, "", "Location", server.url()).answer(200, SET);
      throwing(KeysUnavailableException.class, of(server, new TestClock(1_000_000))::known);
      equal("the requests", 1, server.received.size());
    }
    throwing(IllegalArgumentException.class, () -> new Http(HttpClient.newBuilder().followRedirects(HttpClient.Redirect.ALWAYS).build()));
  }

  static void refusesOtherKeys() throws Exception {
    for (String text : List.of(ED25519, P256)) {
      Map<String, Object> good = members(text);
      equal(text, false, Jwk.of(good) == null);
      for (Map.Entry<String, String> change :
          List.of(
              Map.entry("kty", "RSA"), Map.entry("crv", "P-384"), Map.entry("use", "enc"), Map.entry("alg", "none"), Map.entry("x", ""),
              Map.entry("x", good.get("x") + "="), Map.entry("x", "A" + good.get("x")), Map.entry("x", "+" + good.get("x").toString().substring(1)))) {
        Map<String, Object> changed = members(text);
        changed.put(change.getKey(), change.getValue());
        equal(changed.toString(), null, Jwk.of(changed));
      }
    }
    Map<String, Object> key = members(P256);
    key.put("y", key.get("x"));
    equal("a point that is not on the curve", null, Jwk.of(key));
    key.put("y", "A".repeat(43));
    key.put("x", "A".repeat(43));
    equal("the point at infinity", null, Jwk.of(key));
    key = members(ED25519);
    key.put("x", "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bt");
    equal("stray bits", null, Jwk.of(key));
  }

  @SuppressWarnings("unchecked")
  private static Map<String, Object> members(String text) throws Exception {
    return (Map<String, Object>) Json.parse(text);
  }

  /** A thread that learns of a rotation reads the keys; a stranger's message does not. */
  static void verifierReadsAgainForAnUnknownKeyOnly() throws Exception {
    try (TestServer server = new TestServer().answer(200, SET)) {
      TestClock clock = new TestClock(InboxTest.NOW);
      Verifier verifier = Verifier.builder().clock(clock).keysUrl(server.url()).build();
      Request none = InboxTest.signed("pay-1", "{}");
      throwing(InvalidMessageException.class, () -> verifier.verify(none));
      clock.advance(Duration.ofSeconds(6));
      throwing(InvalidMessageException.class, () -> verifier.verify(none));
      equal("the reads for a message without v1a", 1, server.received.size());
      Request unknown = InboxTest.with(none, "webhook-signature", "v1a," + "A".repeat(86) + "==");
      throwing(InvalidMessageException.class, () -> verifier.verify(unknown));
      equal("the reads after an unknown key", 2, server.received.size());
    }
  }
}
