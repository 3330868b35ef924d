package locations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/locations"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSpec44Locations(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		storagetest.LoadCompanies(t, db)
		s := locations.New(db)
		const line = `{"kind":"location","uuid":"e0000000-0000-4000-8000-00000000000%d","companyUuid":"%s","name":"L%d","code":"C","status":"%s"%s}`
		storagetest.Load(t, db,
			fmt.Sprintf(line, 1, storagetest.Acme, 1, "ACTIVE", `,"createdAt":"2026-01-02T03:04:05.678Z"`),
			fmt.Sprintf(line, 2, storagetest.Acme, 2, "INACTIVE", `,"createdAt":"2026-01-01T00:00:00+01:00"`),
			fmt.Sprintf(line, 3, storagetest.Bolt, 3, "ACTIVE", ""))
		all, total, err := s.List(t.Context(), locations.Filter{Company: &storagetest.Acme})
		if err != nil || total != 2 || len(all) != 2 || all[0].Name != "L2" || all[1].Name != "L1" {
			t.Fatalf("%+v, %d, %v", all, total, err)
		}
		if want := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC); !all[1].CreatedAt.Equal(want) || all[1].Code != "C" {
			t.Errorf("location = %+v", all[1])
		}
		active, total, err := s.List(t.Context(), locations.Filter{Status: "active", Page: &storage.Page{Number: 1, Size: 1}})
		if err != nil || total != 2 || len(active) != 1 || active[0].CompanyUUID != storagetest.Bolt || !active[0].CreatedAt.Equal(storagetest.Now) {
			t.Errorf("%+v, %d, %v", active, total, err)
		}
		if got := storagetest.Must(s.Get(t.Context(), storagetest.Acme, all[0].UUID))(t); got != all[0] {
			t.Errorf("read %+v", got)
		}
		_, err = s.Get(t.Context(), storagetest.Bolt, all[0].UUID)
		storagetest.WantError(t, err, storage.ErrNotFound)
		_, err = s.Get(t.Context(), storagetest.Acme, uuid.New())
		storagetest.WantError(t, err, storage.ErrNotFound)
	})
}
