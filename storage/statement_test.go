package storage_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
)

func statementLine(digit string, month int, status string) string {
	return fmt.Sprintf(`{"kind":"statement","statementUuid":"d0000000-0000-4000-8000-00000000000%s","companyUuid":"%s",`+
		`"month":%d,"year":2026,"status":"%s","totalAmount":1234.5,"currency":"EUR","closingDate":"2026-%02d-28"}`,
		digit, acme, month, status, month)
}

func TestSpec45BillingStatements(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			_, err := s.CurrentStatement(t.Context(), acme)
			wantError(t, err, storage.ErrNotFound)
			load(t, s, statementLine("1", 3, "CLOSED"), statementLine("2", 4, "OPEN"), statementLine("3", 2, "OPEN"))

			current := must(s.CurrentStatement(t.Context(), acme))(t)
			if current.Month != 4 || current.Year != 2026 || current.Status != "OPEN" || current.TotalAmount.String() != "1234.5" ||
				current.Currency != "EUR" || current.ClosingDate.String() != "2026-04-28" {
				t.Errorf("current = %+v", current)
			}
			if march := must(s.StatementOf(t.Context(), acme, 3, 2026))(t); march.Status != "CLOSED" || march.UUID.String()[35:] != "1" {
				t.Errorf("march = %+v", march)
			}
			_, err = s.StatementOf(t.Context(), acme, 5, 2026)
			wantError(t, err, storage.ErrNotFound)
			_, err = s.StatementOf(t.Context(), bolt, 3, 2026)
			wantError(t, err, storage.ErrNotFound)
			for _, month := range []int{0, 13, -1} {
				_, err = s.StatementOf(t.Context(), acme, month, 2026)
				wantInvalid(t, err, "month")
			}
			for _, year := range []int{1999, 2101} {
				_, err = s.StatementOf(t.Context(), acme, 1, year)
				wantInvalid(t, err, "year")
			}
		})
	}
}

func TestSpec44Locations(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			const line = `{"kind":"location","uuid":"e0000000-0000-4000-8000-00000000000%d","companyUuid":"%s","name":"L%d","code":"C","status":"%s"%s}`
			load(t, s,
				fmt.Sprintf(line, 1, acme, 1, "ACTIVE", `,"createdAt":"2026-01-02T03:04:05.678Z"`),
				fmt.Sprintf(line, 2, acme, 2, "INACTIVE", `,"createdAt":"2026-01-01T00:00:00+01:00"`),
				fmt.Sprintf(line, 3, bolt, 3, "ACTIVE", ""))
			all, total, err := s.Locations(t.Context(), storage.LocationFilter{Company: &acme})
			if err != nil || total != 2 || len(all) != 2 || all[0].Name != "L2" || all[1].Name != "L1" {
				t.Fatalf("%+v, %d, %v", all, total, err)
			}
			if want := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC); !all[1].CreatedAt.Equal(want) || all[1].Code != "C" {
				t.Errorf("location = %+v", all[1])
			}
			active, total, err := s.Locations(t.Context(), storage.LocationFilter{Status: "active", Page: &storage.Page{Number: 1, Size: 1}})
			if err != nil || total != 2 || len(active) != 1 || active[0].CompanyUUID != bolt || !active[0].CreatedAt.Equal(now) {
				t.Errorf("%+v, %d, %v", active, total, err)
			}
			if got := must(s.Location(t.Context(), acme, all[0].UUID))(t); got != all[0] {
				t.Errorf("read %+v", got)
			}
			_, err = s.Location(t.Context(), bolt, all[0].UUID)
			wantError(t, err, storage.ErrNotFound)
			_, err = s.Location(t.Context(), acme, uuid.New())
			wantError(t, err, storage.ErrNotFound)
			_, _, err = s.Locations(t.Context(), storage.LocationFilter{Status: "GONE"})
			wantInvalid(t, err, "status")
		})
	}
}
