package spend_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/spend"
	"spendhook/storage/storagetest"
)

func TestSpec45BillingStatements(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			storagetest.LoadCompanies(t, s.db)
			_, err := s.CurrentStatement(t.Context(), acme)
			storagetest.WantError(t, err, storage.ErrNotFound)
			storagetest.Load(t, s.db, storagetest.StatementLine("1", 3, "CLOSED"), storagetest.StatementLine("2", 4, "OPEN"), storagetest.StatementLine("3", 2, "OPEN"))

			current := storagetest.Must(s.CurrentStatement(t.Context(), acme))(t)
			if current.Month != 4 || current.Year != 2026 || current.Status != "OPEN" || current.TotalAmount.String() != "1234.5" ||
				current.Currency != "EUR" || current.ClosingDate.String() != "2026-04-28" {
				t.Errorf("current = %+v", current)
			}
			if march := storagetest.Must(s.StatementOf(t.Context(), acme, 3, 2026))(t); march.Status != "CLOSED" || march.UUID.String()[35:] != "1" {
				t.Errorf("march = %+v", march)
			}
			_, err = s.StatementOf(t.Context(), acme, 5, 2026)
			storagetest.WantError(t, err, storage.ErrNotFound)
			_, err = s.StatementOf(t.Context(), bolt, 3, 2026)
			storagetest.WantError(t, err, storage.ErrNotFound)
			for _, month := range []int{0, 13, -1} {
				_, err = s.StatementOf(t.Context(), acme, month, 2026)
				storagetest.WantInvalid(t, err, "month")
			}
			for _, year := range []int{1999, 2101} {
				_, err = s.StatementOf(t.Context(), acme, 1, year)
				storagetest.WantInvalid(t, err, "year")
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
			storagetest.LoadCompanies(t, s.db)
			const line = `{"kind":"location","uuid":"e0000000-0000-4000-8000-00000000000%d","companyUuid":"%s","name":"L%d","code":"C","status":"%s"%s}`
			storagetest.Load(t, s.db,
				fmt.Sprintf(line, 1, acme, 1, "ACTIVE", `,"createdAt":"2026-01-02T03:04:05.678Z"`),
				fmt.Sprintf(line, 2, acme, 2, "INACTIVE", `,"createdAt":"2026-01-01T00:00:00+01:00"`),
				fmt.Sprintf(line, 3, bolt, 3, "ACTIVE", ""))
			all, total, err := s.Locations(t.Context(), spend.LocationFilter{Company: &acme})
			if err != nil || total != 2 || len(all) != 2 || all[0].Name != "L2" || all[1].Name != "L1" {
				t.Fatalf("%+v, %d, %v", all, total, err)
			}
			if want := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC); !all[1].CreatedAt.Equal(want) || all[1].Code != "C" {
				t.Errorf("location = %+v", all[1])
			}
			active, total, err := s.Locations(t.Context(), spend.LocationFilter{Status: "active", Page: &storage.Page{Number: 1, Size: 1}})
			if err != nil || total != 2 || len(active) != 1 || active[0].CompanyUUID != bolt || !active[0].CreatedAt.Equal(now) {
				t.Errorf("%+v, %d, %v", active, total, err)
			}
			if got := storagetest.Must(s.Location(t.Context(), acme, all[0].UUID))(t); got != all[0] {
				t.Errorf("read %+v", got)
			}
			_, err = s.Location(t.Context(), bolt, all[0].UUID)
			storagetest.WantError(t, err, storage.ErrNotFound)
			_, err = s.Location(t.Context(), acme, uuid.New())
			storagetest.WantError(t, err, storage.ErrNotFound)
			_, _, err = s.Locations(t.Context(), spend.LocationFilter{Status: "GONE"})
			storagetest.WantInvalid(t, err, "status")
		})
	}
}
