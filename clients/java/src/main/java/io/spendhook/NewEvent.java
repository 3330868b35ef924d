package io.spendhook;

import java.text.ParseException;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/** An event to be emitted. Immutable: each {@code with} returns another one. */
public final class NewEvent {
  private final String id;
  private final Map<String, Object> members;

  private NewEvent(String id, Map<String, Object> members) {
    this.id = id;
    this.members = members;
  }

  /**
   * Makes an event. Id and timestamp are of your choice, since only the same event with the same id and timestamp is known as a
   * repeat: store them with the cause of the event, before you send it.
   *
   * @param id 1 to 128 of {@code A–Z a–z 0–9 _ -}, unique in the company
   * @param event the type, such as {@code PAYMENT_PAID}
   * @param timestamp when it happened; at most 7 days ago
   * @return the event
   */
  public static NewEvent of(String id, String event, Instant timestamp) {
    return of(id, event, timestamp.toString());
  }

  /**
   * Makes an event whose timestamp is sent as it is given.
   *
   * @param id as above
   * @param event as above
   * @param timestamp in RFC 3339
   * @return the event
   */
  public static NewEvent of(String id, String event, String timestamp) {
    if (id.isEmpty() || event.isEmpty() || timestamp.isEmpty()) {
      throw new IllegalArgumentException("id, event and timestamp are required");
    }
    return new NewEvent(id, Map.of()).with("id", id).with("event", event).with("timestamp", timestamp);
  }

  /**
   * Adds metadata.
   *
   * @param metadata what {@link Json#write} can write, up to 256 KiB. Give amounts as {@link java.math.BigDecimal} or strings,
   *     not as {@code double}
   * @return the event with them
   * @throws IllegalArgumentException if they have something that JSON has not
   */
  public NewEvent withMetadata(Map<String, ?> metadata) {
    try {
      return with("metadata", Json.parse(Json.write(metadata))); // a copy of all levels: the event must not change
    } catch (ParseException e) { // a number of more characters than any receiver reads
      throw new IllegalArgumentException(e.getMessage());
    }
  }

  /**
   * Adds the error that the event reports.
   *
   * @param code at most 128 bytes
   * @param message at most 4,096 bytes; null for none
   * @return the event with it
   */
  public NewEvent withError(String code, String message) {
    NewEvent event = with("errorCode", Objects.requireNonNull(code, "code"));
    return message == null ? event : event.with("errorMessage", message);
  }

  /**
   * Sets the company, which is required unless the emitter or its token names one.
   *
   * @param uuid its UUID
   * @return the event with it
   */
  public NewEvent withCompany(String uuid) {
    return with("companyUuid", Objects.requireNonNull(uuid, "uuid"));
  }

  /**
   * Returns the id.
   *
   * @return the id
   */
  public String id() {
    return id;
  }

  /** Returns the JSON of the event, in the company unless it has one. */
  String json(String company) {
    boolean given = company == null || members.containsKey("companyUuid");
    return Json.write(given ? members : withCompany(company).members);
  }

  private NewEvent with(String name, Object value) {
    Map<String, Object> changed = new LinkedHashMap<>(members);
    changed.put(name, value);
    return new NewEvent(id, changed);
  }
}
