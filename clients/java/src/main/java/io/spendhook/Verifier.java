package io.spendhook;

import java.net.URI;
import java.net.http.HttpClient;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import javax.crypto.spec.SecretKeySpec;

/**
 * Verifies the signatures of deliveries. Its settings say which kinds a message must have; each of them must be there and
 * valid:
 *
 * <ul>
 *   <li>secrets: a {@code v1} signature of Standard Webhooks 1.0.0, by one of them;
 *   <li>a URL of keys and an origin: an HTTP message signature (RFC 9421) by one of the keys;
 *   <li>a URL of keys without an origin: a {@code v1a} signature of Standard Webhooks by one of the keys.
 * </ul>
 *
 * <p>A valid message can be sent again by whoever has recorded it: {@link Inbox} drops repeats. Safe for concurrent use.
 */
public final class Verifier {
  private final List<SecretKeySpec> secrets;
  private final KeySet keys; // null: none
  private final String origin; // null: none
  private final Duration tolerance;
  private final Clock clock;

  private Verifier(Builder b) {
    secrets = b.secrets.stream().map(StandardSignature::secret).toList();
    if (secrets.isEmpty() && b.keysUrl == null) {
      throw new IllegalArgumentException("a verifier needs secrets, or the URL of keys");
    }
    if (b.origin != null && b.keysUrl == null) {
      throw new IllegalArgumentException("an origin is of use only with the URL of keys");
    }
    if (b.origin != null && (MessageSignature.targetUri(b.origin) == null || b.origin.matches(".*[/?#]"))) {
      throw new IllegalArgumentException("the origin must be like https://hooks.example.com, without a slash at its end");
    }
    if (b.tolerance.isNegative()) {
      throw new IllegalArgumentException("the tolerance is negative");
    }
    keys = b.keysUrl == null ? null : new KeySet(b.keysUrl, new Http(b.httpClient), b.clock);
    origin = b.origin;
    tolerance = b.tolerance;
    clock = b.clock;
  }

  /**
   * Begins a verifier.
   *
   * @return its settings
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Makes a verifier of {@code v1} signatures.
   *
   * @param secrets the signing secret of the subscriber; two while it rotates
   * @return the verifier
   * @throws IllegalArgumentException if there is none, or one is not base64 of at least 24 bytes
   */
  public static Verifier ofSecrets(String... secrets) {
    return builder().secrets(List.of(secrets)).build();
  }

  /**
   * Returns if the message is valid.
   *
   * @param request the message
   * @throws InvalidMessageException if it is not: answer 401
   * @throws KeysUnavailableException if the keys cannot be read now: answer 503
   */
  public void verify(Request request) throws InvalidMessageException, KeysUnavailableException {
    Instant now = clock.instant();
    StandardSignature standard =
        !secrets.isEmpty() || origin == null ? StandardSignature.of(request, tolerance, now) : null;
    if (!secrets.isEmpty()) { // first: it reads no keys
      standard.verify(secrets);
    }
    if (origin != null) {
      verifyWithKeys(MessageSignature.of(request, origin, now)::verify);
    } else if (keys != null) {
      verifyWithKeys(standard::verifyKeys);
    }
  }

  private interface Check {
    void with(List<Jwk> keys) throws InvalidMessageException;
  }

  private void verifyWithKeys(Check check) throws InvalidMessageException, KeysUnavailableException {
    try {
      check.with(keys.known());
    } catch (UnknownKeyException e) { // of a rotation since the keys were read
      check.with(keys.again());
    }
  }

  /** The settings of a {@link Verifier}. */
  public static final class Builder {
    private final List<String> secrets = new ArrayList<>();
    private URI keysUrl;
    private String origin;
    private Duration tolerance = Duration.ofMinutes(5);
    private Clock clock = Clock.systemUTC();
    private HttpClient httpClient;

    private Builder() {}

    /**
     * Adds secrets. A {@code v1} signature by any of them is then demanded.
     *
     * @param secrets secrets of subscribers, with {@code whsec_} or without
     * @return this
     */
    public Builder secrets(Collection<String> secrets) {
      this.secrets.addAll(secrets);
      return this;
    }

    /**
     * Says where the public keys are. They are kept for as long as the daemon says, at least five minutes, and read again
     * for an unknown key, every five seconds at most.
     *
     * @param url {@code https://…/.well-known/webhook-keys/{companyUuid}} of the daemon
     * @return this
     */
    public Builder keysUrl(String url) {
      this.keysUrl = URI.create(url);
      return this;
    }

    /**
     * Demands an HTTP message signature instead of a {@code v1a} signature.
     *
     * @param origin the start of the callback URL, such as {@code https://hooks.example.com}. It must come from your
     *     settings: a message to another receiver, sent on with its Host header, would be valid
     * @return this
     */
    public Builder origin(String origin) {
      this.origin = Objects.requireNonNull(origin);
      return this;
    }

    /**
     * Sets how far webhook-timestamp may be off for a signature of Standard Webhooks.
     *
     * @param tolerance 5 minutes by default
     * @return this
     */
    public Builder tolerance(Duration tolerance) {
      this.tolerance = Objects.requireNonNull(tolerance);
      return this;
    }

    /**
     * Sets the clock.
     *
     * @param clock by default that of the system
     * @return this
     */
    public Builder clock(Clock clock) {
      this.clock = Objects.requireNonNull(clock);
      return this;
    }

    /**
     * Sets the client that reads the keys.
     *
     * @param client one that follows no redirects
     * @return this
     */
    public Builder httpClient(HttpClient client) {
      this.httpClient = client;
      return this;
    }

    /**
     * Makes the verifier.
     *
     * @return the verifier
     * @throws IllegalArgumentException if nothing is demanded, a secret has fewer than 24 bytes, or a setting is malformed
     */
    public Verifier build() {
      return new Verifier(this);
    }
  }
}
