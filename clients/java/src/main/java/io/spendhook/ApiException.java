package io.spendhook;

import java.io.IOException;
import java.text.ParseException;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Map;

/** An error answer of Spendhook, or of a proxy before it. */
public class ApiException extends IOException {
  private static final long serialVersionUID = 1L;
  /** The longest time that is read from an answer: longer ones would overflow in nanoseconds. */
  static final long MAX_SECONDS = 1 << 30;
  /** The code of an answer without one. */
  static final String NO_CODE = "HTTP_ERROR";

  /** The HTTP status. */
  private final int status;

  /** The stable code. */
  private final String code;

  /** The text for people. */
  private final String detail;

  /** The id in the log of the operator. */
  private final String requestId;

  /** How long to wait. */
  private final Duration retryAfter;

  private final transient List<Result.Field> fields;

  /** Whether the token endpoint gave the answer. */
  private final boolean ofToken;

  private ApiException(
      int status, String code, String detail, String requestId, Duration retryAfter, List<Result.Field> fields, boolean ofToken) {
    super((ofToken ? "no token: " : "") + status + " " + code + (detail.isEmpty() ? "" : ": " + detail));
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
    this.fields = fields;
    this.ofToken = ofToken;
  }

  /** Reads an answer: a problem document (RFC 9457), or an error of the token endpoint (RFC 6749 section 5.2). */
  static ApiException of(Http.Answer answer, Instant now, boolean ofToken) {
    Map<?, ?> members = Map.of();
    try {
      members = Json.parse(answer.body()) instanceof Map<?, ?> map ? map : members;
    } catch (ParseException e) {
      // of a proxy; the status says enough
    }
    String code = text(members, "code", text(members, "error", NO_CODE));
    String detail = text(members, "detail", text(members, "error_description", text(members, "title", "")));
    String requestId = text(members, "requestId", answer.headers().firstValue("X-Request-Id").orElse(""));
    Duration wait = answer.headers().firstValue("Retry-After").map(text -> retryAfter(text, now)).orElse(Duration.ZERO);
    return new ApiException(answer.status(), code, detail, requestId, wait, Result.fields(members.get("errors")), ofToken);
  }

  /** Reports whether the events of the request are the cause. Other refusals, such as one of a token, would meet any request. */
  boolean blamesEvents() {
    return !ofToken && (status == 413 || code.equals("MALFORMED_BODY"));
  }

  static String text(Map<?, ?> members, String name, String otherwise) {
    return members.get(name) instanceof String text ? text : otherwise;
  }

  /** Reads seconds or a date (RFC 9110 section 10.2.3); zero if it is neither. */
  static Duration retryAfter(String text, Instant now) {
    if (text.matches("[0-9]{1,18}")) {
      return Duration.ofSeconds(Math.min(Long.parseLong(text), MAX_SECONDS));
    }
    try {
      Instant at = ZonedDateTime.parse(text, DateTimeFormatter.RFC_1123_DATE_TIME).toInstant();
      return at.isAfter(now) ? Duration.between(now, at) : Duration.ZERO;
    } catch (DateTimeException e) {
      return Duration.ZERO;
    }
  }

  /**
   * Returns the HTTP status.
   *
   * @return such as 409
   */
  public int status() {
    return status;
  }

  /**
   * Returns the code, which is stable; docs/errors.md of Spendhook explains each.
   *
   * @return such as {@code RATE_LIMITED}; {@code HTTP_ERROR} if the answer has none
   */
  public String code() {
    return code;
  }

  /**
   * Returns the text for people.
   *
   * @return the text; may be empty
   */
  public String detail() {
    return detail;
  }

  /**
   * Returns the id by which the operator finds the request in the log.
   *
   * @return the id; may be empty
   */
  public String requestId() {
    return requestId;
  }

  /**
   * Returns how long to wait before the request is sent again.
   *
   * @return zero if the answer does not say
   */
  public Duration retryAfter() {
    return retryAfter;
  }

  /**
   * Returns the fields at fault.
   *
   * @return empty if the answer names none, or the exception was serialised
   */
  public List<Result.Field> fields() {
    return fields == null ? List.of() : fields;
  }
}
