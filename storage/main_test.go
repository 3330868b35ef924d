package storage_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/invalid"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(cleaning{m}) }

var now = time.Date(2026, time.July, 1, 10, 0, 0, 0, time.UTC)

// databases opens, by its name, an empty Store on each database.
var databases = map[string]func(testing.TB) *storage.Store{
	"sqlite": func(tb testing.TB) *storage.Store { tb.Helper(); return open(tb, storage.Options{}) },
	"postgres": func(tb testing.TB) *storage.Store {
		tb.Helper()
		return open(tb, storage.Options{URL: storagetest.Postgres(tb)})
	},
}

func open(tb testing.TB, o storage.Options) *storage.Store {
	tb.Helper()
	if o.Now == nil {
		o.Now = func() time.Time { return now }
	}
	return storagetest.Open(tb, o)
}

// load imports the lines and fails on any refusal.
func load(tb testing.TB, s *storage.Store, lines ...string) {
	tb.Helper()
	report, refused := importLines(tb, s, lines...)
	if len(refused) > 0 || report.Imported != int64(len(lines)) {
		tb.Fatalf("imported %d of %d, refused %v", report.Imported, len(lines), refused)
	}
}

func importLines(tb testing.TB, s *storage.Store, lines ...string) (storage.Report, []storage.Refusal) {
	tb.Helper()
	var refused []storage.Refusal
	in := storage.Importer{Store: s, Refused: func(r storage.Refusal) { refused = append(refused, r) }}
	report, err := in.Run(context.Background(), strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		tb.Fatal(err)
	}
	return report, refused
}

func loadDemo(tb testing.TB, s *storage.Store, d storage.DemoData) {
	tb.Helper()
	var data bytes.Buffer
	if err := storage.WriteDemoData(&data, d); err != nil {
		tb.Fatal(err)
	}
	in := storage.Importer{Store: s, Refused: func(r storage.Refusal) { tb.Errorf("refused: %+v", r) }}
	if _, err := in.Run(context.Background(), &data); err != nil {
		tb.Fatal(err)
	}
}

// Two companies: acme (EUR, limit 1,000.00) with the users ann (ERP-1) and the
// inactive ivo, and bolt (JPY, limit 50,000) with bo.
var (
	acme = uuid.MustParse("a0000000-0000-4000-8000-000000000000")
	bolt = uuid.MustParse("b0000000-0000-4000-8000-000000000000")
	ann  = uuid.MustParse("a0000000-0000-4000-8000-000000000001")
	ivo  = uuid.MustParse("a0000000-0000-4000-8000-000000000002")
	bo   = uuid.MustParse("b0000000-0000-4000-8000-000000000001")
)

func loadCompanies(tb testing.TB, s *storage.Store) {
	tb.Helper()
	load(tb, s,
		`{"kind":"company","uuid":"`+acme.String()+`","name":"Acme","currency":"EUR","creditLimit":1000.00}`,
		`{"kind":"company","uuid":"`+bolt.String()+`","name":"Bolt","currency":"JPY","creditLimit":50000}`,
		`{"kind":"user","uuid":"`+ann.String()+`","companyUuid":"`+acme.String()+`","username":"ann","name":"Ánn Mûller","erpId":"ERP-1"}`,
		`{"kind":"user","uuid":"`+ivo.String()+`","companyUuid":"`+acme.String()+`","username":"ivo","name":"Ivo","active":false}`,
		`{"kind":"user","uuid":"`+bo.String()+`","companyUuid":"`+bolt.String()+`","username":"bo","name":"Bo"}`,
	)
}

func wantError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("error = %v, want %v", got, want)
	}
}

// wantInvalid expects exactly one field to be at fault.
func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var e *invalid.Error
	if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != field {
		t.Errorf("error = %v, want one about %s", err, field)
	}
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}
