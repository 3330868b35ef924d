// Package cardstest has helpers for tests with cards: the stores of a database, and requests for
// cards.
package cardstest

import (
	"fmt"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

type cardStore = cards.Store

// Data is a database with the companies of storagetest, its stores of cards, jobs and creations,
// and a clock that the test sets.
type Data struct {
	*testing.T
	*cardStore
	DB    *storage.DB
	Clock time.Time
}

// OnBoth runs a test on a database of each kind, in parallel. The clock starts at storagetest.Now.
func OnBoth(t *testing.T, test func(*Data)) {
	t.Helper()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		test(New(t, db))
	})
}

// New loads the companies of storagetest into an empty database.
func New(t *testing.T, db *storage.DB) *Data {
	t.Helper()
	storagetest.LoadCompanies(t, db)
	d := &Data{T: t, DB: db, Clock: storagetest.Now}
	d.cardStore = cards.New(db, func() time.Time { return d.Clock })
	return d
}

// Amount parses an amount of money.
func Amount(text string) *decimal.Decimal { return new(decimal.RequireFromString(text)) }

// Request returns a valid request for a card of storagetest.Ann.
func Request() cards.Request {
	return cards.Request{Type: "VIRTUAL", Alias: "Travel", UserUUID: storagetest.Ann, Threshold: Amount("100.50"), Periodicity: "MONTHLY"}
}

// Requests returns n requests for cards. Those with an index in invalid are for a user of another
// company.
func Requests(n int, invalid ...int) []cards.Request {
	list := make([]cards.Request, n)
	for i := range list {
		list[i] = Request()
		list[i].Alias = fmt.Sprintf("card %d", i)
	}
	for _, i := range invalid {
		list[i].UserUUID = storagetest.Bo
	}
	return list
}

// WantCards fails the test unless storagetest.Acme has so many cards.
func (d *Data) WantCards(want int64) {
	d.Helper()
	_, total, err := d.Cards(d.Context(), cards.Filter{Company: &storagetest.Acme})
	if err != nil || total != want {
		d.Errorf("%d cards, %v, want %d", total, err, want)
	}
}

// CreateNext processes the next item. It fails the test if there is none.
func (d *Data) CreateNext() cards.Item {
	d.Helper()
	item, found, err := d.CreateNextCard(d.Context())
	if err != nil || !found {
		d.Fatalf("found %v, %v", found, err)
	}
	return item
}
