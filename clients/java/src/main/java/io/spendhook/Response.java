package io.spendhook;

import java.util.Map;

/**
 * The answer to a request.
 *
 * @param status the HTTP status
 * @param body the text of the body; empty for a status that has none
 * @param headers the headers, by their names
 */
public record Response(int status, String body, Map<String, String> headers) {
  /**
   * Makes an answer without headers.
   *
   * @param status the HTTP status
   * @param body the text of the body; empty for a status that has none
   */
  public Response(int status, String body) {
    this(status, body, Map.of());
  }
}
