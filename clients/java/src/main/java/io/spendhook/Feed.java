package io.spendhook;

import java.io.IOException;
import java.math.BigDecimal;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * The feed of a subscriber, from which an {@link Inbox} reads the events that it has missed. The token needs the scopes {@code
 * events:read} and {@code subscribers:read}. Safe for concurrent use.
 */
public final class Feed {
  private static final Duration TIMEOUT = Duration.ofSeconds(15); // beside the wait

  private final Api api;
  private final String path;
  private final Duration wait;

  private Feed(Builder b) {
    api = b.api();
    String subscriber = Objects.requireNonNull(b.subscriber, "subscriber");
    String company = b.company == null ? "" : "companyUuid=" + Api.encoded(b.company) + "&";
    path = "/api/v1/subscribers/" + Api.encoded(subscriber) + "/feed?" + company + "limit=" + b.limit + "&";
    wait = b.wait;
  }

  /**
   * Begins a feed.
   *
   * @return its settings
   */
  public static Builder builder() {
    return new Builder();
  }

  /** One event of a page; its body is null if the event is gone, and gone says why. */
  record Item(String id, long sequence, byte[] body, String gone) {}

  /** A page; from is the cursor of the request. */
  record Page(String from, List<Item> items, long next, String cursor, boolean more, long forgotten) {
    boolean moved() {
      return !cursor.equals(from);
    }
  }

  /** How long to wait for an event, when there is none. */
  Duration longPoll() {
    return wait;
  }

  /** Reads the page at a cursor; "" is the start. */
  Page read(String cursor, Duration wait) throws IOException, InterruptedException {
    String position = cursor.isEmpty() ? "after=0" : "cursor=" + Api.encoded(cursor);
    Object answer = api.get(path + position + "&wait=" + wait.toSeconds() + "s", wait.plus(TIMEOUT));
    try {
      Map<?, ?> page = (Map<?, ?>) answer;
      List<Item> items = new ArrayList<>();
      for (Object item : (List<?>) page.get("content")) {
        items.add(item((Map<?, ?>) item));
      }
      String reached = Objects.requireNonNull((String) page.get("cursor"));
      boolean more = (Boolean) page.get("more");
      if (more && reached.equals(cursor)) { // it would be read for ever
        throw new ClassCastException("cursor does not change");
      }
      return new Page(cursor, items, whole(page.get("next")), reached, more, whole(page.get("forgotten")));
    } catch (ClassCastException | NullPointerException | ArithmeticException e) {
      throw new Api.NotSpendhookException("the answer is not a page of a feed; check the URL", e);
    }
  }

  private static Item item(Map<?, ?> item) {
    String body = (String) item.get("body");
    String id = Objects.requireNonNull((String) item.get("id"));
    byte[] bytes = body == null ? null : body.getBytes(StandardCharsets.UTF_8);
    String gone = Objects.requireNonNullElse((String) item.get("gone"), "");
    return new Item(id, whole(item.get("sequence")), bytes, gone);
  }

  private static long whole(Object number) {
    return ((BigDecimal) number).longValueExact();
  }

  /** The settings of a {@link Feed}: a URL, a subscriber, and a token or credentials are required. */
  public static final class Builder extends Api.Settings<Builder> {
    private String subscriber;
    private String company;
    private int limit = 100;
    private Duration wait = Duration.ofSeconds(20);

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
     * Sets the subscriber.
     *
     * @param uuid its UUID
     * @return this
     */
    public Builder subscriber(String uuid) {
      this.subscriber = uuid;
      return this;
    }

    /**
     * Sets the company of the subscriber; required only if the token belongs to no company.
     *
     * @param uuid its UUID
     * @return this
     */
    public Builder company(String uuid) {
      this.company = uuid;
      return this;
    }

    /**
     * Sets how many events a page has at most.
     *
     * @param limit from 1 to 1,000; by default 100
     * @return this
     */
    public Builder limit(int limit) {
      if (limit < 1 || limit > 1000) {
        throw new IllegalArgumentException("a page has from 1 to 1,000 events");
      }
      this.limit = limit;
      return this;
    }

    /**
     * Sets how long {@link Inbox#follow} lets the daemon wait for an event.
     *
     * @param wait whole seconds from 1 s to 30 s; by default 20 s
     * @return this
     */
    public Builder longPoll(Duration wait) {
      if (wait.toSeconds() < 1 || wait.toSeconds() > 30) {
        throw new IllegalArgumentException("the wait is from 1 s to 30 s");
      }
      this.wait = wait;
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
     * Sets the HTTP client. The feed needs one with a client certificate if the daemon requires mutual TLS.
     *
     * @param client one that follows no redirects
     * @return this
     */
    public Builder httpClient(HttpClient client) {
      return setHttpClient(client);
    }

    /**
     * Makes the feed.
     *
     * @return the feed
     * @throws IllegalArgumentException if a setting is malformed, or a token would be sent without TLS
     */
    public Feed build() {
      return new Feed(this);
    }
  }
}
