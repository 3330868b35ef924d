package io.spendhook;

/**
 * An event that the feed names without a body, so that an {@link Inbox} passes over it.
 *
 * @param id the id of the event
 * @param sequence its number in the company
 * @param reason {@code COMPACTED}: the payload was removed, with time or by an erasure. {@code CANCELLED}: somebody cancelled
 *     the delivery. {@code QUARANTINED}: an operator is to look at the event
 */
public record Passed(String id, long sequence, String reason) {}
