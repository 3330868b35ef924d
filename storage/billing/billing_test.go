package billing_test

import (
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/billing"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSpec45BillingStatements(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		storagetest.LoadCompanies(t, db)
		s := billing.New(db)
		_, err := s.Current(t.Context(), storagetest.Acme)
		storagetest.WantError(t, err, storage.ErrNotFound)
		storagetest.Load(t, db, storagetest.StatementLine("1", 3, "CLOSED"), storagetest.StatementLine("2", 4, "OPEN"), storagetest.StatementLine("3", 2, "OPEN"))

		current := storagetest.Must(s.Current(t.Context(), storagetest.Acme))(t)
		if current.Month != 4 || current.Year != 2026 || current.Status != "OPEN" || current.TotalAmount().String() != "1234.5" ||
			current.Currency != "EUR" || current.ClosingDate.String() != "2026-04-28" {
			t.Errorf("current = %+v", current)
		}
		if march := storagetest.Must(s.OfMonth(t.Context(), storagetest.Acme, 3, 2026))(t); march.Status != "CLOSED" || march.UUID.String()[35:] != "1" {
			t.Errorf("march = %+v", march)
		}
		_, err = s.OfMonth(t.Context(), storagetest.Acme, 5, 2026)
		storagetest.WantError(t, err, storage.ErrNotFound)
		_, err = s.OfMonth(t.Context(), storagetest.Bolt, 3, 2026)
		storagetest.WantError(t, err, storage.ErrNotFound)
	})
}
