package io.spendhook;

/** The message has no valid signature: answer 401. The text of the exception says why; do not send it to the sender. */
public class InvalidMessageException extends Exception {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param message why the message is not valid
   */
  public InvalidMessageException(String message) {
    super(message);
  }
}
