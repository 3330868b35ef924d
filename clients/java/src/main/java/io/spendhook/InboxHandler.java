package io.spendhook;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Objects;

/**
 * Serves an {@link Inbox} by the HTTP server of the JDK. Give the server an executor with several threads, and put a proxy that
 * terminates TLS in front of it. Without {@code -Dsun.net.httpserver.nodelay=true}, the server answers some 40 ms late on a
 * connection that is kept.
 */
public final class InboxHandler implements HttpHandler {
  private final Inbox<?> inbox;

  /**
   * Makes a handler.
   *
   * @param inbox what receives the deliveries
   */
  public InboxHandler(Inbox<?> inbox) {
    this.inbox = Objects.requireNonNull(inbox);
  }

  @Override
  public void handle(HttpExchange exchange) throws IOException {
    try (exchange) {
      byte[] body = exchange.getRequestBody().readNBytes(Inbox.MAX_BODY + 1);
      String url = exchange.getRequestURI().toString(); // as it was in the request line
      Response response = inbox.handle(new Request(exchange.getRequestMethod(), url, exchange.getRequestHeaders(), body));
      byte[] text = response.body().getBytes(StandardCharsets.UTF_8);
      response.headers().forEach(exchange.getResponseHeaders()::set);
      exchange.sendResponseHeaders(response.status(), text.length == 0 ? -1 : text.length);
      if (text.length > 0) {
        exchange.getResponseBody().write(text);
      }
    }
  }
}
