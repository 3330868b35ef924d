package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Tests the outbox with a connection that records, and with a database of PostgreSQL if {@code databases} names one. */
final class OutboxTest {
  private static final OutboxEvent FULL =
      OutboxEvent.of("pay-1", "PAYMENT_PAID")
          .withCompany("ABCDEF00-0000-4000-8000-000000000001")
          .withKey("account-1")
          .withTimestamp(Instant.parse("2026-11-20T09:30:00.123999999Z"))
          .withMetadata("{\"amount\": 12.50}")
          .withError("C", "m");

  static void insertsByOneStatement() throws Exception {
    List<Object> calls = new ArrayList<>();
    Outbox.insert(recording(calls), FULL);
    Outbox.insert(recording(calls), OutboxEvent.of("pay-2", "PAYMENT_PAID").withMetadata(Map.of("n", new BigDecimal("1.50"))));
    List<Object> want = new ArrayList<>();
    for (List<String> values :
        List.of(
            Arrays.asList(
                "pay-1",
                "ABCDEF00-0000-4000-8000-000000000001",
                "PAYMENT_PAID",
                "account-1",
                "2026-11-20T09:30:00.123Z",
                "{\"amount\": 12.50}",
                "C",
                "m"),
            Arrays.asList("pay-2", null, "PAYMENT_PAID", null, null, "{\"n\":1.50}", null, null))) {
      want.add("prepareStatement 8");
      for (int i = 0; i < values.size(); i++) {
        want.add("setString " + (i + 1) + " " + values.get(i));
      }
      want.addAll(List.of("execute", "close"));
    }
    equal(want, calls);
  }

  static void refusesWhatIsNotValid() {
    OutboxEvent event = OutboxEvent.of("a", "PAID");
    List<TestRun.Action> wrong =
        List.of(
            () -> OutboxEvent.of("", "PAID"),
            () -> OutboxEvent.of("spendhook-1", "PAID"),
            () -> OutboxEvent.of("a".repeat(129), "PAID"),
            () -> OutboxEvent.of("a\n", "PAID"),
            () -> OutboxEvent.of("a", "A B"),
            () -> event.withCompany("acme"),
            () -> event.withKey(""),
            () -> event.withKey("é".repeat(513)),
            () -> event.withMetadata("[1]"),
            () -> event.withMetadata("{"),
            () -> event.withMetadata(Map.of("a", "b".repeat(256 << 10))),
            () -> event.withMetadata("{\"a\":\"" + "b".repeat(256 << 10) + "\"}"),
            () -> event.withError("c".repeat(129), null),
            () -> event.withError("c", "m".repeat(4097)));
    for (int i = 0; i < wrong.size(); i++) {
      throwing("case " + i, IllegalArgumentException.class, wrong.get(i));
    }
  }

  static void insertsIntoPostgres() throws Exception {
    for (String url : System.getProperty("databases").trim().split(" +")) {
      if (!url.startsWith("jdbc:postgresql:")) {
        continue;
      }
      try (Connection connection = DriverManager.getConnection(url); Statement statement = connection.createStatement()) {
        connection.setAutoCommit(false);
        statement.execute(
            "CREATE TEMPORARY TABLE spendhook_outbox (id text, company_uuid uuid, event text, key text,"
                + " \"timestamp\" timestamptz, metadata json, error_code text, error_message text)");
        Outbox.insert(connection, FULL);
        Outbox.insert(connection, OutboxEvent.of("pay-2", "PAYMENT_PAID"));
        ResultSet rows =
            statement.executeQuery(
                "SELECT id || event || metadata || COALESCE(key, '-') || (\"timestamp\" = now()) FROM spendhook_outbox ORDER BY id");
        List<String> got = new ArrayList<>();
        while (rows.next()) {
          got.add(rows.getString(1));
        }
        equal(List.of("pay-1PAYMENT_PAID{\"amount\": 12.50}account-1false", "pay-2PAYMENT_PAID{}-true"), got);
      }
    }
  }

  /** Returns a connection that records the calls of its statements. */
  private static Connection recording(List<Object> calls) {
    return fake(
        Connection.class,
        (name, args) -> {
          calls.add(name + " " + args[0].toString().chars().filter(c -> c == '?').count());
          return fake(PreparedStatement.class, (method, values) -> record(calls, method, values));
        });
  }

  private static Object record(List<Object> calls, String method, Object[] values) {
    StringBuilder text = new StringBuilder(method);
    for (Object value : values == null ? new Object[0] : values) {
      text.append(' ').append(value);
    }
    calls.add(text.toString());
    return method.equals("execute") ? true : null;
  }

  private interface Call {
    Object run(String method, Object[] args);
  }

  private static <T> T fake(Class<T> type, Call call) {
    Object made =
        Proxy.newProxyInstance(
            OutboxTest.class.getClassLoader(), new Class<?>[] {type}, (proxy, method, args) -> call.run(method.getName(), args));
    return type.cast(made);
  }
}
