package io.spendhook;

/**
 * Where an {@link Inbox} notes the ids of events and how far it has read its feed. Implementations are safe for concurrent
 * use. Several inboxes need several stores, or stores that know which inbox they are for.
 *
 * @param <T> what work gets to take part in a transaction
 */
public interface Store<T> {
  /**
   * Runs an action in a transaction, which is committed when the action returns, and rolled back when it throws. Of two
   * transactions that add one id at the same time, one is the first; the other waits for it, or fails.
   *
   * @param action what is done
   * @param <R> the type of the result
   * @return the result of the action, after the commit
   * @throws Exception the exception of the action, or of the store
   */
  <R> R transaction(Action<T, R> action) throws Exception;

  /**
   * What is done in a transaction.
   *
   * @param <T> what work gets
   * @param <R> the type of the result
   */
  @FunctionalInterface
  interface Action<T, R> {
    /**
     * Does it.
     *
     * @param transaction the transaction
     * @return the result
     * @throws Exception to roll the transaction back
     */
    R run(Transaction<T> transaction) throws Exception;
  }

  /**
   * A transaction of a store, used by one thread.
   *
   * @param <T> what work gets
   */
  interface Transaction<T> {
    /**
     * Notes the id of an event. It returns false only if the event is noted by a transaction that was committed, or by this
     * one. While another transaction with this id is open, it waits for that one, or fails.
     *
     * @param id the id of the event, which is unique in its company
     * @param sequence its number in the company; null if unknown
     * @return whether it was not noted before
     * @throws Exception if the store fails
     */
    boolean add(String id, Long sequence) throws Exception;

    /**
     * Returns how far the feed was read.
     *
     * @return the text that was noted last; "" if there is none
     * @throws Exception if the store fails
     */
    String cursor() throws Exception;

    /**
     * Notes how far the feed was read, in place of what was noted before.
     *
     * @param cursor a text of at most 64 characters; "" to read from the start
     * @throws Exception if the store fails
     */
    void setCursor(String cursor) throws Exception;

    /**
     * Returns what work gets.
     *
     * @return such as a connection to a database
     */
    T unwrap();
  }
}
