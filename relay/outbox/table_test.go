package outbox

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spendhook/internal/secret"
	"spendhook/internal/waittest"
)

// A row that the API would refuse fails where it is inserted.
func TestTheTableRefusesRowsThatAreNotValid(t *testing.T) {
	t.Parallel()
	conn := newDatabase(t).conn()
	for _, tc := range []struct {
		column, value, constraint string // "": the row is valid
	}{
		{"id", strings.Repeat("a", 128), ""},
		{"id", "spendhook", ""},
		{"id", strings.Repeat("a", 129), "id_is_valid"},
		{"id", "", "id_is_valid"},
		{"id", "a b", "id_is_valid"},
		{"id", "é", "id_is_valid"},
		{"id", "a\n", "id_is_valid"},
		{"id", "spendhook-1", "id_is_valid"},
		{"event", "A:b.c-d_" + strings.Repeat("e", 120), ""},
		{"event", "A" + strings.Repeat("e", 128), "event_is_valid"},
		{"event", ".A", "event_is_valid"},
		{"key", strings.Repeat("é", 512), ""},
		{"key", strings.Repeat("é", 512) + "e", "key_is_valid"},
		{"key", "", "key_is_valid"},
		{"metadata", `{"a":"` + strings.Repeat("b", 262144-8) + `"}`, ""},
		{"metadata", `{"a":"` + strings.Repeat("b", 262144-7) + `"}`, "metadata_is_valid"},
		{"metadata", `[]`, "metadata_is_valid"},
		{"metadata", `null`, "metadata_is_valid"},
		{`"timestamp"`, "infinity", "timestamp_is_valid"},
		{`"timestamp"`, "10000-01-01Z", "timestamp_is_valid"},
		{`"timestamp"`, "1969-12-31 23:59:59Z", "timestamp_is_valid"},
		{"error_code", strings.Repeat("c", 128), ""},
		{"error_code", strings.Repeat("c", 129), "error_code_is_valid"},
		{"error_message", strings.Repeat("m", 4097), "error_message_is_valid"},
	} {
		names, values, args := tc.column, "$1", []any{tc.value}
		if tc.column != "id" {
			names, values = names+", id", values+", 'id'"
		}
		if tc.column != "event" {
			names, values = names+", event", values+", 'PAID'"
		}
		_, err := conn.Exec(t.Context(), `INSERT INTO spendhook_outbox (`+names+`) VALUES (`+values+`)`, args...)
		refused, _ := errors.AsType[*pgconn.PgError](err)
		if tc.constraint == "" && err != nil || tc.constraint != "" && (refused == nil || refused.ConstraintName != tc.constraint) {
			t.Errorf("%s %.40q: %v", tc.column, tc.value, err)
		}
	}
}

// Names are quoted, and a schema may be named.
func TestATableMayHaveAnyName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`events`, `Sales"; DROP.Out box`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			sql, err := Schema(name)
			if err != nil {
				t.Fatal(err)
			}
			s, err := New(Options{URL: secret.Text(db.url), Table: name})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.conn().Exec(t.Context(), `CREATE SCHEMA "Sales""; DROP"; `+sql+
				`INSERT INTO `+s.names.table+` (id, event) VALUES ('a', 'PAID'), ('dead', 'PAID')`); err != nil {
				t.Fatal(err)
			}
			e := &emitter{reject: func(id string) bool { return id == "dead" }}
			s.poll = never
			db.serveSource(s, e)
			e.wait(t, 1)
			waittest.Until(t, "rows are left", func() bool { return db.count(s.names.table) == 0 })
			if n := db.count(s.names.dead); n != 1 {
				t.Errorf("%d dead rows", n)
			}
			if err := s.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := db.conn().Exec(t.Context(), `INSERT INTO `+s.names.table+` (id, event) VALUES ('b', 'PAID');`+
				strings.Replace(s.names.listen, "LISTEN", "NOTIFY", 1)); err != nil {
				t.Fatal(err)
			}
			e.wait(t, 2)
		})
	}
}

func TestOptionsThatAreNotValid(t *testing.T) {
	t.Parallel()
	const valid = "postgres://u:hidden@db/x"
	for _, o := range []Options{
		{URL: ""},
		{URL: "host=db password=hidden"},
		{URL: "mysql://u:hidden@db/x"},
		{URL: "postgres://u:hid/hidden@db:1/x"},
		{URL: valid + "?sslmode=hidden"},
		{URL: valid + "?sslmode=verify-full&sslrootcert=/missing"},
		{URL: valid, Table: "a.b.c"},
		{URL: valid, Table: "a."},
		{URL: valid, Table: "a\x00"},
		{URL: valid, Table: strings.Repeat("a", 59)},
	} {
		if _, err := New(o); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s %q: %v", o.URL.Reveal(), o.Table, err)
		}
	}
	if _, err := New(Options{URL: valid, Table: strings.Repeat("a", 58)}); err != nil {
		t.Error(err)
	}
	if _, err := Schema("a.b.c"); err == nil {
		t.Error("Schema takes a table that is not valid")
	}
}
