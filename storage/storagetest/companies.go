package storagetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/importer"
)

// Now is the time of imported objects without a time of their own.
var Now = time.Date(2026, time.July, 1, 10, 0, 0, 0, time.UTC)

// Two companies: Acme (EUR, limit 1,000.00) with the users Ann (ERP-1) and the
// inactive Ivo, and Bolt (JPY, limit 50,000) with Bo.
var (
	Acme = uuid.MustParse("a0000000-0000-4000-8000-000000000000")
	Bolt = uuid.MustParse("b0000000-0000-4000-8000-000000000000")
	Ann  = uuid.MustParse("a0000000-0000-4000-8000-000000000001")
	Ivo  = uuid.MustParse("a0000000-0000-4000-8000-000000000002")
	Bo   = uuid.MustParse("b0000000-0000-4000-8000-000000000001")
)

// LoadCompanies imports the two companies.
func LoadCompanies(tb testing.TB, db *storage.DB) {
	tb.Helper()
	Load(tb, db,
		`{"kind":"company","uuid":"`+Acme.String()+`","name":"Acme","currency":"EUR","creditLimit":1000.00}`,
		`{"kind":"company","uuid":"`+Bolt.String()+`","name":"Bolt","currency":"JPY","creditLimit":50000}`,
		`{"kind":"user","uuid":"`+Ann.String()+`","companyUuid":"`+Acme.String()+`","username":"ann","name":"Ánn Mûller","erpId":"ERP-1"}`,
		`{"kind":"user","uuid":"`+Ivo.String()+`","companyUuid":"`+Acme.String()+`","username":"ivo","name":"Ivo","active":false}`,
		`{"kind":"user","uuid":"`+Bo.String()+`","companyUuid":"`+Bolt.String()+`","username":"bo","name":"Bo"}`,
	)
}

// Load imports lines of JSON and fails on any refusal.
func Load(tb testing.TB, db *storage.DB, lines ...string) {
	tb.Helper()
	report, refused := Import(tb, db, lines...)
	if len(refused) > 0 || report.Imported != int64(len(lines)) {
		tb.Fatalf("imported %d of %d, refused %v", report.Imported, len(lines), refused)
	}
}

// Import imports lines of JSON.
func Import(tb testing.TB, db *storage.DB, lines ...string) (importer.Report, []importer.Refusal) {
	tb.Helper()
	var refused []importer.Refusal
	in := importer.Importer{
		DB: db, Now: func() time.Time { return Now },
		Refused: func(r importer.Refusal) { refused = append(refused, r) },
	}
	report, err := in.Run(context.Background(), strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		tb.Fatal(err)
	}
	return report, refused
}

// LoadDemo imports invented data and fails on any refusal.
func LoadDemo(tb testing.TB, db *storage.DB, d importer.DemoData) {
	tb.Helper()
	var data strings.Builder
	if err := importer.WriteDemoData(&data, d); err != nil {
		tb.Fatal(err)
	}
	if report, refused := Import(tb, db, data.String()); len(refused) > 0 {
		tb.Fatalf("%+v, refused %v", report, refused)
	}
}
