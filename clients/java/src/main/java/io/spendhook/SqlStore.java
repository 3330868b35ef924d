package io.spendhook;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.time.Clock;
import java.time.Duration;
import java.util.Objects;
import javax.sql.DataSource;

/**
 * A store in an SQL database, in the tables {@code spendhook_inbox} and {@code spendhook_cursor}. Work gets the connection, and
 * writes into its own tables of the same database. Inboxes of several subscribers in one database need names of their own
 * ({@link #withName}); two processes of one inbox have the same name, and the primary key decides which of them works on an
 * event.
 *
 * <p>PostgreSQL undoes the transaction after an error. Work that catches one must go back to a savepoint; else the transaction
 * fails at its end, and the event comes again.
 *
 * <p>Tested with SQLite, PostgreSQL and H2. Others need savepoints, and an error of class 23 for a duplicate key. They must
 * compare names and ids by case, else of two events whose ids differ only in case, one is lost: give the columns {@code inbox}
 * and {@code id} such a collation, since those that are the default of MySQL and SQL Server do not.
 */
public final class SqlStore implements Store<Connection> {
  private static final String[] TABLES = {
    "CREATE TABLE IF NOT EXISTS spendhook_inbox"
        + " (inbox VARCHAR(100) NOT NULL, id VARCHAR(255) NOT NULL, sequence BIGINT, received_at BIGINT NOT NULL,"
        + " PRIMARY KEY (inbox, id))",
    "CREATE TABLE IF NOT EXISTS spendhook_cursor (inbox VARCHAR(100) NOT NULL PRIMARY KEY, position VARCHAR(64) NOT NULL)"
  };
  private static final String ADD = "INSERT INTO spendhook_inbox (inbox, id, sequence, received_at) VALUES (?, ?, ?, ?)";
  private static final String ADDED = "SELECT id FROM spendhook_inbox WHERE inbox = ? AND id = ?";
  private static final String ADD_CURSOR = "INSERT INTO spendhook_cursor (position, inbox) VALUES (?, ?)";
  private static final String MOVE_CURSOR = "UPDATE spendhook_cursor SET position = ? WHERE inbox = ?";
  private static final String CURSOR = "SELECT position FROM spendhook_cursor WHERE inbox = ?";
  private static final String FORGET = "DELETE FROM spendhook_inbox WHERE inbox = ? AND received_at < ?";
  private static final String DUPLICATE = "23"; // the class of violated constraints in SQLSTATE

  /** Opens connections. */
  @FunctionalInterface
  public interface Connections {
    /**
     * Opens a connection, or takes one from a pool. The store closes it.
     *
     * @return the connection
     * @throws SQLException if that fails
     */
    Connection open() throws SQLException;
  }

  private final Connections connections;
  private final Clock clock;
  private final String name;

  /**
   * Makes a store of a data source, such as a pool.
   *
   * @param source where the connections come from
   */
  public SqlStore(DataSource source) {
    this(Objects.requireNonNull(source)::getConnection, Clock.systemUTC());
  }

  /**
   * Makes a store of connections.
   *
   * @param connections opens them, such as {@code () -> DriverManager.getConnection(url)}
   * @param clock the clock of {@code received_at}
   */
  public SqlStore(Connections connections, Clock clock) {
    this(connections, clock, "inbox");
  }

  private SqlStore(Connections connections, Clock clock, String name) {
    this.connections = Objects.requireNonNull(connections);
    this.clock = Objects.requireNonNull(clock);
    this.name = Objects.requireNonNull(name);
  }

  /**
   * Makes a store like this one for the inbox of a name. Inboxes of several subscribers in one database need names of their
   * own; two processes of one inbox have the same name.
   *
   * @param name of the inbox, at most 100 characters; {@code inbox} without this method
   * @return the store
   */
  public SqlStore withName(String name) {
    return new SqlStore(connections, clock, name);
  }

  /**
   * Creates the tables unless they exist.
   *
   * @throws SQLException if the database fails
   */
  public void migrate() throws SQLException {
    try {
      createTables();
    } catch (SQLException e) {
      createTables(); // PostgreSQL refuses a table that another process creates at the same time
    }
  }

  private void createTables() throws SQLException {
    try (Connection connection = connections.open(); Statement statement = connection.createStatement()) {
      boolean before = connection.getAutoCommit();
      connection.setAutoCommit(true);
      for (String table : TABLES) {
        statement.execute(table);
      }
      connection.setAutoCommit(before);
    }
  }

  /**
   * Removes the ids of events that this inbox received long ago. An event that comes again after its id was removed is worked on
   * again. So the age must be more than the sender keeps events (its {@code events.retention}, by default 7 days), and more
   * than the age of any event that you let it replay; 30 days are safe by default.
   *
   * @param age of the ids that are removed
   * @return how many ids were removed
   * @throws SQLException if the database fails
   */
  public int forget(Duration age) throws SQLException {
    try (Connection connection = connections.open();
        PreparedStatement delete = connection.prepareStatement(FORGET)) {
      boolean before = connection.getAutoCommit();
      connection.setAutoCommit(true);
      delete.setString(1, name);
      delete.setLong(2, clock.instant().minus(age).getEpochSecond());
      int removed = delete.executeUpdate();
      connection.setAutoCommit(before);
      return removed;
    }
  }

  @Override
  public <R> R transaction(Action<Connection, R> action) throws Exception {
    try (Connection connection = connections.open()) {
      boolean before = connection.getAutoCommit();
      connection.setAutoCommit(false);
      R result;
      try {
        SqlTransaction transaction = new SqlTransaction(connection);
        result = action.run(transaction);
        transaction.check();
        connection.commit();
      } catch (Throwable e) {
        rollback(connection, before, e);
        throw e;
      }
      restore(connection, before);
      return result;
    }
  }

  /**
   * Rolls back. A failure must not hide its cause. After it the connection is only closed, which rolls back: to set
   * autocommit would commit.
   */
  private static void rollback(Connection connection, boolean autoCommit, Throwable cause) {
    try {
      connection.rollback();
      connection.setAutoCommit(autoCommit);
    } catch (SQLException e) {
      cause.addSuppressed(e);
    }
  }

  /** Gives the connection back to a pool as it was. The transaction is committed, even if this fails. */
  private static void restore(Connection connection, boolean autoCommit) {
    try {
      connection.setAutoCommit(autoCommit);
    } catch (SQLException e) {
      System.getLogger(SqlStore.class.getName()).log(System.Logger.Level.DEBUG, "set autocommit", e);
    }
  }

  private final class SqlTransaction implements Transaction<Connection> {
    private final Connection connection;
    private String added; // the first id that was; null: none

    SqlTransaction(Connection connection) {
      this.connection = connection;
    }

    @Override
    public boolean add(String id, Long sequence) throws SQLException {
      boolean isNew = insertNew(ADD, name, id, sequence, clock.instant().getEpochSecond());
      if (isNew && added == null) {
        added = id;
      }
      return isNew;
    }

    /**
     * Fails if the transaction was undone. PostgreSQL does that after an error, also if the work has caught it, and its driver
     * then commits nothing, and does not say so.
     */
    void check() throws SQLException {
      if (added != null && selected(ADDED, name, added) == null) {
        throw new SQLException("the transaction was rolled back during the work");
      }
    }

    @Override
    public String cursor() throws SQLException {
      return Objects.requireNonNullElse(selected(CURSOR, name), "");
    }

    /** Returns the text that a query finds, or null. */
    private String selected(String query, String... values) throws SQLException {
      try (PreparedStatement select = connection.prepareStatement(query)) {
        for (int i = 0; i < values.length; i++) {
          select.setString(i + 1, values[i]);
        }
        try (ResultSet rows = select.executeQuery()) {
          return rows.next() ? rows.getString(1) : null;
        }
      }
    }

    @Override
    public void setCursor(String cursor) throws SQLException {
      if (execute(MOVE_CURSOR, cursor, name) == 0) {
        insertNew(ADD_CURSOR, cursor, name); // if another process has just done it, we read a page once more
      }
    }

    @Override
    public Connection unwrap() {
      return connection;
    }

    /** Inserts a row unless its key exists. */
    private boolean insertNew(String insert, Object... values) throws SQLException {
      String database = connection.getMetaData().getDatabaseProductName();
      if (database.equals("SQLite") || database.equals("PostgreSQL")) {
        return execute(insert + " ON CONFLICT DO NOTHING", values) > 0;
      }
      Savepoint before = connection.setSavepoint();
      try {
        return execute(insert, values) > 0;
      } catch (SQLException e) {
        if (e.getSQLState() == null || !e.getSQLState().startsWith(DUPLICATE)) {
          throw e;
        }
        connection.rollback(before);
        return false;
      }
    }

    private int execute(String sql, Object... values) throws SQLException {
      try (PreparedStatement statement = connection.prepareStatement(sql)) {
        for (int i = 0; i < values.length; i++) {
          if (values[i] instanceof Long number) {
            statement.setLong(i + 1, number);
          } else if (values[i] == null) { // only a number may be unknown
            statement.setNull(i + 1, java.sql.Types.BIGINT);
          } else {
            statement.setString(i + 1, values[i].toString());
          }
        }
        return statement.executeUpdate();
      }
    }
  }
}
