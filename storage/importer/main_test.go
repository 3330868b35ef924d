package importer_test

import (
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(cleaning{m}) }

var (
	acme = storagetest.Acme
	ann  = storagetest.Ann
)

// data is a database and all that reads it.
type data struct {
	*storage.DB
	*cardStore
	reimbursements *reimbursements.Store
	locations      *locations.Store
}

type cardStore = cards.Store

func open(tb testing.TB, o storage.Options) data {
	tb.Helper()
	return dataOf(storagetest.Open(tb, o))
}

func dataOf(db *storage.DB) data {
	return data{DB: db, cardStore: cards.New(db, nil), reimbursements: reimbursements.New(db), locations: locations.New(db)}
}
