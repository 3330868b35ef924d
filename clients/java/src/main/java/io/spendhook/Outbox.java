package io.spendhook;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;

/** Inserts events into the table {@code spendhook_outbox} of PostgreSQL, from which {@code spendhook relay} sends them. */
public final class Outbox {
  // Inserts a row, and wakes the relay when the transaction is committed. The libraries of all languages have this text.
  private static final String INSERT =
      "WITH written AS (INSERT INTO spendhook_outbox"
          + " (id, company_uuid, event, key, \"timestamp\", metadata, error_code, error_message)"
          + " VALUES (?, CAST(? AS uuid), ?, ?, COALESCE(CAST(? AS timestamptz), now()), CAST(? AS json), ?, ?) RETURNING 1)"
          + " SELECT pg_notify('spendhook_outbox', '') FROM written";

  private Outbox() {}

  /**
   * Inserts an event. Call it within the transaction of your own work, which is not in the mode auto-commit: the event is sent
   * if and only if that is committed.
   *
   * @param connection with the transaction
   * @param event the event
   * @throws SQLException if the database fails
   */
  public static void insert(Connection connection, OutboxEvent event) throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement(INSERT)) {
      String[] values = event.values();
      for (int i = 0; i < values.length; i++) {
        statement.setString(i + 1, values[i]); // null is NULL
      }
      statement.execute();
    }
  }
}
