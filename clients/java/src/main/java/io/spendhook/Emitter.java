package io.spendhook;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.DoubleSupplier;
import java.util.stream.IntStream;
import javax.net.ssl.SSLHandshakeException;
import javax.net.ssl.SSLPeerUnverifiedException;

/**
 * Emits events. It sends them again, byte for byte, where that may help: after an error of the connection, no answer within 10
 * s, and the answers 429, 502, 503 and 504. A repeat does no harm, since Spendhook knows each event by its id. The token needs
 * the scope {@code events:write}. Safe for concurrent use.
 */
public final class Emitter {
  private static final String PATH = "/api/v1/events";
  private static final int MAX_EVENTS = 1000; // of an array
  private static final int MAX_BYTES = 4 << 20; // of an array: half of what the daemon accepts
  private static final Duration TIMEOUT = Duration.ofSeconds(10);
  private static final long MIN_BACKOFF = 500; // ms
  private static final long MAX_BACKOFF = 30_000; // ms
  private static final Set<Integer> PASSING = Set.of(429, 502, 503, 504);

  private final Api api;
  private final String company; // null: none
  private final Duration retryFor;
  private final Pause pause;
  private final DoubleSupplier chance;

  private Emitter(Builder b, Pause pause, DoubleSupplier chance) {
    api = b.api();
    company = b.company;
    retryFor = b.retryFor;
    this.pause = pause;
    this.chance = chance;
  }

  /**
   * Begins an emitter.
   *
   * @return its settings
   */
  public static Builder builder() {
    return new Builder();
  }

  /**
   * Sends an event.
   *
   * @param event the event
   * @return its result: ACCEPTED or DUPLICATE
   * @throws RejectedException if the event was refused for good
   * @throws EmitException if it could not be sent within the time for retries; it may be stored nevertheless
   * @throws InterruptedException if the thread is interrupted; the event may be stored nevertheless
   */
  public Result send(NewEvent event) throws RejectedException, EmitException, InterruptedException {
    Result result = sendAll(List.of(event)).get(0);
    if (!result.stored()) {
      throw new RejectedException(result);
    }
    return result;
  }

  /**
   * Sends events, in arrays of at most 1,000 events and 4 MiB, one after the other. An array that is too large for a proxy is
   * divided. An event that is too large even alone, or that cannot be read (MALFORMED_BODY), is REJECTED, and the others go on.
   *
   * @param events the events
   * @return the result of each, in their order. Some may be CONFLICT or REJECTED, which does not affect the others
   * @throws EmitException if an array, or a part of it, could not be sent within the time for retries, which begins with each
   *     array; it has the results so far
   * @throws InterruptedException if the thread is interrupted
   */
  public List<Result> sendAll(Collection<NewEvent> events) throws EmitException, InterruptedException {
    List<NewEvent> list = List.copyOf(events);
    List<byte[]> encoded = list.stream().map(e -> e.json(company).getBytes(StandardCharsets.UTF_8)).toList();
    Batch batch = new Batch(list, encoded);
    int start = 0;
    while (start < list.size()) {
      int end = start;
      long size = 1; // the brackets, less one comma
      while (end < list.size() && end - start < MAX_EVENTS && (end == start || size + encoded.get(end).length + 1 <= MAX_BYTES)) {
        size += encoded.get(end++).length + 1;
      }
      batch.send(IntStream.range(start, end).boxed().toList(), pause.nanos() + retryFor.toNanos());
      start = end;
    }
    return Arrays.asList(batch.results);
  }

  /** The events of one call, with their results. */
  private final class Batch {
    final List<NewEvent> events;
    final List<byte[]> encoded;
    final Result[] results;

    Batch(List<NewEvent> events, List<byte[]> encoded) {
      this.events = events;
      this.encoded = encoded;
      results = new Result[events.size()];
    }

    /** Sends some events as an array until each has a result for good. */
    void send(List<Integer> places, long deadline) throws EmitException, InterruptedException {
      for (int attempt = 0; !places.isEmpty(); attempt++) {
        Duration asked = Duration.ZERO;
        IOException failure = null;
        try {
          places = place(places, api.post(PATH, array(places), TIMEOUT));
          asked = longestWait(places);
        } catch (IOException e) {
          if (e instanceof ApiException answer && answer.blamesEvents()) {
            divide(places, answer, deadline);
            return;
          }
          failure = e;
          asked = e instanceof ApiException answer ? answer.retryAfter() : asked;
        }
        if (!places.isEmpty()) {
          waitFor(asked, attempt, deadline, failure);
          places.forEach(place -> results[place] = null); // until the next answer it is not known
        }
      }
    }

    private byte[] array(List<Integer> places) {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      char separator = '[';
      for (int place : places) {
        out.write(separator);
        out.writeBytes(encoded.get(place));
        separator = ',';
      }
      out.write(']');
      return out.toByteArray();
    }

    /** Notes the results of an answer; returns the places of the events that may be accepted later. */
    private List<Integer> place(List<Integer> places, Object answer) throws IOException {
      List<Integer> again = new ArrayList<>();
      try {
        List<?> items = (List<?>) ((Map<?, ?>) answer).get("results");
        if (items.size() != places.size()) {
          throw new IllegalArgumentException("the answer has " + items.size() + " results for " + places.size() + " events");
        }
        for (int i = 0; i < items.size(); i++) {
          int place = places.get(i);
          results[place] = Result.of(events.get(place).id(), (Map<?, ?>) items.get(i));
          if (results[place].passing()) {
            again.add(place);
          }
        }
      } catch (ClassCastException | NullPointerException | IllegalArgumentException | ArithmeticException e) {
        throw new Api.NotSpendhookException("the answer is not that of Spendhook; check the URL", e);
      }
      return again;
    }

    private Duration longestWait(List<Integer> places) {
      return places.stream().map(p -> results[p].error().retryAfter()).max(Duration::compareTo).orElse(Duration.ZERO);
    }

    /** Sends each half of a refused array. The refusal of one event is its result. */
    private void divide(List<Integer> places, ApiException answer, long deadline) throws EmitException, InterruptedException {
      int half = places.size() / 2;
      if (half > 0) {
        send(places.subList(0, half), deadline);
        send(places.subList(half, places.size()), deadline);
        return;
      }
      int place = places.get(0);
      String code = answer.code().equals(ApiException.NO_CODE) ? "PAYLOAD_TOO_LARGE" : answer.code(); // of a proxy
      Result.Error error = new Result.Error(code, answer.detail(), answer.fields(), null);
      results[place] = new Result(events.get(place).id(), Result.Status.REJECTED, error);
    }

    private void waitFor(Duration asked, int attempt, long deadline, IOException failure)
        throws EmitException, InterruptedException {
      Duration wait = asked.isZero() ? backoff(attempt, chance.getAsDouble()) : asked;
      boolean inTime = pause.nanos() + wait.toNanos() - deadline <= 0;
      if (inTime && (failure == null || mayPass(failure))) {
        pause.sleep(wait);
        return;
      }
      String why = failure == null ? "events are still refused" : text(failure);
      throw new EmitException("emit events: " + why, failure, Arrays.asList(results));
    }
  }

  /** Some exceptions of the JDK have no text. */
  private static String text(IOException e) {
    return e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
  }

  /** Half a second, doubled with each attempt, to 30 s; of this at least a half, so that senders do not come together. */
  static Duration backoff(int attempt, double chance) {
    long full = Math.min(MIN_BACKOFF << Math.min(attempt, 10), MAX_BACKOFF);
    return Duration.ofMillis((long) (full * (0.5 + chance / 2)));
  }

  private static boolean mayPass(IOException e) {
    if (e instanceof ApiException answer) {
      return PASSING.contains(answer.status());
    }
    // Waiting does not make a certificate valid.
    return !(e instanceof Api.NotSpendhookException
        || e instanceof SSLHandshakeException
        || e instanceof SSLPeerUnverifiedException);
  }

  /** The settings of an {@link Emitter}: a URL, and a token or credentials are required. */
  public static final class Builder extends Api.Settings<Builder> {
    private String company;
    private Duration retryFor = Duration.ofSeconds(60);

    private Builder() {}

    @Override
    Builder self() {
      return this;
    }

    /**
     * Sets the address of the daemon.
     *
     * @param url such as {@code https://spendhook.example.com}
     * @return this
     */
    public Builder url(String url) {
      return setUrl(url);
    }

    /**
     * Sets an access token.
     *
     * @param token the token
     * @return this
     */
    public Builder token(String token) {
      return setToken(token);
    }

    /**
     * Sets the credentials of an OAuth client, with which tokens are got when they are needed.
     *
     * @param clientId the id of the client
     * @param clientSecret its client secret
     * @return this
     */
    public Builder credentials(String clientId, String clientSecret) {
      return setCredentials(clientId, clientSecret, null);
    }

    /**
     * Sets the credentials of an OAuth client, and which of its scopes the tokens that they get have.
     *
     * @param clientId the id of the client
     * @param clientSecret its client secret
     * @param scope the scopes, separated by spaces; null for all of the client
     * @return this
     */
    public Builder credentials(String clientId, String clientSecret, String scope) {
      return setCredentials(clientId, clientSecret, scope);
    }

    /**
     * Sets the company of events that name none; not required if the token belongs to a company.
     *
     * @param uuid its UUID
     * @return this
     */
    public Builder company(String uuid) {
      this.company = uuid;
      return this;
    }

    /**
     * Sets for how long an array of events is sent again.
     *
     * @param time 60 s by default; zero for one attempt
     * @return this
     */
    public Builder retryFor(Duration time) {
      this.retryFor = Objects.requireNonNull(time);
      return this;
    }

    /**
     * Allows to send the token without TLS to a host that is not loopback, such as one in a private network.
     *
     * @param insecure false by default
     * @return this
     */
    public Builder insecure(boolean insecure) {
      return setInsecure(insecure);
    }

    /**
     * Sets the HTTP client, such as one with a client certificate.
     *
     * @param client one that follows no redirects
     * @return this
     */
    public Builder httpClient(HttpClient client) {
      return setHttpClient(client);
    }

    /**
     * Makes the emitter.
     *
     * @return the emitter
     * @throws IllegalArgumentException if a setting is malformed, or a token would be sent without TLS
     */
    public Emitter build() {
      return build(Pause.SYSTEM, () -> ThreadLocalRandom.current().nextDouble(), Clock.systemUTC());
    }

    Emitter build(Pause pause, DoubleSupplier chance, Clock clock) {
      setClock(clock);
      return new Emitter(this, pause, chance);
    }
  }
}
