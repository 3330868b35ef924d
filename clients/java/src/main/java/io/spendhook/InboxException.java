package io.spendhook;

/**
 * The store, the work, or the callback for passed events failed. The cause is their exception. Nothing of the event was stored:
 * it comes again. With the cause {@link InvalidMessageException}, it says that a delivery was refused; without a cause, that the
 * service no longer keeps some events: see {@link Inbox.Builder#onError}.
 */
public class InboxException extends Exception {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param message what was attempted
   * @param cause why it failed; may be null
   */
  public InboxException(String message, Throwable cause) {
    super(message, cause);
  }
}
