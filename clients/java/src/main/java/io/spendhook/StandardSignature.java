package io.spendhook;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.regex.Pattern;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** The signatures of a message by Standard Webhooks 1.0.0: {@code v1} by secrets, {@code v1a} by ed25519 keys. */
final class StandardSignature {
  private static final String HMAC = "HmacSHA256";
  private static final String SECRET_PREFIX = "whsec_";
  private static final int MIN_SECRET = 24; // bytes; with an empty secret anybody can sign
  private static final int MAX_TRIED = 16; // v1a signatures of a message: anybody can send thousands, and each costs time
  private static final Pattern DIGITS = Pattern.compile("[0-9]{1,15}");
  private static final Pattern VISIBLE = Pattern.compile("[!-~]+");

  private final List<String> signatures;
  private final byte[] signed;

  private StandardSignature(List<String> signatures, byte[] signed) {
    this.signatures = signatures;
    this.signed = signed;
  }

  /** Decodes a secret. */
  static SecretKeySpec secret(String text) {
    byte[] key;
    try {
      key = Base64.getDecoder().decode(text.startsWith(SECRET_PREFIX) ? text.substring(SECRET_PREFIX.length()) : text);
    } catch (IllegalArgumentException e) { // its text has a part of the secret
      key = new byte[0];
    }
    if (key.length < MIN_SECRET) {
      throw new IllegalArgumentException("a secret must be whsec_ and base64 of at least " + MIN_SECRET + " bytes");
    }
    return new SecretKeySpec(key, HMAC);
  }

  /** Reads the headers of a message that was sent at most {@code tolerance} ago, or before its time. */
  static StandardSignature of(Request request, Duration tolerance, Instant now) throws InvalidMessageException {
    String id = request.header("webhook-id");
    String timestamp = request.header("webhook-timestamp");
    String signatures = request.header("webhook-signature");
    if (id == null || timestamp == null || signatures == null) {
      throw new InvalidMessageException("webhook-id, webhook-timestamp and webhook-signature must be there once");
    }
    if (!VISIBLE.matcher(id).matches() || !DIGITS.matcher(timestamp).matches()) {
      throw new InvalidMessageException("webhook-id or webhook-timestamp is malformed");
    }
    Duration age = Duration.between(Instant.ofEpochSecond(Long.parseLong(timestamp)), now).abs();
    if (age.compareTo(tolerance) > 0) {
      throw new InvalidMessageException("webhook-timestamp is too old, or in the future");
    }
    byte[] start = (id + "." + timestamp + ".").getBytes(StandardCharsets.US_ASCII);
    byte[] signed = Arrays.copyOf(start, start.length + request.body().length);
    System.arraycopy(request.body(), 0, signed, start.length, request.body().length);
    return new StandardSignature(Arrays.asList(signatures.split(" ")), signed);
  }

  /** Checks that one of the secrets has signed the message. */
  void verify(List<SecretKeySpec> secrets) throws InvalidMessageException {
    for (SecretKeySpec secret : secrets) {
      byte[] want = ("v1," + Base64.getEncoder().encodeToString(hmac(secret))).getBytes(StandardCharsets.US_ASCII);
      for (String signature : signatures) {
        if (MessageDigest.isEqual(signature.getBytes(StandardCharsets.UTF_8), want)) {
          return;
        }
      }
    }
    throw new InvalidMessageException("no v1 signature is that of a secret");
  }

  private byte[] hmac(SecretKeySpec secret) {
    try {
      Mac mac = Mac.getInstance(HMAC);
      mac.init(secret);
      return mac.doFinal(signed);
    } catch (GeneralSecurityException e) {
      throw new IllegalStateException(e); // each Java platform has it
    }
  }

  /** Checks that one of the ed25519 keys has signed the message. */
  void verifyKeys(List<Jwk> keys) throws InvalidMessageException {
    int tried = 0;
    for (String signature : signatures) {
      byte[] raw = signature.startsWith("v1a,") ? decoded(signature.substring(4)) : null;
      if (raw == null || ++tried > MAX_TRIED) {
        continue;
      }
      for (Jwk key : keys) {
        if (key.algorithm().equals(Jwk.ED25519) && key.verifies(signed, raw)) {
          return;
        }
      }
    }
    if (tried > 0) {
      throw new UnknownKeyException("no v1a signature is that of a published key");
    }
    throw new InvalidMessageException("the message has no v1a signature");
  }

  /** Returns the 64 bytes of an ed25519 signature, or null. */
  private static byte[] decoded(String text) {
    try {
      byte[] raw = Base64.getDecoder().decode(text);
      return raw.length == 64 ? raw : null;
    } catch (IllegalArgumentException e) {
      return null;
    }
  }
}
