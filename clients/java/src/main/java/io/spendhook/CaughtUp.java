package io.spendhook;

/**
 * What {@link Inbox#catchUp} has found in the feed.
 *
 * @param missing the number of events that the inbox lacked, and that were worked on now
 * @param gone the number of events that were passed over, because Spendhook names them without a body, for a reason of
 *     {@link Passed#reason}; the inbox may have worked on them before
 * @param forgotten the number of events that are past their retention or cannot be read
 */
public record CaughtUp(long missing, long gone, long forgotten) {
  CaughtUp plus(CaughtUp other) {
    return new CaughtUp(missing + other.missing, gone + other.gone, forgotten + other.forgotten);
  }
}
