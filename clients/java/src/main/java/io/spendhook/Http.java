package io.spendhook;

import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Sends requests, without redirects, and with a bound on the time and on the size of the whole answer. */
final class Http {
  /** An answer with its body. */
  record Answer(int status, HttpHeaders headers, byte[] body) {}

  private static final Duration CONNECT = Duration.ofSeconds(5);

  private final HttpClient client;

  /** Takes the client of the user, or null for the one of this library. */
  Http(HttpClient client) {
    if (client != null && client.followRedirects() != HttpClient.Redirect.NEVER) {
      throw new IllegalArgumentException("the HTTP client must not follow redirects");
    }
    this.client = client != null ? client : Default.CLIENT;
  }

  /** Made when it is needed first. Its threads do not keep the program from ending. */
  private static final class Default {
    // HTTP/1.1, since the client would ask each plain server for an upgrade to HTTP/2.
    static final HttpClient CLIENT =
        HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .followRedirects(HttpClient.Redirect.NEVER)
            .connectTimeout(CONNECT)
            .build();
  }

  /** Sends a request. The time-out of a request itself would end with the headers of the answer. */
  Answer send(HttpRequest request, Duration timeout, int maxBytes) throws IOException, InterruptedException {
    CompletableFuture<HttpResponse<byte[]>> sent = client.sendAsync(request, headers -> new Bounded(maxBytes));
    try {
      HttpResponse<byte[]> answer = sent.get(timeout.toMillis(), TimeUnit.MILLISECONDS);
      return new Answer(answer.statusCode(), answer.headers(), answer.body());
    } catch (TimeoutException e) {
      throw new HttpTimeoutException("no answer within " + timeout.toSeconds() + " s");
    } catch (ExecutionException e) {
      if (e.getCause() instanceof IOException cause) {
        throw cause;
      }
      throw new IOException(e.getCause());
    } finally {
      sent.cancel(true); // without effect on a completed one
    }
  }

  /** Collects a body up to a size. */
  private static final class Bounded implements HttpResponse.BodySubscriber<byte[]> {
    private final HttpResponse.BodySubscriber<byte[]> collected = HttpResponse.BodySubscribers.ofByteArray();
    private final int max;
    private long size;
    private Flow.Subscription subscription;
    private boolean refused;

    Bounded(int max) {
      this.max = max;
    }

    @Override
    public CompletionStage<byte[]> getBody() {
      return collected.getBody();
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
      this.subscription = subscription;
      collected.onSubscribe(subscription);
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
      for (ByteBuffer buffer : buffers) {
        size += buffer.remaining();
      }
      if (size <= max) {
        collected.onNext(buffers);
      } else if (!refused) {
        refused = true;
        subscription.cancel();
        collected.onError(new IOException("the answer is larger than " + max + " bytes"));
      }
    }

    @Override
    public void onError(Throwable error) {
      if (!refused) {
        collected.onError(error);
      }
    }

    @Override
    public void onComplete() {
      if (!refused) {
        collected.onComplete();
      }
    }
  }
}
