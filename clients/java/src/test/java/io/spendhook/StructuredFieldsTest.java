package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.util.List;

final class StructuredFieldsTest {
  static void writesWhatItReads() throws Exception {
    for (String text :
        List.of(
            "(\"a\" \"b\");x", "()", "(1 -2 1.5 tok/en:* ?0 ?1 :YWI=: @17 %\"f%c3%bc%25%22\" \"q\\\"\\\\\";p=1;q)",
            "(\"a\");n=\"a \\\"b\\\"\";d=-0.125;t=*a;b=?0;y=:AA==:;e=@-1")) {
      equal(text, StructuredFields.write((StructuredFields.InnerList) StructuredFields.dictionary(List.of("k=" + text)).get("k")));
    }
    equal("(\"a\" \"b\");x=2;y", written("(  \"a\"  \"b\" ); x=1;y=?1;  x=2")); // the last of a name, in the place of the first
    equal("(1.5 2.0 10.0 1)", written("(1.50 2.000 10.0 0001)"));
  }

  private static String written(String text) throws Exception {
    return StructuredFields.write((StructuredFields.InnerList) StructuredFields.dictionary(List.of("k=" + text)).get("k"));
  }

  static void readsDictionaries() throws Exception {
    equal(List.of(), List.copyOf(StructuredFields.dictionary(List.of()).keySet()));
    equal(List.of("a", "b", "*c"), List.copyOf(StructuredFields.dictionary(List.of("a, b=1 ", " *c;x\t,\ta=2")).keySet()));
  }

  static void refusesWhatIsNone() {
    for (String text :
        List.of(
            "a=", "A=1", "1", "a,", "a,,b", "a b", "a=(", "a=(\"b\"", "a=(\"b\"\"c\")", "a=(\"b\"\t\"c\")", "a=((1))", "a=\"b", "a=\"\u00e9\"", "a=\"\\b\"", "a=:YQ:", "a=:Y-==:",
            "a=:YQ==", "a=1.", "a=.1", "a=-", "a=1.2345", "a=1234567890123456", "a=1234567890123.1", "a=?2", "a=@1.5", "a=%\"%C3%BC\"", "a=%\"%ff\"", "a;B", "a;=1", "\ta")) {
      throwing(text, StructuredFields.SyntaxException.class, () -> StructuredFields.dictionary(List.of(text)));
    }
  }
}
