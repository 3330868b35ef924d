package io.spendhook;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.function.Function;

/** A server that gives one prepared answer after the other; the last one stays. */
final class TestServer implements AutoCloseable {
  record Received(String method, String url, String authorization, String body) {}

  private interface Answer {
    void give(HttpExchange exchange, String body) throws IOException;
  }

  final List<Received> received = Collections.synchronizedList(new ArrayList<>());
  private final Deque<Answer> answers = new ArrayDeque<>();
  private final HttpServer server;

  TestServer() throws IOException {
    server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext("/", this::serve);
    server.start();
  }

  String url() {
    return "http://127.0.0.1:" + server.getAddress().getPort();
  }

  /** Adds an answer. headers are names and values in turn. */
  TestServer answer(int status, String body, String... headers) {
    return add(
        (exchange, request) -> {
          for (int i = 0; i < headers.length; i += 2) {
            exchange.getResponseHeaders().add(headers[i], headers[i + 1]);
          }
          write(exchange, status, body);
        });
  }

  /** Adds an answer that depends on the body of the request: 202, or 413 without a body if it is "". */
  TestServer answer(Function<String, String> answer) {
    return add(
        (exchange, request) -> {
          String body = answer.apply(request);
          write(exchange, body.isEmpty() ? 413 : 202, body);
        });
  }

  private static void write(HttpExchange exchange, int status, String body) throws IOException {
    byte[] text = body.getBytes(StandardCharsets.UTF_8);
    exchange.sendResponseHeaders(status, text.length == 0 ? -1 : text.length);
    exchange.getResponseBody().write(text);
  }

  /** Adds the end of the connection, without an answer. */
  TestServer hangUp() {
    return add((exchange, request) -> {});
  }

  private synchronized TestServer add(Answer answer) {
    answers.add(answer);
    return this;
  }

  private synchronized Answer next() {
    return answers.size() > 1 ? answers.remove() : answers.element();
  }

  private void serve(HttpExchange exchange) throws IOException {
    try (exchange) {
      String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
      String authorization = exchange.getRequestHeaders().getFirst("Authorization");
      received.add(new Received(exchange.getRequestMethod(), exchange.getRequestURI().toString(), authorization, body));
      next().give(exchange, body);
    }
  }

  @Override
  public void close() {
    server.stop(0);
  }
}
