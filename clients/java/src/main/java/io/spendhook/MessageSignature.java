package io.spendhook;

import java.net.IDN;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * The HTTP message signature of a request (RFC 9421) with the tag {@code webhook}, and its digest (RFC 9530). It covers at
 * least the {@link #REQUIRED} components, and those {@link #OPTIONAL} ones that the request has; none twice, and none with
 * parameters.
 */
final class MessageSignature {
  private static final String TAG = "webhook";
  private static final List<String> OPTIONAL = List.of("webhook-sequence", "webhook-previous");
  private static final List<String> REQUIRED =
      List.of("@method", "@target-uri", "content-digest", "content-type", "webhook-id", "webhook-timestamp");
  /** How far the clocks of the daemon and the receiver may differ. */
  private static final Duration CLOCK_DIFFERENCE = Duration.ofMinutes(1);

  private static final Pattern FIELD_NAME = Pattern.compile("[a-z0-9!#$%&'*+.^_`|~-]+");
  private static final Pattern FIELD_VALUE = Pattern.compile("[\t -~]*");
  private static final Pattern VISIBLE = Pattern.compile("[!-~]+");
  private static final Pattern DIGITS = Pattern.compile("[0-9]{1,15}");

  private final byte[] base;
  private final byte[] signature;
  private final String keyId;
  private final String algorithm;

  private MessageSignature(byte[] base, byte[] signature, String keyId, String algorithm) {
    this.base = base;
    this.signature = signature;
    this.keyId = keyId;
    this.algorithm = algorithm;
  }

  /** Reads the signature, and checks all that needs no key: first, so that a stranger does not make us read keys. */
  static MessageSignature of(Request request, String origin, Instant now) throws InvalidMessageException {
    Map<String, StructuredFields.Member> inputs = dictionary(request, "signature-input");
    String label = label(inputs);
    StructuredFields.InnerList input = (StructuredFields.InnerList) inputs.get(label);
    byte[] signature = bytes(dictionary(request, "signature"), label);
    Map<String, Object> parameters = input.parameters();
    if (!(parameters.get("created") instanceof Long created)
        || !(parameters.get("expires") instanceof Long expires)
        || !(parameters.get("keyid") instanceof String keyId)
        || !(parameters.get("alg") instanceof String algorithm)) {
      throw new InvalidMessageException("created, expires, keyid and alg are required");
    }
    byte[] base = base(input, request, origin);
    checkTime(created, expires, request, now);
    checkDigest(request);
    return new MessageSignature(base, signature, keyId, algorithm);
  }

  /** Checks that the key with the id has signed the message. */
  void verify(List<Jwk> keys) throws InvalidMessageException {
    for (Jwk key : keys) {
      if (keyId.isEmpty() || !key.id().equals(keyId)) {
        continue;
      }
      if (!key.algorithm().equals(algorithm)) { // section 3.2, step 6
        throw new InvalidMessageException("alg is not the algorithm of the key");
      }
      if (!key.verifies(base, signature)) {
        throw new InvalidMessageException("the signature does not match the message");
      }
      return;
    }
    throw new UnknownKeyException("no published key has the keyid");
  }

  /** Returns the label of the one signature with the tag. */
  private static String label(Map<String, StructuredFields.Member> inputs) throws InvalidMessageException {
    List<String> labels = new ArrayList<>();
    inputs.forEach(
        (label, member) -> {
          if (member instanceof StructuredFields.InnerList list && TAG.equals(list.parameters().get("tag"))) {
            labels.add(label);
          }
        });
    if (labels.size() != 1) {
      throw new InvalidMessageException(labels.size() + " signatures have the tag " + TAG);
    }
    return labels.get(0);
  }

  private static Map<String, StructuredFields.Member> dictionary(Request request, String name) throws InvalidMessageException {
    try {
      return StructuredFields.dictionary(request.lines(name));
    } catch (StructuredFields.SyntaxException e) {
      throw new InvalidMessageException(name + ": " + e.getMessage());
    }
  }

  private static byte[] bytes(Map<String, StructuredFields.Member> dictionary, String key) throws InvalidMessageException {
    if (dictionary.get(key) instanceof StructuredFields.Item item && item.value() instanceof byte[] raw) {
      return raw;
    }
    throw new InvalidMessageException(key + " is not a byte sequence");
  }

  /** Builds what was signed (section 2.5). */
  private static byte[] base(StructuredFields.InnerList input, Request request, String origin) throws InvalidMessageException {
    StringBuilder base = new StringBuilder();
    Set<String> seen = new HashSet<>();
    for (StructuredFields.Item item : input.items()) {
      if (!(item.value() instanceof String name) || !item.parameters().isEmpty() || !seen.add(name)) {
        throw new InvalidMessageException("a component is not a string, has parameters, or is covered twice");
      }
      base.append('"').append(name).append("\": ").append(component(name, request, origin)).append('\n');
    }
    boolean covered = OPTIONAL.stream().allMatch(name -> request.lines(name).isEmpty() || seen.contains(name));
    if (!covered || !seen.containsAll(REQUIRED)) {
      throw new InvalidMessageException("a required component is not covered");
    }
    try {
      base.append("\"@signature-params\": ").append(StructuredFields.write(input));
    } catch (StructuredFields.SyntaxException e) {
      throw new InvalidMessageException("signature-input: " + e.getMessage());
    }
    return base.toString().getBytes(StandardCharsets.US_ASCII);
  }

  private static String component(String name, Request request, String origin) throws InvalidMessageException {
    if (name.equals("@method")) {
      return fieldValue(name, List.of(request.method()));
    }
    if (name.equals("@target-uri")) {
      // Another URL than a path could continue the host of the origin.
      String uri = request.url().startsWith("/") ? targetUri(origin + request.url()) : null;
      if (uri == null) {
        throw new InvalidMessageException("the URL is malformed");
      }
      return uri;
    }
    List<String> lines = request.lines(name);
    if (!FIELD_NAME.matcher(name).matches() || lines.isEmpty()) {
      throw new InvalidMessageException("a component is unknown, or missing: " + name);
    }
    return fieldValue(name, lines);
  }

  /** Combines the lines of a field (section 2.1). A line break in it could counterfeit the next component. */
  private static String fieldValue(String name, List<String> lines) throws InvalidMessageException {
    String value = String.join(", ", lines.stream().map(MessageSignature::trim).toList());
    if (!FIELD_VALUE.matcher(value).matches()) {
      throw new InvalidMessageException(name + " is not ASCII, or has control characters");
    }
    return value;
  }

  /** Removes white space around a value. A regular expression would take quadratic time for many spaces. */
  private static String trim(String line) {
    int start = 0;
    int end = line.length();
    while (start < end && isSpace(line.charAt(start))) {
      start++;
    }
    while (start < end && isSpace(line.charAt(end - 1))) {
      end--;
    }
    return line.substring(start, end);
  }

  private static boolean isSpace(char c) {
    return c == ' ' || c == '\t';
  }

  /**
   * Returns the component @target-uri of an absolute URL (section 2.2.2), or null if it is none: scheme and host in lower
   * case, and no default port. Path and query stay as they are.
   */
  static String targetUri(String url) {
    int separator = url.indexOf("://");
    if (separator < 0) {
      return null;
    }
    String scheme = url.substring(0, separator).toLowerCase(Locale.ROOT);
    String rest = url.substring(separator + 3).replaceFirst("#.*", "");
    int end = 0;
    while (end < rest.length() && rest.charAt(end) != '/' && rest.charAt(end) != '?') {
      end++;
    }
    String host = host(rest.substring(0, end), scheme.equals("https") ? ":443" : ":80");
    String target = rest.startsWith("/", end) ? rest.substring(end) : "/" + rest.substring(end);
    String uri = scheme + "://" + host + target;
    boolean valid = (scheme.equals("http") || scheme.equals("https")) && host != null && !host.isEmpty();
    return valid && VISIBLE.matcher(uri).matches() ? uri : null;
  }

  private static String host(String host, String defaultPort) {
    String name = host;
    if (!name.chars().allMatch(c -> c < 128)) {
      try {
        name = IDN.toASCII(name);
      } catch (IllegalArgumentException e) {
        return null;
      }
    }
    name = name.toLowerCase(Locale.ROOT).replaceFirst("%[^\\]]*\\]", "]"); // a zone is never sent (RFC 6874)
    if (name.endsWith(":")) {
      name = name.substring(0, name.length() - 1);
    }
    return name.endsWith(defaultPort) ? name.substring(0, name.length() - defaultPort.length()) : name;
  }

  private static void checkTime(long created, long expires, Request request, Instant now) throws InvalidMessageException {
    long tolerance = CLOCK_DIFFERENCE.toMillis();
    long millis = now.toEpochMilli(); // created and expires have 15 digits at most, so nothing overflows
    if (created * 1000 - millis > tolerance || millis - expires * 1000 > tolerance) {
      throw new InvalidMessageException("the signature is not valid yet, or not any more");
    }
    String timestamp = request.header("webhook-timestamp");
    if (timestamp == null || !DIGITS.matcher(trim(timestamp)).matches()) {
      throw new InvalidMessageException("webhook-timestamp is malformed");
    }
    if (Math.abs(Long.parseLong(trim(timestamp)) - created) * 1000 > tolerance) {
      throw new InvalidMessageException("webhook-timestamp is not the time of the signature");
    }
  }

  /** Checks the body against Content-Digest. A sha-512 must match too; other algorithms are ignored. */
  private static void checkDigest(Request request) throws InvalidMessageException {
    Map<String, StructuredFields.Member> digests = dictionary(request, "content-digest");
    checkSum("SHA-256", bytes(digests, "sha-256"), request.body());
    if (digests.containsKey("sha-512")) {
      checkSum("SHA-512", bytes(digests, "sha-512"), request.body());
    }
  }

  private static void checkSum(String algorithm, byte[] want, byte[] body) throws InvalidMessageException {
    try {
      if (!MessageDigest.isEqual(MessageDigest.getInstance(algorithm).digest(body), want)) {
        throw new InvalidMessageException("content-digest is not that of the body");
      }
    } catch (GeneralSecurityException e) {
      throw new IllegalStateException(e); // Java has both
    }
  }
}
