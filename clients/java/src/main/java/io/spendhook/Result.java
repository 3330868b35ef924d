package io.spendhook;

import java.math.BigDecimal;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * What became of an event that was sent.
 *
 * @param id the id of the event
 * @param status whether it is stored
 * @param error why it is not stored; null if it is
 */
public record Result(String id, Status status, Error error) {
  /** Whether an event is stored. */
  public enum Status {
    /** It is stored, and will be delivered. */
    ACCEPTED,
    /** It was stored before, with the same content. */
    DUPLICATE,
    /** Another event with this id is stored. */
    CONFLICT,
    /** It is not stored. */
    REJECTED
  }

  /**
   * Why an event was refused.
   *
   * @param code stable; docs/errors.md of Spendhook explains each
   * @param message for people
   * @param fields the fields at fault
   * @param retryAfter when the event may be accepted; null if it would be refused again
   */
  public record Error(String code, String message, List<Field> fields, Duration retryAfter) {}

  /**
   * A field that is at fault.
   *
   * @param field a JSON pointer (RFC 6901) into the event
   * @param code stable
   * @param message for people
   */
  public record Field(String field, String code, String message) {}

  /**
   * Reports whether the event is stored, now or before.
   *
   * @return true for ACCEPTED and DUPLICATE
   */
  public boolean stored() {
    return status == Status.ACCEPTED || status == Status.DUPLICATE;
  }

  /** Reports whether the same event may be accepted later. */
  boolean passing() {
    return error != null && error.retryAfter() != null;
  }

  /** Reads an item of an answer; throws an unchecked exception if it is none. */
  static Result of(String id, Map<?, ?> item) {
    Error error = item.get("error") instanceof Map<?, ?> members ? error(members) : null;
    return new Result(id, Status.valueOf((String) item.get("status")), error);
  }

  private static Error error(Map<?, ?> members) {
    Duration wait = members.get("retryAfter") instanceof BigDecimal s ? seconds(s.longValueExact()) : null;
    return new Error((String) members.get("code"), (String) members.get("message"), fields(members.get("errors")), wait);
  }

  /** Reads the fields at fault; what is none is left out. */
  static List<Field> fields(Object errors) {
    List<Field> fields = new ArrayList<>();
    if (errors instanceof List<?> list) {
      for (Object item : list) {
        if (item instanceof Map<?, ?> field) {
          fields.add(new Field(text(field, "field"), text(field, "code"), text(field, "message")));
        }
      }
    }
    return List.copyOf(fields);
  }

  private static String text(Map<?, ?> members, String name) {
    return ApiException.text(members, name, null);
  }

  private static Duration seconds(long seconds) {
    return Duration.ofSeconds(Math.max(0, Math.min(seconds, ApiException.MAX_SECONDS)));
  }
}
