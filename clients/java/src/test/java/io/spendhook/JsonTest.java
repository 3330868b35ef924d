package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

final class JsonTest {
  static void readsValues() throws Exception {
    equal(null, Json.parse(" null "));
    equal(true, Json.parse("true"));
    equal(Map.of(), Json.parse("{ }"));
    equal(List.of(), Json.parse("[\r\n\t]"));
    equal(Arrays.asList(null, false, "a", Map.of("b", List.of(BigDecimal.ONE))), Json.parse("[null, false,\"a\" ,{\"b\" : [1]}]"));
    equal(new BigDecimal("12.50"), Json.parse("12.50"));
    equal(new BigDecimal("-0.1e+3"), Json.parse("-0.1e+3"));
    equal("9007199254740993", Json.parse("9007199254740993").toString());
  }

  static void readsStrings() throws Exception {
    equal("\"\\/\b\f\n\r\tA\u00e9", Json.parse("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00E9\""));
    equal("\ud83e\udd80", Json.parse("\"\\uD83E\\udd80\""));
    equal("\ud83e\udd80", Json.parse("\"\ud83e\udd80\"".getBytes(StandardCharsets.UTF_8)));
    equal("\0", Json.parse("\"\\u0000\""));
    equal("\u007f\u2028", Json.parse("\"\u007f\u2028\""));
  }

  static void refusesWhatIsNoJson() {
    for (String text :
        List.of(
            "", " ", "nul", "nullx", "True", "'a'", "{", "[", "]", "[1", "[1,]", "[,1]", "[1 2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
            "{a:1}", "{1:1}", "{\"a\":1 \"b\":2}", "{\"a\":1,\"a\":2}", "{\"a\":1,\"\\u0061\":2}", "\"a", "\"\\\"", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"",
            "\"\\u+123\"", "\"\\u\u0661234\"", "\"\n\"", "\"\\ud83e\"", "\"\\udd80\"", "\"\\udd80\\ud83e\"", "\"\\ud83ea\"", "\"\ud83e\"", "01", "-", "+1", "1.", ".1", "1e", "1e+",
            "-01", "0x1", "NaN", "Infinity", "1 1", "[]]", "\ufeff1", "\u00a01", "1\u0000", "[".repeat(201) + "]".repeat(201))) {
      throwing(text, ParseException.class, () -> Json.parse(text));
    }
    throwing(ParseException.class, () -> Json.parse(new byte[] {'"', (byte) 0xff, '"'}));
    throwing(ParseException.class, () -> Json.parse(new byte[] {'"', (byte) 0xed, (byte) 0xa0, (byte) 0x80, '"'}));
    throwing(ParseException.class, () -> Json.parse(new byte[] {'"', (byte) 0xc0, (byte) 0x80, '"'}));
  }

  /** Those that BigDecimal cannot hold, or takes quadratic time for. */
  static void keepsLargeNumbersAsText() throws Exception {
    equal(true, Json.parse("1".repeat(10_000)).equals(new BigDecimal("1".repeat(10_000))));
    equal(new BigDecimal("1e-2147483647"), Json.parse("1e-2147483647"));
    for (String text : List.of("1".repeat(10_001), "-0." + "1".repeat(1 << 20), "1e99999999999", "-1E-2147483649", "1e" + "9".repeat(1 << 20))) {
      Number number = (Number) Json.parse(text);
      equal("the class of " + text.substring(0, 10), false, number instanceof BigDecimal);
      equal(true, number.toString().equals(text) && Json.write(number).equals(text) && number.equals(Json.parse(text)));
      equal(Double.parseDouble(text), number.doubleValue());
    }
    equal(Integer.MAX_VALUE, ((Number) Json.parse("1e99999999999")).intValue());
    for (String text : List.of("1e99999999999.", "1".repeat(10_001) + "e", "0" + "1".repeat(10_001))) {
      throwing(text, ParseException.class, () -> Json.parse(text));
    }
  }

  static void readsManyLevels() throws Exception {
    Json.parse("[".repeat(200) + "]".repeat(200));
    Json.parse("[" + "[],{},".repeat(1000) + "[]]"); // beside each other
  }

  static void writes() throws Exception {
    String text = "{\"a\":[1,2.50,1E+3,true,null,\"\\\"\\\\\\u000a\\u0000/\u00e9\ud83e\udd80\"],\"b\":{},\"c\":[]}";
    equal(text, Json.write(Json.parse(text)));
    equal("[1,\"b\"]", Json.write(new Object[] {1, "b"}));
    for (Object value : Arrays.asList(Double.NaN, Float.POSITIVE_INFINITY, "\ud83e", new Object(), Map.of(1, 2))) {
      throwing(String.valueOf(value), IllegalArgumentException.class, () -> Json.write(List.of(value)));
    }
    Map<String, Object> circle = new HashMap<>();
    circle.put("self", circle);
    throwing(IllegalArgumentException.class, () -> Json.write(circle));
  }
}
