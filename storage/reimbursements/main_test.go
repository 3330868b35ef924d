package reimbursements_test

import (
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var acme, bolt = storagetest.Acme, storagetest.Bolt

// fixture is a Store and its database.
type fixture struct {
	*reimbursements.Store
	db *storage.DB
}

// databases are an empty one of each kind.
var databases = map[string]func(testing.TB) fixture{
	"sqlite": func(tb testing.TB) fixture { tb.Helper(); return open(tb, storage.Options{}) },
	"postgres": func(tb testing.TB) fixture {
		tb.Helper()
		return open(tb, storage.Options{URL: storagetest.Postgres(tb)})
	},
}

func open(tb testing.TB, o storage.Options) fixture {
	tb.Helper()
	db := storagetest.Open(tb, o)
	return fixture{reimbursements.New(db), db}
}
