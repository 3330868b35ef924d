import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.math.BigDecimal;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Executors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Receives deliveries of Spendhook and stores each event once. It needs Java 17 and no library. Its
 * settings are environment variables, which examples/README.md explains.
 */
public final class Receiver {
  private static final int MAX_BODY = 1 << 20; // larger than the body of any delivery
  private static final Path INBOX = Path.of(setting("INBOX", "inbox"));
  private static final List<String> SECRETS = // two while a secret rotates
      List.of(setting("SPENDHOOK_SECRET", "").trim().split(" +"));
  private static final String ORIGIN = setting("SPENDHOOK_ORIGIN", ""); // the host name of the daemon

  public static void main(String[] args) throws Exception {
    if (SECRETS.get(0).isEmpty()) {
      throw new IllegalStateException("SPENDHOOK_SECRET is not set");
    }
    for (String secret : SECRETS) { // with an empty secret anybody can sign
      if (Base64.getDecoder().decode(secret.replaceFirst("^whsec_", "")).length < 24) {
        throw new IllegalStateException("SPENDHOOK_SECRET is not whsec_ and base64 of at least 24 bytes");
      }
    }
    Files.createDirectories(INBOX);
    int port = Integer.parseInt(setting("PORT", "3000"));
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    server.createContext("/", Receiver::receive);
    server.setExecutor(Executors.newFixedThreadPool(16));
    server.start();
    System.out.println("listening on http://127.0.0.1:" + server.getAddress().getPort());
    if (System.getenv("SPENDHOOK_URL") != null) {
      catchUp();
    }
  }

  /**
   * Stores the event of a delivery, then answers. Process the event afterwards, from the inbox:
   * Spendhook waits 15 s for an answer.
   */
  private static void receive(HttpExchange exchange) throws IOException {
    try (exchange) {
      if (exchange.getRequestMethod().equals("OPTIONS")) {
        exchange.sendResponseHeaders(handshake(exchange), -1);
        return;
      }
      byte[] body = exchange.getRequestBody().readNBytes(MAX_BODY + 1);
      int status = answer(exchange, body);
      byte[] text = status == 200 ? challenge(body).getBytes(StandardCharsets.UTF_8) : new byte[0];
      exchange.sendResponseHeaders(status, text.length == 0 ? -1 : text.length);
      if (text.length > 0) {
        exchange.getResponseBody().write(text);
      }
    }
  }

  /**
   * Answers the daemon that asks, in the format cloudevents, whether it may deliver. It is not signed,
   * so nobody else gets consent.
   */
  private static int handshake(HttpExchange exchange) {
    exchange.getResponseHeaders().set("Allow", "POST");
    if (ORIGIN.isEmpty() || !ORIGIN.equalsIgnoreCase(header(exchange, "WebHook-Request-Origin"))) {
      return 405;
    }
    exchange.getResponseHeaders().set("WebHook-Allowed-Origin", ORIGIN);
    exchange.getResponseHeaders().set("WebHook-Allowed-Rate", "*");
    return 200;
  }

  /**
   * Returns the text that the answer to a challenge repeats; "" for any other message. Answer no
   * challenge whose signature is not valid.
   */
  private static String challenge(byte[] body) {
    return new Json(new String(body, StandardCharsets.UTF_8)).value() instanceof Map<?, ?> message
            && "SUBSCRIBER_CHALLENGE".equals(message.get("event"))
            && message.get("metadata") instanceof Map<?, ?> metadata
        ? (String) metadata.get("challenge")
        : "";
  }

  private static int answer(HttpExchange exchange, byte[] body) {
    if (body.length > MAX_BODY) {
      return 400;
    }
    String id = header(exchange, "webhook-id");
    try {
      if (!verified(id, header(exchange, "webhook-timestamp"), header(exchange, "webhook-signature"), body)) {
        return 401;
      }
      if (!challenge(body).isEmpty()) {
        return 200;
      }
      store(id, body);
      return 204;
    } catch (IOException | GeneralSecurityException | IllegalArgumentException e) {
      System.err.println(e);
      return 500; // Spendhook retries
    }
  }

  private static String header(HttpExchange exchange, String name) {
    return Objects.requireNonNullElse(exchange.getRequestHeaders().getFirst(name), "");
  }

  /**
   * Checks a signature of Standard Webhooks 1.0.0: the HMAC-SHA256 of id, timestamp and body, with a
   * dot between them. The key is the decoded secret.
   */
  private static boolean verified(String id, String timestamp, String signatures, byte[] body)
      throws GeneralSecurityException {
    if (!timestamp.matches("\\d{1,12}")
        || Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(timestamp)) > 5 * 60) {
      return false;
    }
    for (String secret : SECRETS) {
      Mac mac = Mac.getInstance("HmacSHA256");
      byte[] key = Base64.getDecoder().decode(secret.replaceFirst("^whsec_", ""));
      mac.init(new SecretKeySpec(key, "HmacSHA256"));
      mac.update((id + "." + timestamp + ".").getBytes(StandardCharsets.UTF_8));
      String want = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
      for (String signature : signatures.split(" ")) {
        // isEqual takes the same time for each wrong signature.
        if (MessageDigest.isEqual(signature.getBytes(StandardCharsets.UTF_8), want.getBytes(StandardCharsets.UTF_8))) {
          return true;
        }
      }
    }
    return false;
  }

  /**
   * Writes the file of an event unless the file exists: an event may be delivered more than once,
   * always with the same id. The file is complete or does not exist.
   */
  private static void store(String id, byte[] body) throws IOException {
    if (!id.matches("[A-Za-z0-9_-]{1,128}")) {
      throw new IllegalArgumentException("invalid event id " + id);
    }
    Path temporary = Files.createTempFile(INBOX, ".new-", "");
    try {
      Files.write(temporary, body);
      sync(temporary, StandardOpenOption.WRITE);
      Files.createLink(INBOX.resolve(id + ".json"), temporary);
    } catch (FileAlreadyExistsException e) {
      return;
    } finally {
      Files.delete(temporary);
    }
    sync(INBOX, StandardOpenOption.READ); // so that the name of the file survives a power failure too
    System.out.println("received " + id);
  }

  private static void sync(Path path, StandardOpenOption how) throws IOException {
    try (FileChannel channel = FileChannel.open(path, how)) {
      channel.force(true);
    }
  }

  /**
   * Reads the missed events from the feed, after the last event that catchUp has read. The client
   * presents the certificate in javax.net.ssl.keyStore.
   */
  private static void catchUp() throws IOException, InterruptedException {
    Path file = INBOX.resolve(".after");
    long after = Files.exists(file) ? Long.parseLong(Files.readString(file)) : 0;
    HttpClient client = HttpClient.newHttpClient();
    String feed =
        setting("SPENDHOOK_URL", "") + "/api/v1/subscribers/" + setting("SPENDHOOK_SUBSCRIBER", "") + "/feed?after=";
    for (boolean more = true; more; ) {
      HttpRequest request =
          HttpRequest.newBuilder(URI.create(feed + after))
              .header("Authorization", "Bearer " + setting("SPENDHOOK_TOKEN", ""))
              .timeout(Duration.ofSeconds(30))
              .build();
      var answer = client.send(request, BodyHandlers.ofString());
      if (answer.statusCode() != 200) {
        throw new IOException("the feed was answered with " + answer.statusCode());
      }
      Map<?, ?> page = (Map<?, ?>) new Json(answer.body()).value();
      for (Object item : (List<?>) page.get("content")) {
        Map<?, ?> event = (Map<?, ?>) item;
        if (event.get("body") instanceof String body) { // else it is gone
          store((String) event.get("id"), body.getBytes(StandardCharsets.UTF_8));
        }
      }
      after = ((Number) page.get("next")).longValue();
      more = (Boolean) page.get("more");
      Files.writeString(file, Long.toString(after));
    }
    System.out.println("caught up to " + after);
  }

  private static String setting(String name, String otherwise) {
    return Objects.requireNonNullElse(System.getenv(name), otherwise);
  }

  /** Parses JSON, because Java has no library for it. Replace it with the JSON library that you use. */
  private static final class Json {
    private final String text;
    private int at;

    Json(String text) {
      this.text = text;
    }

    Object value() {
      return switch (next()) {
        case '{' -> object();
        case '[' -> array();
        case '"' -> string();
        case 't' -> word("true", true);
        case 'f' -> word("false", false);
        case 'n' -> word("null", null);
        default -> number();
      };
    }

    private char next() {
      while (Character.isWhitespace(text.charAt(at))) {
        at++;
      }
      return text.charAt(at);
    }

    private Map<String, Object> object() {
      var fields = new LinkedHashMap<String, Object>();
      at++;
      while (next() != '}') {
        String name = string();
        next();
        at++; // the colon
        fields.put(name, value());
        skipComma();
      }
      at++;
      return fields;
    }

    private List<Object> array() {
      var items = new ArrayList<Object>();
      at++;
      while (next() != ']') {
        items.add(value());
        skipComma();
      }
      at++;
      return items;
    }

    private void skipComma() {
      if (next() == ',') {
        at++;
      }
      next();
    }

    private String string() {
      var content = new StringBuilder();
      at++;
      while (text.charAt(at) != '"') {
        char c = text.charAt(at++);
        content.append(c == '\\' ? escaped() : c);
      }
      at++;
      return content.toString();
    }

    private char escaped() {
      char c = text.charAt(at++);
      switch (c) {
        case 'b':
          return '\b';
        case 'f':
          return '\f';
        case 'n':
          return '\n';
        case 'r':
          return '\r';
        case 't':
          return '\t';
        case 'u':
          at += 4;
          return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        default:
          return c;
      }
    }

    private Object word(String word, Object value) {
      at += word.length();
      return value;
    }

    private Number number() {
      int from = at;
      while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
        at++;
      }
      return new BigDecimal(text.substring(from, at));
    }
  }
}
