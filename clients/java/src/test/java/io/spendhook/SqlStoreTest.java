package io.spendhook;

import static io.spendhook.TestRun.equal;
import static io.spendhook.TestRun.throwing;

import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/** Tests the store with each database of the property {@code databases}: JDBC URLs, separated by spaces. */
final class SqlStoreTest {
  private interface Test {
    void run(SqlStore store, SqlStore.Connections connections, TestClock clock) throws Exception;
  }

  private static void each(Test test) throws Exception {
    Path folder = Files.createTempDirectory("spendhook-");
    for (String url : System.getProperty("databases").trim().split(" +")) {
      SqlStore.Connections connections = () -> DriverManager.getConnection(url.replace("{}", folder.toString()));
      try (Connection keep = connections.open(); Statement statement = keep.createStatement()) { // keeps a database in memory
        for (String table : List.of("spendhook_inbox", "spendhook_cursor", "worked")) {
          statement.execute("DROP TABLE IF EXISTS " + table);
        }
        statement.execute("CREATE TABLE worked (id VARCHAR(255))");
        TestClock clock = new TestClock(1_000_000);
        SqlStore store = new SqlStore(connections, clock);
        store.migrate();
        store.migrate();
        test.run(store, connections, clock);
      } catch (Throwable e) {
        throw new AssertionError(url + ": " + e, e);
      }
    }
  }

  private static void work(Connection connection, String id) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      statement.execute("INSERT INTO worked VALUES ('" + id + "')");
    }
  }

  private static int worked(SqlStore.Connections connections) throws SQLException {
    return count(connections, "worked");
  }

  private static int count(SqlStore.Connections connections, String table) throws SQLException {
    try (Connection connection = connections.open();
        Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery("SELECT COUNT(*) FROM " + table)) {
      rows.next();
      return rows.getInt(1);
    }
  }

  static void addsAnIdOnce() throws Exception {
    each(
        (store, connections, clock) -> {
          equal(true, store.transaction(t -> t.add("a", 7L)));
          equal(false, store.transaction(t -> t.add("a", 7L)));
          equal(true, store.transaction(t -> t.add("d", null)));
          equal(List.of(true, false, true), store.transaction(t -> List.of(t.add("b", 8L), t.add("b", 8L), t.add("e", 9L))));
          equal(4, count(connections, "spendhook_inbox"));
        });
  }

  static void rollsBack() throws Exception {
    each(
        (store, connections, clock) -> {
          for (Throwable failure : List.of(new SQLException("fails"), new AssertionError("a bug"))) {
            Store.Action<Connection, Void> action =
                t -> {
                  t.add("a", 1L);
                  work(t.unwrap(), "a");
                  t.setCursor("9-1");
                  if (failure instanceof Exception e) {
                    throw e;
                  }
                  throw (Error) failure;
                };
            equal(true, failure == throwing(Throwable.class, () -> store.transaction(action)));
          }
          equal(0, worked(connections));
          equal("", store.transaction(t -> t.cursor()));
          equal(true, store.transaction(t -> t.add("a", 1L)));
        });
  }

  private static void setCursor(SqlStore store, String cursor) throws Exception {
    store.transaction(
        t -> {
          t.setCursor(cursor);
          return null;
        });
  }

  static void keepsACursor() throws Exception {
    each(
        (store, connections, clock) -> {
          equal("", store.transaction(t -> t.cursor()));
          for (String cursor : List.of("4-1", "9".repeat(64), "3-2", "")) {
            setCursor(store, cursor);
            equal(cursor, store.transaction(t -> t.cursor()));
          }
        });
  }

  /** The inboxes of two subscribers in one database. */
  static void worksOnAnEventForEachName() throws Exception {
    each(
        (store, connections, clock) -> {
          String longest = "i".repeat(100);
          List<SqlStore> stores = List.of(store.withName("a"), store.withName(longest));
          for (SqlStore own : stores) {
            Inbox<Connection> inbox = Inbox.builder(InboxTest.verifier(), own, (event, t) -> work(t, event.id())).build();
            for (int i = 0; i < 2; i++) {
              equal(204, inbox.handle(InboxTest.signed("pay-1", "{}")).status());
            }
          }
          equal(2, worked(connections));
          setCursor(stores.get(0), "1-1");
          setCursor(stores.get(1), "2-2");
          equal("1-1", stores.get(0).transaction(t -> t.cursor()));
          equal("2-2", stores.get(1).transaction(t -> t.cursor()));
          clock.advance(Duration.ofDays(31));
          equal(1, stores.get(0).forget(Duration.ofDays(30)));
          equal(false, stores.get(1).transaction(t -> t.add("pay-1", 1L)));
        });
  }

  /** Two processes of one inbox. */
  static void sharesAllWithAStoreOfTheSameName() throws Exception {
    each(
        (store, connections, clock) -> {
          SqlStore other = new SqlStore(connections, clock).withName("inbox"); // the default
          equal(true, store.transaction(t -> t.add("a", 1L)));
          equal(false, other.transaction(t -> t.add("a", 1L)));
          setCursor(other, "1-1");
          equal("1-1", store.transaction(t -> t.cursor()));
        });
  }

  static void notesTheTimeInSeconds() throws Exception {
    each(
        (store, connections, clock) -> {
          clock.advance(Duration.ofMillis(999));
          store.transaction(t -> t.add("a", 1L));
          String received = "SELECT received_at FROM spendhook_inbox WHERE inbox = 'inbox' AND id = 'a' AND sequence = 1";
          try (Connection connection = connections.open();
              Statement statement = connection.createStatement();
              ResultSet rows = statement.executeQuery(received)) {
            rows.next();
            equal(1_000_000L, rows.getLong(1));
          }
        });
  }

  static void forgets() throws Exception {
    each(
        (store, connections, clock) -> {
          store.transaction(t -> t.add("old", 1L));
          clock.advance(Duration.ofDays(30));
          store.transaction(t -> t.add("new", 2L));
          equal(0, store.forget(Duration.ofDays(30)));
          clock.advance(Duration.ofSeconds(1));
          equal(1, store.forget(Duration.ofDays(30)));
          equal(false, store.transaction(t -> t.add("new", 2L)));
        });
  }

  /** Several processes: the key decides, also while the first transaction is open. */
  static void worksOnceOfManyAtTheSameTime() throws Exception {
    each(
        (store, connections, clock) -> {
          int threads = 8;
          AtomicInteger first = new AtomicInteger();
          CountDownLatch start = new CountDownLatch(threads);
          ExecutorService pool = Executors.newFixedThreadPool(threads);
          List<Future<Void>> running = new ArrayList<>();
          for (int i = 0; i < threads; i++) {
            Callable<Void> task =
                () -> {
                  SqlStore own = new SqlStore(connections, clock);
                  start.countDown();
                  start.await();
                  for (int n = 0; n < 20; n++) {
                    String id = "evt-" + n;
                    boolean added =
                        own.transaction(
                            t -> {
                              if (!t.add(id, 1L)) {
                                return false;
                              }
                              work(t.unwrap(), id);
                              t.setCursor("1-1");
                              return true;
                            });
                    if (added) {
                      first.incrementAndGet();
                    }
                  }
                  return null;
                };
            running.add(pool.submit(task));
          }
          for (Future<Void> task : running) {
            task.get();
          }
          pool.shutdown();
          equal(20, first.get());
          equal(20, worked(connections));
        });
  }

  /** Each error in PostgreSQL, and some in SQLite, undo the transaction, also if the work catches it. So does forbidden work. */
  static void doesNotReportWhatIsUndoneAsSuccess() throws Exception {
    each(
        (store, connections, clock) -> {
          String database;
          try (Connection connection = connections.open()) {
            database = connection.getMetaData().getDatabaseProductName();
          }
          String duplicate =
              "INSERT " + (database.equals("SQLite") ? "OR ROLLBACK " : "") + "INTO spendhook_inbox SELECT * FROM spendhook_inbox";
          Work<Connection> work =
              (event, connection) -> {
                work(connection, event.id());
                try (Statement statement = connection.createStatement()) {
                  throwing(SQLException.class, () -> statement.execute(duplicate));
                }
              };
          Inbox<Connection> inbox = Inbox.builder(InboxTest.verifier(), store, work).onError(e -> {}).build();
          boolean undone = !database.equals("H2");
          equal(undone ? 500 : 204, inbox.handle(InboxTest.signed("pay-1", "{}")).status());
          equal(undone ? 0 : 1, worked(connections));
          equal(undone, store.transaction(t -> t.add("pay-1", 1L)));
          inbox = Inbox.builder(InboxTest.verifier(), store, (event, connection) -> connection.rollback()).onError(e -> {}).build();
          equal(500, inbox.handle(InboxTest.signed("pay-2", "{}")).status());
        });
  }

  /** The whole inbox, with work that fails after it has written. */
  static void worksExactlyOnce() throws Exception {
    each(
        (store, connections, clock) -> {
          AtomicInteger failures = new AtomicInteger(2);
          Work<Connection> work =
              (event, connection) -> {
                work(connection, event.id());
                if (failures.getAndDecrement() > 0) {
                  throw new IllegalStateException("fails");
                }
              };
          Inbox<Connection> inbox = Inbox.builder(InboxTest.verifier(), store, work).onError(e -> {}).build();
          List<Integer> statuses = new ArrayList<>();
          for (int i = 0; i < 4; i++) {
            statuses.add(inbox.handle(InboxTest.signed("pay-1", "{}")).status());
          }
          equal(List.of(500, 500, 204, 204), statuses);
          equal(1, worked(connections));
        });
  }
}
