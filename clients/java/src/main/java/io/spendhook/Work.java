package io.spendhook;

/**
 * What is to be done for each event, once.
 *
 * @param <T> what the store gives to the work, such as {@link java.sql.Connection}
 */
@FunctionalInterface
public interface Work<T> {
  /**
   * Works on an event, in the transaction in which its id is noted: if this method throws, or the process ends before the
   * commit, both are undone, and the event comes again. What the work does outside of the transaction may be done more than
   * once.
   *
   * <p>Finish within 15 seconds: Spendhook waits that long for an answer, and delivers again; nothing here ends the work. An
   * event whose work always throws stops the reading of the feed there, since none is skipped: return without an exception to
   * give up on an event.
   *
   * @param event the event
   * @param transaction the transaction of the store. Do not commit, roll back or close it
   * @throws Exception if the event is to come again
   */
  void run(Event event, T transaction) throws Exception;
}
