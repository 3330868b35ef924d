package io.spendhook;

import java.math.BigInteger;
import java.security.AlgorithmParameters;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PublicKey;
import java.security.Signature;
import java.security.spec.ECFieldFp;
import java.security.spec.ECGenParameterSpec;
import java.security.spec.ECParameterSpec;
import java.security.spec.ECPoint;
import java.security.spec.ECPublicKeySpec;
import java.security.spec.EdECPoint;
import java.security.spec.EdECPublicKeySpec;
import java.security.spec.NamedParameterSpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/**
 * A public key of a JWK Set (RFC 7517): ed25519 (RFC 8037) or P-256 (RFC 7518, section 6.2.1).
 *
 * @param id the kid; "" if it has none
 * @param algorithm the one algorithm that it is used with, by its name in RFC 9421
 * @param key the key
 */
record Jwk(String id, String algorithm, PublicKey key) {
  static final String ED25519 = "ed25519";
  static final String ES256 = "ecdsa-p256-sha256";

  private static final int COORDINATE = 32; // bytes
  private static final int COORDINATE_TEXT = 43; // characters of base64url without padding
  private static final int SIGNATURE = 64; // bytes, of both algorithms

  /** Reads a member of a JWK Set; returns null if it is no key to verify signatures with. */
  static Jwk of(Map<?, ?> members) {
    if (!oneOf(members.get("use"), "sig") || !(members.get("x") instanceof String x)) {
      return null;
    }
    String id = members.get("kid") instanceof String kid ? kid : "";
    Object kind = List.of(String.valueOf(members.get("kty")), String.valueOf(members.get("crv")));
    try {
      if (kind.equals(List.of("OKP", "Ed25519")) && oneOf(members.get("alg"), "EdDSA", "Ed25519")) {
        return new Jwk(id, ED25519, ed25519(coordinate(x)));
      }
      if (kind.equals(List.of("EC", "P-256")) && oneOf(members.get("alg"), "ES256") && members.get("y") instanceof String y) {
        return new Jwk(id, ES256, p256(coordinate(x), coordinate(y)));
      }
    } catch (GeneralSecurityException | IllegalArgumentException e) {
      return null; // as unknown as a key that is not there
    }
    return null;
  }

  private static boolean oneOf(Object given, String... allowed) {
    return given == null || "".equals(given) || Arrays.asList(allowed).contains(given);
  }

  private static byte[] coordinate(String text) {
    byte[] raw = Base64.getUrlDecoder().decode(text);
    // The decoder ignores stray bits at the end.
    if (text.length() != COORDINATE_TEXT || raw.length != COORDINATE
        || !Base64.getUrlEncoder().withoutPadding().encodeToString(raw).equals(text)) {
      throw new IllegalArgumentException("a coordinate is not base64url of 32 bytes");
    }
    return raw;
  }

  private static PublicKey ed25519(byte[] x) throws GeneralSecurityException {
    byte[] y = new byte[COORDINATE]; // big-endian; the key is little-endian, with the sign of x in its highest bit
    for (int i = 0; i < COORDINATE; i++) {
      y[i] = x[COORDINATE - 1 - i];
    }
    boolean xOdd = (y[0] & 0x80) != 0;
    y[0] &= 0x7f;
    EdECPoint point = new EdECPoint(xOdd, new BigInteger(1, y));
    return KeyFactory.getInstance("EdDSA").generatePublic(new EdECPublicKeySpec(NamedParameterSpec.ED25519, point));
  }

  private static PublicKey p256(byte[] x, byte[] y) throws GeneralSecurityException {
    AlgorithmParameters parameters = AlgorithmParameters.getInstance("EC");
    parameters.init(new ECGenParameterSpec("secp256r1"));
    ECParameterSpec curve = parameters.getParameterSpec(ECParameterSpec.class);
    ECPoint point = new ECPoint(new BigInteger(1, x), new BigInteger(1, y));
    if (!onCurve(point, curve)) { // the key factory does not check it
      throw new GeneralSecurityException("the point is not on the curve");
    }
    return KeyFactory.getInstance("EC").generatePublic(new ECPublicKeySpec(point, curve));
  }

  private static boolean onCurve(ECPoint point, ECParameterSpec spec) {
    BigInteger p = ((ECFieldFp) spec.getCurve().getField()).getP();
    BigInteger x = point.getAffineX();
    BigInteger y = point.getAffineY();
    BigInteger right = x.pow(3).add(spec.getCurve().getA().multiply(x)).add(spec.getCurve().getB());
    return x.compareTo(p) < 0 && y.compareTo(p) < 0 && y.pow(2).subtract(right).mod(p).signum() == 0;
  }

  /** Reports whether the key has signed the message. An ECDSA signature is r and then s, of 32 bytes each. */
  boolean verifies(byte[] message, byte[] signature) {
    if (signature.length != SIGNATURE || (algorithm.equals(ES256) && hasZero(signature))) {
      return false;
    }
    try {
      Signature verifier = Signature.getInstance(algorithm.equals(ED25519) ? "Ed25519" : "SHA256withECDSAinP1363Format");
      verifier.initVerify(key);
      verifier.update(message);
      return verifier.verify(signature);
    } catch (GeneralSecurityException e) {
      return false; // bytes that cannot be a signature
    }
  }

  /** Some versions of Java 17 accept zeros for any message (CVE-2022-21449). */
  private static boolean hasZero(byte[] signature) {
    byte[] zero = new byte[COORDINATE];
    return Arrays.equals(signature, 0, COORDINATE, zero, 0, COORDINATE)
        || Arrays.equals(signature, COORDINATE, SIGNATURE, zero, 0, COORDINATE);
  }
}
