package io.spendhook;

import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.regex.Pattern;

/**
 * Receives events, and works on each of them exactly once as far as the database of its store is concerned: the work and the
 * note that the event was there are one transaction. It takes deliveries ({@link #handle}), and reads the feed for events
 * whose delivery has failed ({@link #catchUp}, {@link #fillGaps}, {@link #follow}). Safe for concurrent use; several processes may share a
 * store.
 *
 * @param <T> what the store gives to the work
 */
public final class Inbox<T> {
  /** The size of the largest body that is accepted, in bytes. No delivery is larger. */
  public static final int MAX_BODY = 1 << 20;

  private static final System.Logger LOG = System.getLogger(Inbox.class.getName());
  private static final Duration MIN_BACKOFF = Duration.ofSeconds(1);
  private static final Duration MAX_BACKOFF = Duration.ofMinutes(1);
  /** How long a delivery may come after the next one. */
  private static final Duration LATENESS = Duration.ofSeconds(5);
  /** How often the feed is read anyway: after the last event, no delivery says that it is missing. */
  private static final Duration CHECK_EVERY = Duration.ofMinutes(10);
  /** How often a refused delivery is reported at most: anybody can send such. */
  private static final Duration REPORT_EVERY = Duration.ofMinutes(1);
  private static final Pattern NUMBER = Pattern.compile("[0-9]{1,18}");

  private final Verifier verifier;
  private final Store<T> store;
  private final Work<T> work;
  private final Feed feed; // null: none
  private final String origin; // "": none
  private final Consumer<Throwable> onError;
  private final Consumer<Passed> passed;
  private final Pause pause;
  private final Chain chain = new Chain();
  private final AtomicReference<Long> reported = new AtomicReference<>(); // when a refused delivery was; null: never

  private Inbox(Builder<T> b, Pause pause) {
    verifier = b.verifier;
    store = b.store;
    work = b.work;
    feed = b.feed;
    origin = b.origin;
    onError = b.onError;
    passed = b.passed;
    this.pause = pause;
  }

  /**
   * Begins an inbox.
   *
   * @param verifier checks the signatures
   * @param store notes the ids
   * @param work what is done for each event, within 15 seconds. If it always throws for an event, the reading of the feed stops
   *     there: see {@link Work#run}
   * @param <T> what the store gives to the work
   * @return its settings
   */
  public static <T> Builder<T> builder(Verifier verifier, Store<T> store, Work<T> work) {
    return new Builder<>(verifier, store, work);
  }

  /**
   * Receives a delivery, or a handshake of CloudEvents. It does not throw.
   *
   * @param request the request, with the bytes of its body, or the first {@link #MAX_BODY} + 1 of them
   * @return the answer: 204 if the event is stored and was worked on, now or before; 200 with a text for a challenge; 401 if
   *     the message is not valid; 413 if the body is too large; 503 if the keys cannot be read; 500 if the store or the
   *     work failed. After a 5xx Spendhook sends the event again. A handshake from the {@link Builder#origin} is answered 200,
   *     any other request that is no POST 405
   */
  public Response handle(Request request) {
    if (!request.method().equals("POST")) {
      return handshake(request);
    }
    if (request.body().length > MAX_BODY) {
      return new Response(413, "the body is larger than 1 MiB");
    }
    try {
      verifier.verify(request);
    } catch (InvalidMessageException e) {
      reportRefusal(e);
      return new Response(401, "no valid signature"); // why not is of use to forgers only
    } catch (KeysUnavailableException e) {
      onError.accept(e);
      return new Response(503, "the keys cannot be read now");
    }
    String id = request.header("webhook-id");
    if (id == null || id.isBlank()) { // only other signatures than those of Spendhook cover such a header
      reportRefusal(new InvalidMessageException("webhook-id is missing, empty, or there more than once"));
      return new Response(401, "no valid webhook-id");
    }
    Event event = Event.of(id.strip(), number(request.header("webhook-sequence")), request.body());
    return receive(event, number(request.header("webhook-previous")));
  }

  /** Reports a refused delivery: with a wrong secret, nothing else would say why no event comes. */
  private void reportRefusal(InvalidMessageException reason) {
    LOG.log(System.Logger.Level.DEBUG, "a delivery was refused", reason);
    Long last = reported.get();
    long now = pause.nanos();
    if ((last == null || now - last >= REPORT_EVERY.toNanos()) && reported.compareAndSet(last, now)) {
      String report = "a delivery was refused: " + reason.getMessage() + "; check the signing secret";
      onError.accept(new InboxException(report, reason));
    }
  }

  /** Agrees to deliveries if the daemon asks for that (CloudEvents, HTTP 1.1 Web Hooks for Event Delivery 1.0, 4). */
  private Response handshake(Request request) {
    boolean agreed = !origin.isEmpty() && origin.equalsIgnoreCase(request.header("webhook-request-origin"));
    if (!agreed || !request.method().equals("OPTIONS")) {
      return new Response(405, "only POST is allowed", Map.of("Allow", "POST"));
    }
    return new Response(200, "", Map.of("Allow", "POST", "WebHook-Allowed-Origin", origin, "WebHook-Allowed-Rate", "*"));
  }

  private Response receive(Event event, Long previous) {
    String challenge = event.challenge();
    if (challenge != null) {
      return new Response(200, challenge);
    }
    try {
      if (once(event)) {
        chain.delivered(event.sequence(), previous);
      }
      return new Response(204, "");
    } catch (Throwable e) { // also an Error of the work: without an answer the sender would wait
      if (e instanceof InterruptedException) {
        Thread.currentThread().interrupt();
      }
      onError.accept(new InboxException("event " + event.id() + ": " + e, e));
      return new Response(500, "the event could not be stored");
    }
  }

  private static Long number(String header) {
    return header != null && NUMBER.matcher(header).matches() ? Long.valueOf(header) : null;
  }

  /** Notes and works on an event unless it is known. */
  private boolean once(Event event) throws Exception {
    return store.transaction(
        transaction -> {
          if (!transaction.add(event.id(), event.sequence())) {
            return false;
          }
          work.run(event, transaction.unwrap());
          return true;
        });
  }

  /**
   * Reads the feed from where the last reading ended to its end, and works on the events that the inbox lacks. It reads from
   * the start if Spendhook has lost events that were read, in a failover. Deliveries may arrive meanwhile.
   *
   * @return how many events were missing
   * @throws InboxException if the store, the work or {@link Builder#passed} failed; the next call reads that page again
   * @throws IOException if the feed cannot be read; an {@link ApiException} if the answer is an error
   * @throws InterruptedException if the thread is interrupted
   * @throws IllegalStateException if the inbox has no feed
   */
  public CaughtUp catchUp() throws InboxException, IOException, InterruptedException {
    Reading reading = new Reading();
    boolean more = true;
    while (more) {
      more = page(Duration.ZERO, reading);
    }
    return reading.found;
  }

  /**
   * Catches up, and then again when the event that a delivery names as the one before it has not come within 5 seconds, when
   * a delivery names none, and every 10 minutes, until the thread is interrupted. It survives errors as {@link #follow} does.
   * It costs less than that, with which every event comes twice, but it knows only of deliveries to this inbox: if several
   * processes share a store, each of them reads the feed while deliveries come.
   *
   * @throws InterruptedException when the thread is interrupted
   * @throws IllegalStateException if the inbox has no feed
   */
  public void fillGaps() throws InterruptedException {
    chain.watch(true);
    try {
      repeat(
          () -> {
            catchUp();
            awaitGap();
          });
    } finally {
      chain.watch(false);
    }
  }

  /** Returns when the feed is to be read. */
  private void awaitGap() throws InterruptedException {
    long end = pause.nanos() + CHECK_EVERY.toNanos();
    for (long left = CHECK_EVERY.toNanos(); left > 0; left = end - pause.nanos()) {
      long asked = chain.awaitHighest(left / 1_000_000);
      if (asked == 0) { // the time is over
        return;
      }
      pause.sleep(LATENESS);
      if (chain.missing(asked)) {
        return;
      }
    }
  }

  /**
   * Catches up, and then waits for new events in the feed and works on those that no delivery has brought, until the thread is
   * interrupted. After an error it waits for a second, and longer after each further one, up to a minute. It is for a receiver
   * that gets no deliveries; one that does runs {@link #fillGaps}.
   *
   * @throws InterruptedException when the thread is interrupted
   * @throws IllegalStateException if the inbox has no feed
   */
  public void follow() throws InterruptedException {
    Duration wait = feed().longPoll();
    Reading reading = new Reading();
    repeat(() -> page(wait, reading));
  }

  /**
   * Lets the next reading begin at the start of the feed. Events that are known are not worked on again. Who only reads the feed
   * needs it after an operator retried what was QUARANTINED, or a CANCELLED delivery was replayed: the feed has their bodies
   * then. Call it again if a reading from the start was under way: that may have moved the cursor since.
   *
   * @throws InboxException if the store failed
   * @throws InterruptedException if the thread is interrupted
   */
  public void rewind() throws InboxException, InterruptedException {
    setCursor("");
  }

  /** Reads the feed in some way. */
  private interface Step {
    void run() throws InboxException, IOException, InterruptedException;
  }

  private void repeat(Step step) throws InterruptedException {
    Duration backoff = MIN_BACKOFF;
    while (true) {
      if (Thread.interrupted()) {
        throw new InterruptedException();
      }
      try {
        step.run();
        backoff = MIN_BACKOFF;
      } catch (InboxException | IOException e) {
        onError.accept(e);
        pause.sleep(longer(backoff, e));
        backoff = min(backoff.multipliedBy(2), MAX_BACKOFF);
      }
    }
  }

  /** Waits at least as long as the daemon says, but not longer than ever. */
  private static Duration longer(Duration backoff, Exception e) {
    Duration asked = e instanceof ApiException answer ? answer.retryAfter() : Duration.ZERO;
    return asked.compareTo(backoff) > 0 ? min(asked, MAX_BACKOFF) : backoff;
  }

  private static Duration min(Duration a, Duration b) {
    return a.compareTo(b) < 0 ? a : b;
  }

  private Feed feed() {
    if (feed == null) {
      throw new IllegalStateException("the inbox has no feed");
    }
    return feed;
  }

  /** A reading of the feed, of one page or more. */
  private static final class Reading {
    CaughtUp found = new CaughtUp(0, 0, 0);
    boolean whole; // it began at the start, where it is no news that the service no longer keeps some events
  }

  /** Reads a page, and works on it. Returns whether to read on at once. */
  private boolean page(Duration wait, Reading reading) throws InboxException, IOException, InterruptedException {
    long before = chain.reading();
    Feed.Page page = read(feed(), cursor(), wait);
    reading.whole |= page.from().isEmpty();
    reading.found = reading.found.plus(take(page));
    if (page.forgotten() > 0 && !reading.whole) {
      String lost = page.forgotten() + " events since the last reading are no longer kept by the service";
      onError.accept(new InboxException(lost, null));
    }
    if (page.moved()) { // after all events of the page, so that none is skipped
      moveCursor(page.from(), page.cursor());
    }
    if (!page.more()) {
      reading.whole = false;
      chain.read(before, page.next());
    }
    return page.more();
  }

  private String cursor() throws InboxException, InterruptedException {
    return stored("read the cursor", Store.Transaction::cursor);
  }

  /** Reads the page at a cursor; the first one if the events up to the cursor are no longer those of the feed. */
  private Feed.Page read(Feed from, String cursor, Duration wait)
      throws InboxException, IOException, InterruptedException {
    try {
      return from.read(cursor, wait);
    } catch (ApiException e) {
      if (cursor.isEmpty() || !e.code().equals("FEED_CHANGED")) {
        throw e;
      }
      setCursor("");
      return from.read("", wait);
    }
  }

  /** Stores a cursor, unless another one was stored while the page was read: only at the first page a rewind is undone. */
  private void moveCursor(String begin, String end) throws InboxException, InterruptedException {
    if (cursor().equals(begin)) { // in a transaction of its own, see below
      setCursor(end);
    }
  }

  private void setCursor(String cursor) throws InboxException, InterruptedException {
    // Without reading it first: SQLite refuses a transaction that writes what another one has changed since it read.
    Store.Action<T, Void> set =
        transaction -> {
          transaction.setCursor(cursor);
          return null;
        };
    stored("store the cursor", set);
  }

  private CaughtUp take(Feed.Page page) throws InboxException, InterruptedException {
    long missing = 0;
    long gone = 0;
    for (Feed.Item item : page.items()) {
      try {
        if (item.body() == null) {
          gone++;
          passed.accept(new Passed(item.id(), item.sequence(), item.gone()));
        } else if (once(Event.of(item.id(), item.sequence(), item.body()))) {
          missing++;
        }
      } catch (InterruptedException e) {
        throw e;
      } catch (Throwable e) { // also an Error of the work: follow goes on
        throw new InboxException("event " + item.id() + ": " + e, e);
      }
    }
    return new CaughtUp(missing, gone, page.forgotten());
  }

  private <R> R stored(String what, Store.Action<T, R> action) throws InboxException, InterruptedException {
    try {
      return store.transaction(action);
    } catch (InterruptedException e) {
      throw e;
    } catch (Exception e) {
      throw new InboxException(what + ": " + e, e);
    }
  }

  /**
   * The settings of an {@link Inbox}.
   *
   * @param <T> what the store gives to the work
   */
  public static final class Builder<T> {
    private final Verifier verifier;
    private final Store<T> store;
    private final Work<T> work;
    private Feed feed;
    private String origin = "";
    private Consumer<Throwable> onError = e -> LOG.log(System.Logger.Level.WARNING, e.getMessage(), e);
    private Consumer<Passed> passed = event -> {};

    private Builder(Verifier verifier, Store<T> store, Work<T> work) {
      this.verifier = Objects.requireNonNull(verifier, "verifier");
      this.store = Objects.requireNonNull(store, "store");
      this.work = Objects.requireNonNull(work, "work");
    }

    /**
     * Sets the feed that {@link Inbox#catchUp}, {@link Inbox#fillGaps} and {@link Inbox#follow} read.
     *
     * @param feed the feed of the subscriber whose deliveries the inbox gets
     * @return this
     */
    public Builder<T> feed(Feed feed) {
      this.feed = feed;
      return this;
    }

    /**
     * Sets the origin from which a receiver of the format {@code cloudevents} agrees to deliveries. By default it agrees to
     * none, because the handshake is not signed.
     *
     * @param origin the host name of the daemon, as {@code WebHook-Request-Origin} has it: that of its {@code public_url}
     * @return this
     */
    public Builder<T> origin(String origin) {
      this.origin = Objects.requireNonNull(origin);
      return this;
    }

    /**
     * Sets what learns of the errors that {@link Inbox#handle} answers with a 5xx, and that {@link Inbox#fillGaps} and
     * {@link Inbox#follow} survive; at most once a minute, of a delivery that was answered 401, as all are with a wrong signing
     * secret; and, once for each page of the feed, of events since the last reading that the service no longer keeps. Reading
     * goes on after that.
     *
     * @param onError by default it writes a warning to {@link System.Logger}; it must not throw
     * @return this
     */
    public Builder<T> onError(Consumer<Throwable> onError) {
      this.onError = Objects.requireNonNull(onError);
      return this;
    }

    /**
     * Sets what is called for each event that the feed names without a body, also if the event was worked on before. It is called
     * again if a page is read again.
     *
     * @param passed by default nothing is called; it must be safe for concurrent use. What it throws is treated like an error
     *     of the reading
     * @return this
     */
    public Builder<T> passed(Consumer<Passed> passed) {
      this.passed = Objects.requireNonNull(passed);
      return this;
    }

    /**
     * Makes the inbox.
     *
     * @return the inbox
     */
    public Inbox<T> build() {
      return build(Pause.SYSTEM);
    }

    Inbox<T> build(Pause pause) {
      return new Inbox<>(this, pause);
    }
  }
}
