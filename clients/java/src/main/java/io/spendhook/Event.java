package io.spendhook;

import java.text.ParseException;
import java.time.DateTimeException;
import java.time.Instant;
import java.util.Map;

/**
 * An event, as a delivery or the feed has it. What the body does not have is null: the formats {@code thin} and {@code
 * cloudevents} have no metadata, and a body that is not JSON has none of type, company, timestamp and metadata.
 *
 * @param id the id, unique in the company: the header webhook-id
 * @param type such as {@code PAYMENT_PAID}
 * @param companyUuid the company; the {@code subject} of a CloudEvent
 * @param timestamp when the event happened
 * @param metadata as {@link Json} reads it: numbers are {@link java.math.BigDecimal} with all of their digits, or, if one is too
 *     large for that, another {@link Number} whose {@code toString} is its text. Another JSON library may round them to {@code
 *     double}; give it the body, and tell it not to
 * @param sequence the number of the event in its company; null if unknown. For a delivery it comes from webhook-sequence,
 *     which only HTTP message signatures cover
 * @param body the bytes as they were received
 */
public record Event(
    String id,
    String type,
    String companyUuid,
    Instant timestamp,
    Map<String, Object> metadata,
    Long sequence,
    byte[] body) {
  private static final String CHALLENGE = "SUBSCRIBER_CHALLENGE";

  /** Reads what it can of the body. */
  static Event of(String id, Long sequence, byte[] body) {
    Map<String, Object> members = object(body);
    if (members.get("specversion") instanceof String) { // CloudEvents
      return new Event(
          id, text(members, "type"), text(members, "subject"), instant(text(members, "time")), null, sequence, body);
    }
    @SuppressWarnings("unchecked") // Json makes maps of this type only
    Map<String, Object> metadata = members.get("metadata") instanceof Map<?, ?> map ? (Map<String, Object>) map : null;
    return new Event(
        id,
        text(members, "event"),
        text(members, "companyUuid"),
        instant(text(members, "timestamp")),
        metadata,
        sequence,
        body);
  }

  /** Returns the text that the answer to a challenge repeats; null for any other event. */
  String challenge() {
    return CHALLENGE.equals(type) && metadata != null && metadata.get("challenge") instanceof String text ? text : null;
  }

  @SuppressWarnings("unchecked") // Json makes maps of this type only
  private static Map<String, Object> object(byte[] body) {
    try {
      return Json.parse(body) instanceof Map<?, ?> map ? (Map<String, Object>) map : Map.of();
    } catch (ParseException e) {
      return Map.of(); // the body is stored as it is
    }
  }

  private static String text(Map<String, Object> members, String name) {
    return members.get(name) instanceof String text ? text : null;
  }

  private static Instant instant(String text) {
    try {
      return text == null ? null : Instant.parse(text);
    } catch (DateTimeException e) {
      return null;
    }
  }
}
