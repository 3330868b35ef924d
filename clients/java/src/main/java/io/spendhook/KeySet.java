package io.spendhook;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpRequest;
import java.text.ParseException;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The keys that a daemon publishes. Safe for concurrent use: one thread reads, and those that need the result wait. */
final class KeySet {
  private static final Duration MIN_LIFE = Duration.ofMinutes(5);
  private static final Duration MAX_LIFE = Duration.ofDays(1);
  /** The least time between two reads, after an unknown key or a failure: anybody can send unknown keys. */
  private static final Duration PAUSE = Duration.ofSeconds(5);

  private static final Duration TIMEOUT = Duration.ofSeconds(5);
  private static final int MAX_SIZE = 1 << 16;
  private static final Pattern MAX_AGE = Pattern.compile("(?i)(?:^|,)[ \t]*max-age=([0-9]{1,9})[ \t]*(?:,|$)");

  private record Read(List<Jwk> keys, Instant at, Duration life) {
    boolean isYounger(Duration age, Instant now) {
      return isWithin(at, age, now);
    }
  }

  /** A time that the clock has not reached yet is not: the clock has jumped back, for nobody knows how long. */
  private static boolean isWithin(Instant begin, Duration age, Instant now) {
    Duration passed = Duration.between(begin, now);
    return !passed.isNegative() && passed.compareTo(age) < 0;
  }

  private final HttpRequest request;
  private final Http http;
  private final Clock clock;
  private volatile Read read;
  private Instant failedAt;
  private KeysUnavailableException failure;

  KeySet(URI url, Http http, Clock clock) {
    this.request = HttpRequest.newBuilder(url).build();
    this.http = http;
    this.clock = clock;
  }

  /** Returns the keys. It reads them if they are too old, so that a revoked key is not accepted for longer. */
  List<Jwk> known() throws KeysUnavailableException {
    Read last = read; // without the lock: unknown keys of strangers do not delay other messages
    return last != null && last.isYounger(last.life(), clock.instant()) ? last.keys() : read(null);
  }

  /** Returns the keys after a signature by an unknown one. It reads them unless that was done just now. */
  List<Jwk> again() throws KeysUnavailableException {
    return read(PAUSE);
  }

  private synchronized List<Jwk> read(Duration life) throws KeysUnavailableException {
    Instant now = clock.instant();
    if (read != null && read.isYounger(life != null ? life : read.life(), now)) {
      return read.keys(); // of another thread
    }
    if (failure != null && isWithin(failedAt, PAUSE, now)) {
      throw new KeysUnavailableException(failure.getMessage(), failure);
    }
    try {
      read = readNow(now);
      failure = null;
      return read.keys();
    } catch (IOException | ParseException e) {
      failure = new KeysUnavailableException("read the published keys: " + e.getMessage(), e);
      failedAt = clock.instant(); // the read may have taken as long as the pause
      throw failure;
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new KeysUnavailableException("read the published keys: interrupted", e);
    }
  }

  private Read readNow(Instant now) throws IOException, InterruptedException, ParseException {
    Http.Answer answer = http.send(request, TIMEOUT, MAX_SIZE);
    if (answer.status() != 200) {
      throw new IOException("the answer is " + answer.status());
    }
    if (!(Json.parse(answer.body()) instanceof Map<?, ?> set) || !(set.get("keys") instanceof List<?> members)) {
      throw new IOException("the answer is not a JWK Set");
    }
    List<Jwk> keys =
        members.stream().filter(Map.class::isInstance).map(m -> Jwk.of((Map<?, ?>) m)).filter(Objects::nonNull).toList();
    return new Read(keys, now, life(String.join(",", answer.headers().allValues("Cache-Control"))));
  }

  private static Duration life(String cacheControl) {
    Matcher maxAge = MAX_AGE.matcher(cacheControl);
    Duration life = maxAge.find() ? Duration.ofSeconds(Long.parseLong(maxAge.group(1))) : MIN_LIFE;
    life = life.compareTo(MIN_LIFE) < 0 ? MIN_LIFE : life;
    return life.compareTo(MAX_LIFE) > 0 ? MAX_LIFE : life;
  }
}
