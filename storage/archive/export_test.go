package archive

import (
	"fmt"

	"github.com/uptrace/bun"

	"spendhook/events/history"
	"spendhook/storage"
)

// For the tests of the plans.
var (
	AcceptancesQuery = acceptancesQuery
	CompaniesQuery   = companiesQuery
	EventsQuery      = eventsQuery
	IndexQuery       = indexQuery
	OfCompanyQuery   = ofCompanyQuery
)

// Window is a window.
type Window = window

// WindowDays is windowDays.
const WindowDays = windowDays

// Windows is windows.
var Windows = windows

// DeliveriesQuery reads the deliveries of events.
func DeliveriesQuery(db bun.IDB, list []history.Archived, w Window) *bun.SelectQuery {
	rows, _, err := rowsOf(list)
	return deliveriesQuery(db, rows, w).Err(err)
}

// DeleteQuery deletes the deliveries of events of one day.
func DeleteQuery(db bun.IDB, list []history.Archived) *bun.DeleteQuery {
	rows, _, err := rowsOf(list)
	return deleteQuery(db, rows[0].Accepted/dayMS, keysOf(rows)).Err(err)
}

// EmptyQuery finds companies without events.
func EmptyQuery(db bun.IDB, list []history.Archived, w Window) *bun.SelectQuery {
	var companies []storage.Key
	for _, a := range list {
		companies = append(companies, storage.Key(a.Ref.Company))
	}
	return emptyQuery(db, companies, w)
}

// SearchQuery examines the events of a day.
func SearchQuery(db bun.IDB, sp history.Span, day int64, after history.Place) fmt.Stringer {
	q := newQuery(sp)
	return searchQuery(db, &q, day, after)
}

// SearchTime is searchTime.
var SearchTime = searchTime
