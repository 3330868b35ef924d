package cards_test

import (
	"testing"
	"time"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	now          = storagetest.Now
	acme, bolt   = storagetest.Acme, storagetest.Bolt
	ann, ivo, bo = storagetest.Ann, storagetest.Ivo, storagetest.Bo
)

// databases are a Store with the companies on each database.
var databases = map[string]func(testing.TB) *cards.Store{
	"sqlite": func(tb testing.TB) *cards.Store { tb.Helper(); return open(tb, storage.Options{}, nil) },
	"postgres": func(tb testing.TB) *cards.Store {
		tb.Helper()
		return open(tb, storage.Options{URL: storagetest.Postgres(tb)}, nil)
	},
}

// open is a Store with the companies; nil clock means that it is always now.
func open(tb testing.TB, o storage.Options, clock func() time.Time) *cards.Store {
	tb.Helper()
	if clock == nil {
		clock = func() time.Time { return now }
	}
	db := storagetest.Open(tb, o)
	storagetest.LoadCompanies(tb, db)
	return cards.New(cards.Options{DB: db, Now: clock})
}

// clocked is a database with the companies in it and a clock that can be put
// forward.
type clocked struct {
	*testing.T
	*cards.Store
	clock time.Time
}

// onBoth runs the test on each database.
func onBoth(t *testing.T, test func(*clocked)) {
	t.Helper()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		storagetest.LoadCompanies(t, db)
		h := &clocked{T: t, clock: now}
		h.Store = cards.New(cards.Options{DB: db, Now: func() time.Time { return h.clock }})
		test(h)
	})
}
