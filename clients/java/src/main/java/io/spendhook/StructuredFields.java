package io.spendhook;

import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads dictionaries of structured fields, and writes inner lists (RFC 9651). A bare item is a {@code String}, {@link
 * Token}, {@code Long}, {@code BigDecimal}, {@code Boolean}, {@code byte[]}, {@link Date} or {@link DisplayString}.
 */
final class StructuredFields {
  /** A token, which is not a string. */
  record Token(String text) {}

  /** A date in seconds of the Unix epoch. */
  record Date(long seconds) {}

  /** A string of any characters. */
  record DisplayString(String text) {}

  /** A member of a dictionary, or an item of an inner list. */
  interface Member {}

  /** A bare item with its parameters. */
  record Item(Object value, Map<String, Object> parameters) implements Member {}

  /** An inner list with its parameters. */
  record InnerList(List<Item> items, Map<String, Object> parameters) implements Member {}

  /** A header that is not a structured field. */
  static final class SyntaxException extends Exception {
    private static final long serialVersionUID = 1L;

    SyntaxException(String message) {
      super(message);
    }
  }

  private static final int MAX_INTEGER_DIGITS = 15;
  private static final int MAX_WHOLE_DIGITS = 12; // of a decimal
  private static final int MAX_FRACTION_DIGITS = 3;

  private final String text;
  private int at;

  private StructuredFields(String text) {
    this.text = text;
  }

  /** Reads the dictionary of a header (section 4.2.2). Of members with one key, the last one counts. */
  static Map<String, Member> dictionary(List<String> lines) throws SyntaxException {
    StructuredFields fields = new StructuredFields(String.join(", ", lines));
    fields.spaces();
    Map<String, Member> members = new LinkedHashMap<>();
    while (!fields.end()) {
      String key = fields.key();
      members.put(key, fields.accept('=') ? fields.member() : new Item(true, fields.parameters()));
      fields.optionalWhiteSpace();
      if (fields.end()) {
        break;
      }
      fields.expect(',');
      fields.optionalWhiteSpace();
      if (fields.end()) {
        throw new SyntaxException("a comma at the end");
      }
    }
    return members;
  }

  /** Writes an inner list (section 4.1.1.1). */
  static String write(InnerList list) throws SyntaxException {
    StringBuilder out = new StringBuilder("(");
    String separator = "";
    for (Item item : list.items()) {
      out.append(separator);
      writeBare(item.value(), out);
      writeParameters(item.parameters(), out);
      separator = " ";
    }
    writeParameters(list.parameters(), out.append(')'));
    return out.toString();
  }

  private Member member() throws SyntaxException {
    if (!accept('(')) {
      return item();
    }
    List<Item> items = new ArrayList<>();
    while (true) {
      spaces();
      if (accept(')')) {
        return new InnerList(items, parameters());
      }
      items.add(item());
      if (end() || (peek() != ' ' && peek() != ')')) {
        throw new SyntaxException("an inner list does not end");
      }
    }
  }

  private Item item() throws SyntaxException {
    Object value = bare();
    return new Item(value, parameters());
  }

  private Map<String, Object> parameters() throws SyntaxException {
    Map<String, Object> parameters = new LinkedHashMap<>();
    while (accept(';')) {
      spaces();
      String key = key();
      parameters.put(key, accept('=') ? bare() : Boolean.TRUE);
    }
    return parameters;
  }

  private String key() throws SyntaxException {
    int start = at;
    while (!end() && (isLower(peek()) || peek() == '*' || (at > start && (isDigit(peek()) || "_-.".indexOf(peek()) >= 0)))) {
      at++;
    }
    if (at == start) {
      throw new SyntaxException("a key is missing");
    }
    return text.substring(start, at);
  }

  private Object bare() throws SyntaxException {
    char c = end() ? ' ' : peek();
    if (c == '-' || isDigit(c)) {
      return number();
    }
    if (c == '*' || isLower(c) || isUpper(c)) {
      return token();
    }
    at++;
    switch (c) {
      case '"':
        return string();
      case ':':
        return bytes();
      case '?':
        return bool();
      case '@':
        return date();
      case '%':
        return displayString();
      default:
        throw new SyntaxException("a value is missing");
    }
  }

  private Object number() throws SyntaxException {
    int start = at;
    accept('-');
    int whole = digits();
    if (whole == 0 || whole > MAX_INTEGER_DIGITS) {
      throw new SyntaxException("a number is malformed");
    }
    if (!accept('.')) {
      return Long.valueOf(text.substring(start, at));
    }
    int fraction = digits();
    if (whole > MAX_WHOLE_DIGITS || fraction == 0 || fraction > MAX_FRACTION_DIGITS) {
      throw new SyntaxException("a decimal is malformed");
    }
    return new BigDecimal(text.substring(start, at));
  }

  private int digits() {
    int start = at;
    while (!end() && isDigit(peek())) {
      at++;
    }
    return at - start;
  }

  private Token token() {
    int start = at;
    while (!end() && isTokenCharacter(peek())) {
      at++;
    }
    return new Token(text.substring(start, at));
  }

  private String string() throws SyntaxException {
    StringBuilder content = new StringBuilder();
    while (!end()) {
      char c = text.charAt(at++);
      if (c == '"') {
        return content.toString();
      }
      if (c == '\\') {
        c = end() ? ' ' : text.charAt(at++);
        if (c != '"' && c != '\\') {
          throw new SyntaxException("an unknown escape in a string");
        }
      } else if (c < ' ' || c > '~') {
        throw new SyntaxException("a string is not ASCII");
      }
      content.append(c);
    }
    throw new SyntaxException("a string does not end");
  }

  private byte[] bytes() throws SyntaxException {
    int end = text.indexOf(':', at);
    if (end < 0) {
      throw new SyntaxException("a byte sequence does not end");
    }
    String encoded = text.substring(at, end);
    at = end + 1;
    try {
      if (encoded.length() % 4 != 0) { // the decoder accepts a missing padding
        throw new IllegalArgumentException("padding");
      }
      return Base64.getDecoder().decode(encoded);
    } catch (IllegalArgumentException e) {
      throw new SyntaxException("a byte sequence is not base64");
    }
  }

  private Boolean bool() throws SyntaxException {
    if (accept('1')) {
      return true;
    }
    expect('0');
    return false;
  }

  private Date date() throws SyntaxException {
    if (!end() && (peek() == '-' || isDigit(peek())) && number() instanceof Long seconds) {
      return new Date(seconds);
    }
    throw new SyntaxException("a date is not an integer");
  }

  private DisplayString displayString() throws SyntaxException {
    expect('"');
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    while (!end()) {
      char c = text.charAt(at++);
      if (c == '"') {
        return new DisplayString(decoded(content.toByteArray()));
      }
      if (c < ' ' || c > '~') {
        throw new SyntaxException("a display string is not ASCII");
      }
      content.write(c == '%' ? hexadecimal() : c);
    }
    throw new SyntaxException("a display string does not end");
  }

  private int hexadecimal() throws SyntaxException {
    int value = 0;
    for (int i = 0; i < 2; i++) {
      int digit = end() ? -1 : "0123456789abcdef".indexOf(text.charAt(at++));
      if (digit < 0) {
        throw new SyntaxException("two lower-case hexadecimal digits are missing");
      }
      value = value * 16 + digit;
    }
    return value;
  }

  private static String decoded(byte[] content) throws SyntaxException {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString();
    } catch (CharacterCodingException e) {
      throw new SyntaxException("a display string is not UTF-8");
    }
  }

  private boolean end() {
    return at >= text.length();
  }

  private char peek() {
    return text.charAt(at);
  }

  private boolean accept(char c) {
    if (end() || peek() != c) {
      return false;
    }
    at++;
    return true;
  }

  private void expect(char c) throws SyntaxException {
    if (!accept(c)) {
      throw new SyntaxException(c + " is missing");
    }
  }

  private void spaces() {
    while (!end() && peek() == ' ') {
      at++;
    }
  }

  private void optionalWhiteSpace() {
    while (!end() && (peek() == ' ' || peek() == '\t')) {
      at++;
    }
  }

  private static boolean isDigit(char c) {
    return c >= '0' && c <= '9';
  }

  private static boolean isLower(char c) {
    return c >= 'a' && c <= 'z';
  }

  private static boolean isUpper(char c) {
    return c >= 'A' && c <= 'Z';
  }

  private static boolean isTokenCharacter(char c) {
    return isDigit(c) || isLower(c) || isUpper(c) || "!#$%&'*+-.^_`|~:/".indexOf(c) >= 0;
  }

  private static void writeParameters(Map<String, Object> parameters, StringBuilder out) throws SyntaxException {
    for (Map.Entry<String, Object> parameter : parameters.entrySet()) {
      out.append(';').append(parameter.getKey());
      if (!Boolean.TRUE.equals(parameter.getValue())) {
        writeBare(parameter.getValue(), out.append('='));
      }
    }
  }

  private static void writeBare(Object value, StringBuilder out) throws SyntaxException {
    if (value instanceof String string) {
      out.append('"').append(string.replace("\\", "\\\\").replace("\"", "\\\"")).append('"');
    } else if (value instanceof Token token) {
      out.append(token.text());
    } else if (value instanceof Long number) {
      out.append(number.longValue());
    } else if (value instanceof BigDecimal decimal) {
      out.append(decimal.stripTrailingZeros().setScale(Math.max(1, decimal.stripTrailingZeros().scale())).toPlainString());
    } else if (value instanceof Boolean bool) {
      out.append(bool ? "?1" : "?0");
    } else if (value instanceof byte[] bytes) {
      out.append(':').append(Base64.getEncoder().encodeToString(bytes)).append(':');
    } else if (value instanceof Date date) {
      out.append('@').append(date.seconds());
    } else if (value instanceof DisplayString string) {
      writeDisplayString(string.text(), out);
    } else {
      throw new SyntaxException("a value has an unknown type");
    }
  }

  private static void writeDisplayString(String text, StringBuilder out) {
    out.append("%\"");
    for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
      if (b == '%' || b == '"' || b < ' ' || b > '~') { // bytes beyond ASCII are negative
        out.append(String.format("%%%02x", b & 0xff));
      } else {
        out.append((char) b);
      }
    }
    out.append('"');
  }
}
