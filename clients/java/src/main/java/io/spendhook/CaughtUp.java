package io.spendhook;

/**
 * What {@link Inbox#catchUp} has found in the feed.
 *
 * @param missing the number of events that the inbox lacked, and that were worked on now
 * @param compacted the number of events that were passed over, because Spendhook has removed their payload; the inbox may
 *     have received them before
 * @param forgotten the number of events that are past their retention or cannot be read
 */
public record CaughtUp(long missing, long compacted, long forgotten) {
  CaughtUp plus(CaughtUp other) {
    return new CaughtUp(missing + other.missing, compacted + other.compacted, forgotten + other.forgotten);
  }
}
