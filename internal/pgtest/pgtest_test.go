package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"spendhook/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEachTestHasItsOwnEmptyDatabase(t *testing.T) {
	t.Parallel()
	for range 2 {
		conn := connect(t, pgtest.New(t))
		if _, err := conn.Exec(t.Context(), "CREATE TABLE once (id INTEGER)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAStoppedServerKeepsItsData(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	if _, err := connect(t, s.URL()).Exec(t.Context(), "CREATE TABLE kept (id INTEGER)"); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if _, err := pgx.Connect(t.Context(), s.URL()); err == nil {
		t.Fatal("a stopped server answers")
	}
	s.Restart()
	if _, err := connect(t, s.URL()).Exec(t.Context(), "SELECT id FROM kept"); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}
