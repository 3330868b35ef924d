package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"spendhook/internal/pgtest"
	"spendhook/relay/outbox"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	full = Event{
		ID: "pay-1", Event: "PAYMENT_PAID", Company: "ABCDEF00-0000-4000-8000-000000000001", Key: "account-1",
		Timestamp: time.Date(2026, 11, 20, 9, 30, 0, 123_999_999, time.FixedZone("", 7200)),
		Metadata:  json.RawMessage(`{"amount": 12.50}`), ErrorCode: "C", ErrorMessage: `it's "so"`,
	}
	least = Event{ID: "pay-2", Event: "PAYMENT_PAID"}
	// wantRows are the rows of both. That of least has the time of its transaction.
	wantRows = []string{
		`pay-1 abcdef00-0000-4000-8000-000000000001 PAYMENT_PAID account-1 2026-11-20 07:30:00.123+00 {"amount": 12.50} C it's "so"`,
		`pay-2 - PAYMENT_PAID - now {} - -`,
	}
)

// database makes a table, with a connection that listens to it.
func database(t *testing.T) (url string, listening *pgx.Conn) {
	t.Helper()
	url = pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	schema, err := outbox.Schema("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), schema+`LISTEN spendhook_outbox`); err != nil {
		t.Fatal(err)
	}
	return url, conn
}

func checkRows(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(ctx, `SET TimeZone = 'UTC'`)
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	rows, err = conn.Query(ctx, `SELECT concat_ws(' ', id, COALESCE(company_uuid::text, '-'), event, COALESCE(key, '-'),
		CASE WHEN "timestamp" BETWEEN now() - interval '1 hour' AND now() THEN 'now' ELSE "timestamp"::text END,
		metadata, COALESCE(error_code, '-'), COALESCE(error_message, '-')) FROM spendhook_outbox ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || strings.Join(got, "\n") != strings.Join(wantRows, "\n") {
		t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(wantRows, "\n"))
	}
}

func TestInsert(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []Event{full, least} {
			if err := Insert(t.Context(), tx, e); err != nil {
				t.Fatal(err)
			}
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	checkRows(t, conn)
}

func TestInsertPGX(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(t.Context()) }()
	err = pgx.BeginFunc(t.Context(), other, func(tx pgx.Tx) error {
		if err := InsertPGX(t.Context(), tx, full); err != nil {
			return err
		}
		return InsertPGX(t.Context(), tx, least)
	})
	if err != nil {
		t.Fatal(err)
	}
	checkRows(t, conn)
}

// A service needs the privilege INSERT alone.
func TestInsertNeedsNoOtherPrivilege(t *testing.T) {
	t.Parallel()
	_, conn := database(t)
	if _, err := conn.Exec(t.Context(), `CREATE ROLE emitter; GRANT INSERT ON spendhook_outbox TO emitter; SET ROLE emitter`); err != nil {
		t.Fatal(err)
	}
	if err := InsertPGX(t.Context(), conn, least); err != nil {
		t.Error(err)
	}
}

// noTx fails a test that uses it.
type noTx struct{ t *testing.T }

func (n noTx) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	n.t.Error("the event reaches the database")
	return nil, sql.ErrTxDone
}

func TestAnEventThatIsNotValidIsNotInserted(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Event){
		"the id":             func(e *Event) { e.ID = "" },
		"begin with":         func(e *Event) { e.ID = "spendhook-1" },
		"1 to 128 of":        func(e *Event) { e.ID = strings.Repeat("a", 129) },
		"type":               func(e *Event) { e.Event = "A B" },
		"UUID":               func(e *Event) { e.Company = "acme" },
		"key":                func(e *Event) { e.Key = strings.Repeat("k", 1025) },
		"JSON object":        func(e *Event) { e.Metadata = json.RawMessage(`[1]`) },
		"not a JSON":         func(e *Event) { e.Metadata = json.RawMessage(`{"a":`) },
		"metadata have more": func(e *Event) { e.Metadata = json.RawMessage(`{"a":"` + strings.Repeat("b", 256<<10) + `"}`) },
		"error code":         func(e *Event) { e.ErrorCode = strings.Repeat("c", 129) },
		"error message":      func(e *Event) { e.ErrorMessage = strings.Repeat("m", 4097) },
	} {
		e := full
		change(&e)
		if err := Insert(t.Context(), noTx{t}, e); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The libraries of all languages send the same text, which the tests above run.
func TestTheStatementIsTheSameInEachLanguage(t *testing.T) {
	t.Parallel()
	for file, placeholder := range map[string]string{
		"../../typescript/src/outbox.ts":                    "",
		"../../python/spendhook/_outbox.py":                 "%s",
		"../../java/src/main/java/io/spendhook/Outbox.java": "?",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := literal(string(text), placeholder); got != statement {
			t.Errorf("%s:\n%s\nwant\n%s", file, got, statement)
		}
	}
}

// joins are what stands between two parts of a literal, in any of the languages.
var joins = regexp.MustCompile("[`\"'] ?\\+?\n *\\+? ?[`\"']")

// literal returns the statement in a source, with the placeholders of PostgreSQL.
func literal(source, placeholder string) string {
	source = joins.ReplaceAllString(source, "")
	_, source, _ = strings.Cut(source, "WITH written AS")
	source, _, _ = strings.Cut(source, "FROM written")
	text := strings.ReplaceAll("WITH written AS"+source+"FROM written", `\"`, `"`)
	for n := 1; placeholder != "" && strings.Contains(text, placeholder); n++ {
		text = strings.Replace(text, placeholder, fmt.Sprintf("$%d", n), 1)
	}
	return text
}
