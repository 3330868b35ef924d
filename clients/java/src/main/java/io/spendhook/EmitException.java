package io.spendhook;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
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
   * @param results the results so far; null for an event whose result is not known
   */
  public EmitException(String message, Throwable cause, List<Result> results) {
    super(message, cause);
    this.results = Collections.unmodifiableList(new ArrayList<>(results));
  }

  /**
   * Returns the results so far.
   *
   * @return one for each event, in their order; null if it is not known whether the event is stored
   */
  public List<Result> results() {
    return results == null ? List.of() : results;
  }
}
