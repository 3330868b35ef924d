package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.Signature;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

final class VerifierTest {
  /** The vectors of all libraries. */
  static void vectors() throws Exception {
    Map<?, ?> file = (Map<?, ?>) Json.parse(Files.readAllBytes(Path.of(System.getProperty("vectors"))));
    TestClock clock = new TestClock(((BigDecimal) file.get("now")).longValueExact());
    int cases = 0;
    StringBuilder wrong = new StringBuilder();
    for (Object item : (List<?>) file.get("cases")) {
      Map<?, ?> vector = (Map<?, ?>) item;
      cases++;
      try (TestServer server = new TestServer()) {
        server.answer(200, Json.write(vector.get("keys")));
        if (!vector.get("valid").equals(isValid(vector, server.url(), clock))) {
          wrong.append("\n").append(vector.get("name"));
        }
      }
    }
    equal("the list of wrong cases of " + cases, "", wrong.toString());
    System.out.println(cases + " vectors");
  }

  @SuppressWarnings("unchecked")
  private static boolean isValid(Map<?, ?> vector, String url, TestClock clock) throws Exception {
    Verifier.Builder builder = Verifier.builder().clock(clock).secrets((List<String>) vector.get("secrets"));
    if (vector.get("keys") != null) {
      builder.keysUrl(url);
    }
    if (!"".equals(vector.get("origin"))) {
      builder.origin((String) vector.get("origin"));
    }
    Map<String, List<String>> headers = new HashMap<>();
    ((Map<String, String>) vector.get("headers")).forEach((name, value) -> headers.put(name, List.of(value)));
    byte[] body = Base64.getDecoder().decode((String) vector.get("body"));
    try {
      builder.build().verify(new Request((String) vector.get("method"), (String) vector.get("url"), headers, body));
      return true;
    } catch (InvalidMessageException e) {
      return false;
    }
  }

  static void refusesSettings() {
    String secret = "whsec_" + Base64.getEncoder().encodeToString(new byte[24]);
    for (String bad : List.of("", "whsec_", "whsec_" + Base64.getEncoder().encodeToString(new byte[23]), "whsec_%%%", secret + "?")) {
      IllegalArgumentException e = throwing(bad, IllegalArgumentException.class, () -> Verifier.ofSecrets(secret, bad));
      equal("the secret in the message", false, bad.length() > 6 && e.toString().contains(bad.substring(6)));
    }
    throwing(IllegalArgumentException.class, () -> Verifier.builder().build());
    throwing(IllegalArgumentException.class, () -> Verifier.ofSecrets());
    throwing(IllegalArgumentException.class, () -> Verifier.builder().secrets(List.of(secret)).origin("https://a.example").build());
    throwing(IllegalArgumentException.class, () -> Verifier.builder().keysUrl("keys").build());
    for (String origin : List.of("", "a.example", "https://", "ftp://a.example", "https://a.example/", "https://a.example?", "https://a b")) {
      throwing(origin, IllegalArgumentException.class, () -> Verifier.builder().keysUrl("https://k.example/").origin(origin).build());
    }
  }

  /** The URIs that the daemon signs: see internal/httpsig. */
  static void targetUri() {
    Map.ofEntries(
            Map.entry("https://a.example", "https://a.example/"),
            Map.entry("https://a.example?b=/", "https://a.example/?b=/"),
            Map.entry("https://a.example#b", "https://a.example/"),
            Map.entry("HTTPS://A.Example/B?C", "https://a.example/B?C"),
            Map.entry("https://a.example:443/", "https://a.example/"),
            Map.entry("http://a.example:80/", "http://a.example/"),
            Map.entry("https://a.example:80/", "https://a.example:80/"),
            Map.entry("https://a.example:/", "https://a.example/"),
            Map.entry("https://b\u00fccher.example:8443/", "https://xn--bcher-kva.example:8443/"),
            Map.entry("https://[2001:DB8::443]:443/", "https://[2001:db8::443]/"),
            Map.entry("https://[fe80::1%25eth0]:8443/", "https://[fe80::1]:8443/"),
            Map.entry("https://a.example//b/../c/.", "https://a.example//b/../c/."),
            Map.entry("https://a.example/b%2fc%2F%7e~?g=%2f&g=+&h[]=1", "https://a.example/b%2fc%2F%7e~?g=%2f&g=+&h[]=1"))
        .forEach((url, want) -> equal(url, want, MessageSignature.targetUri(url)));
    for (String url : List.of("", "/", "a.example/b", "://", "https://", "https:///b", "https://?b", "ftp://a.example/", "https://a.example/b c",
        "https://a.example/\u00fc", "https://a.example/b\n", "https://:443/", "https://a b/")) {
      equal(url, null, MessageSignature.targetUri(url));
    }
  }

  /** Of a header in two lines, different programs read different ones. */
  static void refusesRepeatedHeaders() throws Exception {
    TestClock clock = new TestClock(InboxTest.NOW);
    Verifier verifier = Verifier.builder().secrets(List.of(InboxTest.SECRET)).clock(clock).tolerance(Duration.ofSeconds(10)).build();
    Request good = InboxTest.signed("pay-1", "{}");
    verifier.verify(good);
    for (String name : List.of("webhook-id", "webhook-timestamp", "webhook-signature")) {
      Map<String, List<String>> headers = new HashMap<>(good.headers());
      headers.put(name, List.of(good.header(name), good.header(name)));
      throwing(InvalidMessageException.class, () -> verifier.verify(new Request("POST", "/", headers, good.body())));
    }
    clock.advance(Duration.ofMillis(10_001));
    throwing(InvalidMessageException.class, () -> verifier.verify(good));
  }

  /** Of many v1a signatures, 16 are tried, as in the other libraries. */
  static void triesSixteenSignatures() throws Exception {
    KeyPair keys = KeyPairGenerator.getInstance("Ed25519").generateKeyPair();
    byte[] spki = keys.getPublic().getEncoded(); // its last 32 bytes are the key
    String x = Base64.getUrlEncoder().withoutPadding().encodeToString(Arrays.copyOfRange(spki, spki.length - 32, spki.length));
    Signature signer = Signature.getInstance("Ed25519");
    signer.initSign(keys.getPrivate());
    signer.update(("pay-1." + InboxTest.NOW + ".{}").getBytes(StandardCharsets.UTF_8));
    String good = "v1a," + Base64.getEncoder().encodeToString(signer.sign());
    String other = "v1a," + "A".repeat(86) + "== ";
    try (TestServer server = new TestServer().answer(200, "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"a\",\"x\":\"" + x + "\"}]}")) {
      Verifier verifier = Verifier.builder().clock(new TestClock(InboxTest.NOW)).keysUrl(server.url()).build();
      Request message = InboxTest.signed("pay-1", "{}");
      verifier.verify(InboxTest.with(message, "webhook-signature", other.repeat(15) + good));
      throwing(UnknownKeyException.class, () -> verifier.verify(InboxTest.with(message, "webhook-signature", other.repeat(16) + good)));
    }
  }

  /** A stranger's message must not cost much: quadratic time would take minutes here. */
  static void takesLinearTime() throws Exception {
    String spaces = " ".repeat(300_000);
    Map<String, List<String>> headers = new HashMap<>();
    for (String name : List.of("content-digest", "webhook-id", "webhook-timestamp")) {
      headers.put(name, List.of("a" + spaces + "a"));
    }
    headers.put("content-type", List.of("text/plain"));
    headers.put("signature", List.of("a=:AAAA:"));
    headers.put("webhook-signature", List.of(("v1a," + "A".repeat(86) + "== ").repeat(3_000)));
    String covered = "(\"@method\" \"@target-uri\" \"content-digest\" \"content-type\" \"webhook-id\" \"webhook-timestamp\")";
    String parameters = ";created=" + InboxTest.NOW + ";expires=" + InboxTest.NOW + ";keyid=\"a\";alg=\"ed25519\";tag=\"webhook\"";
    headers.put("signature-input", List.of("a=" + covered + parameters + ", b=(" + "%\"\" ".repeat(80_000) + ")"));
    try (TestServer server = new TestServer().answer(200, KeySetTest.SET)) {
      Verifier.Builder builder = Verifier.builder().clock(new TestClock(InboxTest.NOW)).keysUrl(server.url());
      throwing(InvalidMessageException.class, () -> builder.build().verify(new Request("POST", "/", headers, new byte[0])));
      headers.put("webhook-id", List.of("a"));
      headers.put("webhook-timestamp", List.of("" + InboxTest.NOW));
      throwing(UnknownKeyException.class, () -> builder.build().verify(new Request("POST", "/", headers, new byte[0])));
      builder.origin("https://a.example");
      throwing(InvalidMessageException.class, () -> builder.build().verify(new Request("POST", "/", headers, new byte[0])));
    }
  }
}
