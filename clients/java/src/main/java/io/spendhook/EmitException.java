package io.spendhook;

import java.io.IOException;
import java.util.List;

/**
 * The emitter gave up. The cause says why: an {@link ApiException} if the last answer was an error; null if events were still
 * refused for a reason that passes. Events without a result may be stored, or not: send them again, unchanged.
 */
public class EmitException extends IOException {
  private static final long serialVersionUID = 1L;

  private final transient List<Result> results;

  /**
   * Makes the exception.
   *
   * @param message what was attempted
   * @param cause why it failed; may be null
   * @param results the results so far
   */
  public EmitException(String message, Throwable cause, List<Result> results) {
    super(message, cause);
    this.results = List.copyOf(results);
  }

  /**
   * Returns the results so far.
   *
   * @return one for each event that got one, in the order of the events; the others are left out
   */
  public List<Result> results() {
    return results == null ? List.of() : results;
  }
}
