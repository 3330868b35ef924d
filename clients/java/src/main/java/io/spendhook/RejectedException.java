package io.spendhook;

import java.io.IOException;

/** Spendhook refused the event: its status is CONFLICT or REJECTED. It would be refused again. */
public class RejectedException extends IOException {
  private static final long serialVersionUID = 1L;

  private final transient Result result;

  /**
   * Makes the exception.
   *
   * @param result the result of the event
   */
  public RejectedException(Result result) {
    super(
        "event " + result.id() + " is refused: " + result.status()
            + (result.error() == null ? "" : " " + result.error().code() + ": " + result.error().message()));
    this.result = result;
  }

  /**
   * Returns the result.
   *
   * @return the result of the event; null if the exception was serialised
   */
  public Result result() {
    return result;
  }
}
