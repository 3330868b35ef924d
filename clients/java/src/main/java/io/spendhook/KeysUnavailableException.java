package io.spendhook;

/**
 * The published keys cannot be read now, so it is unknown whether the message is valid: answer 503, and Spendhook sends it
 * again.
 */
public class KeysUnavailableException extends Exception {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the exception.
   *
   * @param message what was attempted
   * @param cause why it failed; may be null
   */
  public KeysUnavailableException(String message, Throwable cause) {
    super(message, cause);
  }
}
