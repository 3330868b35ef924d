package io.spendhook;

import static io.spendhook.TestRun.equal;

import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;

final class InboxHandlerTest {
  private static HttpResponse<String> send(int port, Request message, HttpRequest.BodyPublisher body) throws Exception {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/hooks/a?b=%2F"));
    message.headers().forEach((name, lines) -> lines.forEach(line -> request.header(name, line)));
    return HttpClient.newHttpClient().send(request.POST(body).build(), HttpResponse.BodyHandlers.ofString());
  }

  private static HttpResponse<String> options(int port, String from) throws Exception {
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/hooks"));
    request.header("WebHook-Request-Origin", from).method("OPTIONS", HttpRequest.BodyPublishers.noBody());
    return HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
  }

  static void serves() throws Exception {
    List<Event> worked = new ArrayList<>();
    Inbox<?> inbox = Inbox.builder(InboxTest.verifier(), new MemoryStore(), (event, t) -> worked.add(event)).origin("spendhook.example.com").build();
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext("/hooks", new InboxHandler(inbox));
    server.start();
    try {
      int port = server.getAddress().getPort();
      Request message = InboxTest.signed("pay-1", new byte[] {(byte) 0xff, 0, '\r', '\n'});
      HttpResponse<String> answer = send(port, message, HttpRequest.BodyPublishers.ofByteArray(message.body()));
      equal(204, answer.statusCode());
      equal("pay-1", worked.get(0).id());

      String challenge = InboxTest.body("c", "{\"challenge\":\"text\"}").replace("PAYMENT_PAID", "SUBSCRIBER_CHALLENGE");
      answer = send(port, InboxTest.signed("c", challenge), HttpRequest.BodyPublishers.ofString(challenge));
      equal("200 text", answer.statusCode() + " " + answer.body());

      equal(401, send(port, message, HttpRequest.BodyPublishers.ofString("another body")).statusCode());
      equal(413, send(port, message, HttpRequest.BodyPublishers.ofByteArray(new byte[Inbox.MAX_BODY + 1])).statusCode());
      HttpRequest.BodyPublisher large = HttpRequest.BodyPublishers.ofByteArray(new byte[Inbox.MAX_BODY + 1]);
      equal(413, send(port, message, HttpRequest.BodyPublishers.fromPublisher(large)).statusCode()); // without Content-Length
      equal(1, worked.size());

      answer = options(port, "spendhook.example.com");
      equal(200, answer.statusCode());
      equal(List.of("spendhook.example.com"), answer.headers().allValues("WebHook-Allowed-Origin"));
      equal(List.of("POST"), answer.headers().allValues("Allow"));
      answer = options(port, "evil.example.com");
      equal(405, answer.statusCode());
      equal(List.of(), answer.headers().allValues("WebHook-Allowed-Origin"));
    } finally {
      server.stop(0);
    }
  }

  static void passesTheUrlUnchanged() throws Exception {
    List<String> urls = new ArrayList<>();
    HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    server.createContext("/", exchange -> {
      urls.add(exchange.getRequestURI().toString());
      exchange.sendResponseHeaders(204, -1);
      exchange.close();
    });
    server.start();
    try {
      for (String url : List.of("/a?", "/caf%C3%A9/%2f?a=1&b=%2F%20x&c=a+b&&d", "/a//b/../c/.")) {
        try (java.net.Socket socket = new java.net.Socket(InetAddress.getLoopbackAddress(), server.getAddress().getPort())) {
          socket.getOutputStream().write(("GET " + url + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").getBytes());
          socket.getInputStream().readAllBytes();
        }
        equal(url, urls.get(urls.size() - 1));
      }
    } finally {
      server.stop(0);
    }
  }
}
