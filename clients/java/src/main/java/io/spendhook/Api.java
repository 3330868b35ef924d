package io.spendhook;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.Map;
import java.util.Objects;
import java.util.regex.Pattern;

/** The API of a daemon, with the token for it. Safe for concurrent use. */
final class Api {
  private static final int MAX_ANSWER = 16 << 20; // bytes
  private static final Duration TOKEN_TIMEOUT = Duration.ofSeconds(10);
  private static final Duration TOKEN_RESERVE = Duration.ofSeconds(30);
  private static final double TOKEN_LIFE = 300; // seconds, if the answer has no expires_in
  private static final Pattern LOOPBACK = Pattern.compile("localhost|127(\\.[0-9]{1,3}){3}|\\[(::|0:0:0:0:0:0:0:)1\\]");

  private static final Pattern VISIBLE = Pattern.compile("[!-~]+");

  private final String url;
  private final String basic; // the credentials; null: a token is given
  private final String form; // the request for a token
  private final Http http;
  private final Clock clock;
  private String token;
  private Instant tokenEnds; // null: never

  private Api(Settings<?> s) {
    url = checked(s.url, s.insecure);
    if ((s.token == null) == (s.clientId == null)) {
      throw new IllegalArgumentException("either a token or credentials are required");
    }
    basic = s.clientId == null ? null : basic(s.clientId, s.clientSecret);
    form = "grant_type=client_credentials" + (s.scope == null ? "" : "&scope=" + encoded(s.scope));
    token = s.token;
    http = new Http(s.httpClient);
    clock = s.clock;
  }

  /** Settings that all users of the API have. */
  abstract static class Settings<B extends Settings<B>> {
    private String url;
    private String token;
    private String clientId;
    private String clientSecret;
    private String scope;
    private boolean insecure;
    private HttpClient httpClient;
    private Clock clock = Clock.systemUTC();

    abstract B self();

    Api api() {
      return new Api(this);
    }

    B setUrl(String url) {
      this.url = url;
      return self();
    }

    B setToken(String token) {
      if (!VISIBLE.matcher(Objects.requireNonNull(token, "token")).matches()) { // the HTTP client would show it in its exception
        throw new IllegalArgumentException("the token is empty, or has other characters than visible ASCII");
      }
      this.token = token;
      return self();
    }

    B setCredentials(String clientId, String clientSecret, String scope) {
      this.clientId = Objects.requireNonNull(clientId, "clientId");
      this.clientSecret = Objects.requireNonNull(clientSecret, "clientSecret");
      this.scope = scope;
      return self();
    }

    B setInsecure(boolean insecure) {
      this.insecure = insecure;
      return self();
    }

    B setHttpClient(HttpClient client) {
      this.httpClient = client;
      return self();
    }

    B setClock(Clock clock) {
      this.clock = clock;
      return self();
    }
  }

  private static String checked(String url, boolean insecure) {
    URI uri = URI.create(Objects.requireNonNull(url, "url"));
    boolean https = "https".equalsIgnoreCase(uri.getScheme());
    if ((!https && !"http".equalsIgnoreCase(uri.getScheme())) || uri.getHost() == null || uri.getRawQuery() != null
        || uri.getRawFragment() != null || uri.getRawUserInfo() != null) {
      throw new IllegalArgumentException("the URL must be like https://spendhook.example.com");
    }
    if (!https && !insecure && !LOOPBACK.matcher(uri.getHost()).matches()) {
      throw new IllegalArgumentException("a token is not sent without TLS to " + uri.getHost() + "; set insecure to do so");
    }
    return url.replaceFirst("/+$", "");
  }

  /** Both are form-encoded first (RFC 6749 section 2.3.1). */
  private static String basic(String clientId, String clientSecret) {
    String pair = encoded(clientId) + ":" + encoded(clientSecret);
    return "Basic " + Base64.getEncoder().encodeToString(pair.getBytes(StandardCharsets.UTF_8));
  }

  static String encoded(String text) {
    return URLEncoder.encode(text, StandardCharsets.UTF_8);
  }

  /** Reads a resource as JSON. Another status than 2xx is an ApiException. */
  Object get(String path, Duration timeout) throws IOException, InterruptedException {
    return json(send(HttpRequest.newBuilder(URI.create(url + path)), timeout));
  }

  /** Sends JSON and returns the answer, as {@link #get} does. */
  Object post(String path, byte[] body, Duration timeout) throws IOException, InterruptedException {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + path));
    request.header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofByteArray(body));
    return json(send(request, timeout));
  }

  private Http.Answer send(HttpRequest.Builder request, Duration timeout) throws IOException, InterruptedException {
    String used = token();
    Http.Answer answer = http.send(authorized(request, used), timeout, MAX_ANSWER);
    if (answer.status() == 401 && basic != null) { // nothing was done with the request
      discard(used);
      answer = http.send(authorized(request, token()), timeout, MAX_ANSWER);
    }
    if (answer.status() / 100 != 2) {
      throw ApiException.of(answer, clock.instant(), false);
    }
    return answer;
  }

  private static HttpRequest authorized(HttpRequest.Builder request, String token) {
    return request.setHeader("Authorization", "Bearer " + token).setHeader("Accept", "application/json").build();
  }

  private static Object json(Http.Answer answer) throws NotSpendhookException {
    try {
      return Json.parse(answer.body());
    } catch (ParseException e) {
      throw new NotSpendhookException("the answer is not JSON; check the URL", e);
    }
  }

  /** An answer that no daemon gives. To send the request again is of no use. */
  static final class NotSpendhookException extends IOException {
    private static final long serialVersionUID = 1L;

    NotSpendhookException(String message, Throwable cause) {
      super(message, cause);
    }
  }

  /** Returns the token. One thread gets a new one, and the others wait. */
  private synchronized String token() throws IOException, InterruptedException {
    Instant now = clock.instant();
    if (token != null && (tokenEnds == null || now.isBefore(tokenEnds))) {
      return token;
    }
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(url + "/oauth/token"))
            .header("Authorization", basic)
            .header("Accept", "application/json")
            .header("Content-Type", "application/x-www-form-urlencoded")
            .POST(HttpRequest.BodyPublishers.ofString(form))
            .build();
    Http.Answer answer = http.send(request, TOKEN_TIMEOUT, 1 << 16);
    if (answer.status() != 200) {
      throw ApiException.of(answer, now, true);
    }
    if (!(json(answer) instanceof Map<?, ?> members)
        || !(members.get("access_token") instanceof String access)
        || !VISIBLE.matcher(access).matches()) {
      throw new NotSpendhookException("the token endpoint did not answer with a token", null);
    }
    token = access;
    Duration life = life(members.get("expires_in"));
    Duration half = life.dividedBy(2); // a token with a short life serves more than one request, too
    tokenEnds = now.plus(life).minus(half.compareTo(TOKEN_RESERVE) < 0 ? half : TOKEN_RESERVE);
    return token;
  }

  private static Duration life(Object expiresIn) {
    double seconds = expiresIn instanceof Number number && number.doubleValue() > 0 ? number.doubleValue() : TOKEN_LIFE;
    return Duration.ofMillis((long) (1000 * Math.min(seconds, ApiException.MAX_SECONDS)));
  }

  /** Forgets a refused token, unless another thread has a new one already. */
  private synchronized void discard(String refused) {
    if (refused.equals(token)) {
      token = null;
    }
  }
}
