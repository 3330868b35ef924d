package io.spendhook;

/** The store or the work failed. The cause is their exception. Nothing of the event was stored: it comes again. */
public class InboxException extends Exception {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param message what was attempted
   * @param cause why it failed
   */
  public InboxException(String message, Throwable cause) {
    super(message, cause);
  }
}
