package io.spendhook;

import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads and writes JSON (RFC 8259), because the JDK has nothing for it.
 *
 * <p>An object is a {@code Map<String, Object>} in the order of the text, an array a {@code List<Object>}, a number a
 * {@link BigDecimal} with all of its digits; the others are {@code String}, {@code Boolean} and {@code null}. A number of more
 * than 10,000 characters, or with an exponent beyond 32 bits, is another {@link Number}: its {@code toString} is the text of
 * the number, and {@link #write} writes it as it was.
 *
 * <p>The reader is strict: it refuses a member that occurs twice, half of a surrogate pair, bytes that are not UTF-8, more
 * than 200 levels, and anything after the value.
 */
public final class Json {
  private static final int MAX_DEPTH = 200;
  private static final int MAX_DECIMAL = 10_000; // characters; BigDecimal takes quadratic time

  private final String text;
  private int at;
  private int depth;

  private Json(String text) {
    this.text = text;
  }

  /**
   * Reads one value.
   *
   * @param text the value, with white space around it at most
   * @return the value, in modifiable maps and lists
   * @throws ParseException if the text is not one JSON value
   */
  public static Object parse(String text) throws ParseException {
    Json json = new Json(text);
    Object value = json.value();
    json.space();
    if (json.at < text.length()) {
      throw json.error("something follows the value");
    }
    return value;
  }

  /**
   * Reads one value in UTF-8.
   *
   * @param text the bytes of the value
   * @return the value, as {@link #parse(String)} returns it
   * @throws ParseException if the bytes are not one JSON value in UTF-8
   */
  public static Object parse(byte[] text) throws ParseException {
    try {
      // The decoder of a charset reports malformed bytes; new String would replace them.
      return parse(StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(text)).toString());
    } catch (CharacterCodingException e) {
      throw new ParseException("not UTF-8", 0);
    }
  }

  /**
   * Writes a value without white space.
   *
   * @param value null, or a {@code String}, {@code Boolean}, {@code Number}, {@code Map} with names that are strings,
   *     {@code Iterable} or array of objects, and so on in them
   * @return the text
   * @throws IllegalArgumentException if the value has anything else in it, half of a surrogate pair, a number that is
   *     not finite, or more than 200 levels
   */
  public static String write(Object value) {
    StringBuilder out = new StringBuilder();
    write(value, out, 0);
    return out.toString();
  }

  private Object value() throws ParseException {
    space();
    if (at == text.length()) {
      throw error("a value is missing");
    }
    char c = text.charAt(at);
    switch (c) {
      case '{':
        return object();
      case '[':
        return array();
      case '"':
        return string();
      case 't':
        return word("true", true);
      case 'f':
        return word("false", false);
      case 'n':
        return word("null", null);
      default:
        return number();
    }
  }

  private Map<String, Object> object() throws ParseException {
    Map<String, Object> members = new LinkedHashMap<>();
    open();
    if (skip('}')) {
      depth--;
      return members;
    }
    do {
      space();
      if (at == text.length() || text.charAt(at) != '"') {
        throw error("the name of a member is missing");
      }
      String name = string();
      if (!skip(':')) {
        throw error("a colon is missing");
      }
      Object value = value();
      if (members.containsKey(name)) {
        throw error("a member occurs twice");
      }
      members.put(name, value);
    } while (skip(','));
    close('}');
    return members;
  }

  private List<Object> array() throws ParseException {
    List<Object> items = new ArrayList<>();
    open();
    if (skip(']')) {
      depth--;
      return items;
    }
    do {
      items.add(value());
    } while (skip(','));
    close(']');
    return items;
  }

  private void open() throws ParseException {
    if (++depth > MAX_DEPTH) {
      throw error("too many levels");
    }
    at++;
  }

  private void close(char bracket) throws ParseException {
    if (!skip(bracket)) {
      throw error("a comma or " + bracket + " is missing");
    }
    depth--;
  }

  private String string() throws ParseException {
    StringBuilder content = new StringBuilder();
    int start = at++;
    while (true) {
      if (at == text.length()) {
        throw error("a string does not end");
      }
      char c = text.charAt(at++);
      if (c == '"') {
        break;
      }
      if (c < ' ') {
        throw error("a control character in a string");
      }
      content.append(c == '\\' ? escaped() : c);
    }
    if (!wellFormed(content)) {
      throw new ParseException("half of a surrogate pair in a string", start);
    }
    return content.toString();
  }

  private char escaped() throws ParseException {
    char c = at < text.length() ? text.charAt(at++) : ' ';
    switch (c) {
      case '"':
      case '\\':
      case '/':
        return c;
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        return unicode();
      default:
        throw error("an unknown escape");
    }
  }

  private char unicode() throws ParseException {
    int unit = 0;
    for (int end = at + 4; at < end; at++) {
      char c = at < text.length() ? text.charAt(at) : ' ';
      int digit = c < 128 ? Character.digit(c, 16) : -1; // digits of other scripts are none
      if (digit < 0) {
        throw error("four hexadecimal digits are missing");
      }
      unit = unit * 16 + digit;
    }
    return (char) unit;
  }

  private Object word(String word, Object value) throws ParseException {
    if (!text.startsWith(word, at)) {
      throw error("not a value");
    }
    at += word.length();
    return value;
  }

  private Number number() throws ParseException {
    int start = at;
    accept('-');
    if (!accept('0')) {
      digits();
    }
    if (accept('.')) {
      digits();
    }
    if (accept('e') || accept('E')) {
      if (!accept('+')) {
        accept('-');
      }
      digits();
    }
    String number = text.substring(start, at);
    if (number.length() > MAX_DECIMAL) {
      return new LargeNumber(number);
    }
    try {
      return new BigDecimal(number);
    } catch (NumberFormatException e) { // an exponent beyond 32 bits
      return new LargeNumber(number);
    }
  }

  /** A number that is kept as text. */
  private static final class LargeNumber extends Number {
    private static final long serialVersionUID = 1L;

    private final String text;

    LargeNumber(String text) {
      this.text = text;
    }

    @Override
    public int intValue() {
      return (int) doubleValue();
    }

    @Override
    public long longValue() {
      return (long) doubleValue();
    }

    @Override
    public float floatValue() {
      return (float) doubleValue();
    }

    @Override
    public double doubleValue() {
      return Double.parseDouble(text);
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof LargeNumber number && number.text.equals(text);
    }

    @Override
    public int hashCode() {
      return text.hashCode();
    }

    @Override
    public String toString() {
      return text;
    }
  }

  private void digits() throws ParseException {
    int start = at;
    while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
      at++;
    }
    if (at == start) {
      throw error("not a value");
    }
  }

  private boolean accept(char c) {
    if (at == text.length() || text.charAt(at) != c) {
      return false;
    }
    at++;
    return true;
  }

  private boolean skip(char c) {
    space();
    return accept(c);
  }

  private void space() {
    while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
      at++;
    }
  }

  private ParseException error(String what) {
    return new ParseException("JSON at " + at + ": " + what, at);
  }

  private static void write(Object value, StringBuilder out, int depth) {
    if (depth > MAX_DEPTH) {
      throw new IllegalArgumentException("more than " + MAX_DEPTH + " levels");
    }
    if (value == null || value instanceof Boolean) {
      out.append(value);
    } else if (value instanceof CharSequence) {
      writeString(value.toString(), out);
    } else if (value instanceof Number) {
      writeNumber((Number) value, out);
    } else if (value instanceof Map) {
      writeObject((Map<?, ?>) value, out, depth);
    } else if (value instanceof Iterable) {
      writeArray((Iterable<?>) value, out, depth);
    } else if (value instanceof Object[]) {
      writeArray(Arrays.asList((Object[]) value), out, depth);
    } else {
      throw new IllegalArgumentException("JSON has no " + value.getClass().getName());
    }
  }

  private static void writeNumber(Number number, StringBuilder out) {
    if ((number instanceof Double || number instanceof Float) && !Double.isFinite(number.doubleValue())) {
      throw new IllegalArgumentException("JSON has no " + number);
    }
    out.append(number);
  }

  private static void writeObject(Map<?, ?> members, StringBuilder out, int depth) {
    String separator = "{";
    for (Map.Entry<?, ?> member : members.entrySet()) {
      if (!(member.getKey() instanceof String)) {
        throw new IllegalArgumentException("the name of a member is not a string");
      }
      out.append(separator);
      writeString((String) member.getKey(), out);
      out.append(':');
      write(member.getValue(), out, depth + 1);
      separator = ",";
    }
    out.append(members.isEmpty() ? "{}" : "}");
  }

  private static void writeArray(Iterable<?> items, StringBuilder out, int depth) {
    out.append('[');
    String separator = "";
    for (Object item : items) {
      out.append(separator);
      write(item, out, depth + 1);
      separator = ",";
    }
    out.append(']');
  }

  private static void writeString(String string, StringBuilder out) {
    if (!wellFormed(string)) { // UTF-8 cannot have it
      throw new IllegalArgumentException("half of a surrogate pair in a string");
    }
    out.append('"');
    for (int i = 0; i < string.length(); i++) {
      char c = string.charAt(i);
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < ' ') {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    out.append('"');
  }

  private static boolean wellFormed(CharSequence text) {
    for (int i = 0; i < text.length(); i++) {
      if (!Character.isSurrogate(text.charAt(i))) {
        continue;
      }
      if (i + 1 == text.length() || !Character.isSurrogatePair(text.charAt(i), text.charAt(i + 1))) {
        return false;
      }
      i++;
    }
    return true;
  }
}
