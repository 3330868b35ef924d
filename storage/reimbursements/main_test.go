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

func open(tb testing.TB, o storage.Options) fixture {
	tb.Helper()
	return fixtureOf(storagetest.Open(tb, o))
}

func fixtureOf(db *storage.DB) fixture { return fixture{reimbursements.New(db), db} }
