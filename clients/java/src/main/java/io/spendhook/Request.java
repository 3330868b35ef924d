package io.spendhook;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;

/**
 * A received HTTP request.
 *
 * @param method such as {@code POST}
 * @param url path and query, unchanged from the request line
 * @param headers the lines of each header; upper and lower case of the names do not differ
 * @param body the bytes of the body, before anything has parsed them
 */
public record Request(String method, String url, Map<String, List<String>> headers, byte[] body) {
  /**
   * Copies the headers, so that their names are found in any spelling.
   *
   * @param method such as {@code POST}
   * @param url path and query, unchanged from the request line
   * @param headers the lines of each header
   * @param body the bytes of the body
   */
  public Request {
    Objects.requireNonNull(method, "method");
    Objects.requireNonNull(url, "url");
    Objects.requireNonNull(body, "body");
    Map<String, List<String>> lines = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    headers.forEach(
        (name, values) -> {
          if (name != null && values != null) {
            lines.computeIfAbsent(name, n -> new ArrayList<>()).addAll(values);
          }
        });
    headers = Collections.unmodifiableMap(lines);
  }

  /**
   * Returns the lines of a header.
   *
   * @param name the name, in any spelling
   * @return the lines; none if the request does not have the header
   */
  public List<String> lines(String name) {
    return headers.getOrDefault(name, List.of());
  }

  /**
   * Returns a header that must have one line.
   *
   * @param name the name, in any spelling
   * @return the line; null if the request has none, or several, of which different programs would read different ones
   */
  public String header(String name) {
    List<String> lines = lines(name);
    return lines.size() == 1 ? lines.get(0) : null;
  }
}
