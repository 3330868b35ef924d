package io.spendhook;

import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.regex.Pattern;

/** An event that {@code spendhook relay} is to send. Immutable: each {@code with} returns another one. */
public final class OutboxEvent {
  private static final Pattern ID = Pattern.compile("(?!spendhook-)[A-Za-z0-9_-]{1,128}");
  private static final Pattern EVENT = Pattern.compile("[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}");
  private static final Pattern COMPANY = Pattern.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}");
  private static final int MAX_METADATA = 256 << 10;

  // The values of the statement, in its order.
  private static final int COMPANY_AT = 1;
  private static final int KEY_AT = 3;
  private static final int TIMESTAMP_AT = 4;
  private static final int METADATA_AT = 5;
  private static final int ERROR_AT = 6;

  private final String[] values;

  private OutboxEvent(String[] values) {
    this.values = values;
  }

  /**
   * Makes an event.
   *
   * @param id unique in the company: 1 to 128 of {@code A–Z a–z 0–9 _ -}, not beginning with {@code spendhook-}. Make it of
   *     your work, such as the number of a payment, so that work that is repeated has the same one
   * @param event the type, such as {@code PAYMENT_PAID}
   * @return the event
   * @throws IllegalArgumentException if one of them is malformed
   */
  public static OutboxEvent of(String id, String event) {
    demand(ID.matcher(id).matches(), "the id of an event has 1 to 128 of A-Z a-z 0-9 _ - and does not begin with spendhook-");
    demand(EVENT.matcher(event).matches(), "the type of an event has 1 to 128 of A-Z a-z 0-9 _ . : -");
    return new OutboxEvent(new String[] {id, null, event, null, null, "{}", null, null});
  }

  /**
   * Sets the key. Events of one key are sent in the order in which they were inserted. Insert after you have locked what the
   * key stands for, such as the account, so that this is also the order of the commits. Without a key the order does not
   * matter.
   *
   * @param key 1 to 1,024 bytes
   * @return the event with it
   * @throws IllegalArgumentException if it is empty or too long
   */
  public OutboxEvent withKey(String key) {
    demand(!key.isEmpty(), "the key is empty");
    return with(KEY_AT, limited("key", key, 1024));
  }

  /**
   * Sets when the event happened, to the millisecond. Without it, that is the begin of the transaction.
   *
   * @param timestamp the time
   * @return the event with it
   */
  public OutboxEvent withTimestamp(Instant timestamp) {
    return with(TIMESTAMP_AT, timestamp.truncatedTo(ChronoUnit.MILLIS).toString());
  }

  /**
   * Sets the metadata.
   *
   * @param metadata what {@link Json#write} can write, up to 256 KiB. Give amounts as {@link java.math.BigDecimal} or strings,
   *     not as {@code double}
   * @return the event with them
   * @throws IllegalArgumentException if they are too large, or have something that JSON has not
   */
  public OutboxEvent withMetadata(Map<String, ?> metadata) {
    return with(METADATA_AT, limited("metadata", Json.write(metadata), MAX_METADATA));
  }

  /**
   * Sets the metadata from JSON, whose numbers are sent as they are written.
   *
   * @param json an object, up to 256 KiB
   * @return the event with them
   * @throws IllegalArgumentException if they are too large, or not an object
   */
  public OutboxEvent withMetadata(String json) {
    try {
      demand(Json.parse(json) instanceof Map, "the metadata are not a JSON object");
    } catch (ParseException e) {
      throw new IllegalArgumentException("the metadata are not JSON: " + e.getMessage());
    }
    return with(METADATA_AT, limited("metadata", json, MAX_METADATA));
  }

  /**
   * Sets the error that the event reports.
   *
   * @param code at most 128 bytes
   * @param message at most 4,096 bytes; null for none
   * @return the event with it
   * @throws IllegalArgumentException if one of them is too long
   */
  public OutboxEvent withError(String code, String message) {
    OutboxEvent event = with(ERROR_AT, limited("error code", code, 128));
    return message == null ? event : event.with(ERROR_AT + 1, limited("error message", message, 4096));
  }

  /**
   * Sets the company, which is that of the relay by default.
   *
   * @param uuid its UUID
   * @return the event with it
   * @throws IllegalArgumentException if it is not a UUID
   */
  public OutboxEvent withCompany(String uuid) {
    demand(COMPANY.matcher(uuid).matches(), "the company is not a UUID");
    return with(COMPANY_AT, uuid);
  }

  /** Returns the values of the statement; null for what is not set. */
  String[] values() {
    return values.clone();
  }

  private OutboxEvent with(int place, String value) {
    String[] changed = values.clone();
    changed[place] = value;
    return new OutboxEvent(changed);
  }

  private static String limited(String name, String text, int maximum) {
    demand(text.getBytes(StandardCharsets.UTF_8).length <= maximum, name + " has more than " + maximum + " bytes");
    return text;
  }

  private static void demand(boolean holds, String what) {
    if (!holds) {
      throw new IllegalArgumentException(what);
    }
  }
}
