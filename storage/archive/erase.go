package archive

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/storage"
)

// Erase removes the values and the deliveries of all events with the Refs of list, some hundred at most. Where a
// Value begins with the header of an event, that event is also erased if Write has not written it yet. Write changes
// nothing of an erased event. Erase may be repeated.
func (s *Store) Erase(ctx context.Context, list []history.Archived) error {
	if len(list) == 0 {
		return nil
	}
	refs, companies := make([]events.Ref, len(list)), make([]storage.Key, len(list))
	var named []eventRow
	for i, a := range list {
		refs[i], companies[i] = a.Ref, storage.Key(a.Ref.Company)
		if a.Value == "" {
			continue
		}
		k, err := keyOf(a.Ref, a.Value)
		if err != nil {
			return err
		}
		named = append(named, erased(k))
	}
	if err := s.makeDays(ctx, named); err != nil {
		return unavailable(err)
	}
	windows, err := s.windows(ctx)
	if err != nil {
		return err
	}
	for _, w := range slices.Backward(windows) { // oldest first: else an older event with the same id could be read meanwhile
		rows, err := s.find(ctx, func(db bun.IDB) *bun.SelectQuery { return acceptancesQuery(db, refs, w) })
		if err != nil {
			return unavailable(err)
		}
		for _, row := range named {
			if w.overlaps(row.Accepted, row.Accepted) {
				rows = append(rows, row)
			}
		}
		if err := s.erase(ctx, rows); err != nil {
			return unavailable(err)
		}
	}
	return s.forget(ctx, companies)
}

// EraseCompany erases the oldest n events of a company that were accepted until a time, some hundred at most, as Erase does.
// It reports whether there are more.
func (s *Store) EraseCompany(ctx context.Context, company uuid.UUID, until time.Time, n int) (more bool, err error) {
	windows, err := s.windows(ctx)
	if err != nil {
		return false, err
	}
	for _, w := range slices.Backward(windows) {
		if !w.overlaps(0, until.UnixMilli()) {
			break
		}
		rows, err := s.find(ctx, func(db bun.IDB) *bun.SelectQuery { return ofCompanyQuery(db, company, until, n, w) })
		if err == nil {
			err = s.erase(ctx, rows)
		}
		if err != nil {
			return false, unavailable(err)
		}
		if n -= len(rows); n == 0 {
			return true, nil
		}
	}
	return false, s.forget(ctx, []storage.Key{storage.Key(company)})
}

// find returns the rows that erase what a query finds.
func (s *Store) find(ctx context.Context, query func(bun.IDB) *bun.SelectQuery) ([]eventRow, error) {
	var found []key
	err := s.db.Query(ctx, "look for events to erase", func(ctx context.Context, db bun.IDB) error { return query(db).Scan(ctx, &found) })
	rows := make([]eventRow, len(found))
	for i, k := range found {
		rows[i] = erased(k)
	}
	return rows, err
}

func acceptancesQuery(db bun.IDB, refs []events.Ref, w window) *bun.SelectQuery {
	q := db.NewSelect().With("r", db.NewValues(refRows(refs))).ColumnExpr("e.company, e.id, e.accepted, e.nonce")
	return each(q, "history_events AS e", "e.company = r.company AND e.id = r.id AND e.value IS NOT NULL", w)
}

func ofCompanyQuery(db bun.IDB, company uuid.UUID, until time.Time, n int, w window) *bun.SelectQuery {
	return db.NewSelect().Table("history_events").Column("company", "id", "accepted", "nonce").
		Where("company = ? AND value IS NOT NULL AND accepted <= ?", storage.Key(company), until.UnixMilli()).
		Where("?", w.where("accepted")).OrderExpr("accepted, place, id").Limit(int64(n))
}

// erased is the row of an erased event.
func erased(k key) eventRow { return eventRow{key: k, Place: float64(k.Accepted)} }

func (s *Store) erase(ctx context.Context, rows []eventRow) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b eventRow) int { return a.compare(&b.key) })
	rows = slices.CompactFunc(rows, func(a, b eventRow) bool { return a.key == b.key })
	return s.db.WriteWithin(ctx, writeLimit, "erase history", func(ctx context.Context, tx bun.Tx) error {
		if err := eraseEvents(ctx, tx, rows); err != nil {
			return err
		}
		for day, keys := range byDay(rows) {
			if _, err := deleteQuery(tx, day, keys).Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// eraseEvents removes values and terms.
func eraseEvents(ctx context.Context, tx bun.Tx, rows []eventRow) error {
	q := tx.NewInsert().Model(&rows).On("CONFLICT (company, id, accepted, nonce) DO UPDATE").Set("value = NULL").Where("e.value IS NOT NULL")
	if storage.IsPostgres(tx) {
		_, err := q.Set("terms = NULL").Returning("NULL").Exec(ctx)
		return err
	}
	var numbers []int64
	if _, err := q.ExcludeColumn("terms").Returning("number").Exec(ctx, &numbers); err != nil || len(numbers) == 0 {
		return err
	}
	_, err := tx.NewRaw("DELETE FROM history_terms WHERE rowid IN ?", bun.Tuple(numbers)).Exec(ctx)
	return err
}

func byDay(rows []eventRow) map[int64][]key {
	days := map[int64][]key{}
	for i := range rows {
		day := rows[i].Accepted / dayMS
		days[day] = append(days[day], rows[i].key)
	}
	return days
}

// deleteQuery deletes the deliveries of events of one day. The day names the partition: in all partitions PostgreSQL
// may read each row rather than the index.
func deleteQuery(db bun.IDB, day int64, keys []key) *bun.DeleteQuery {
	return db.NewDelete().With("r", db.NewValues(&keys)).Table("history_deliveries").
		Where("accepted >= ? AND accepted < ?", day*dayMS, (day+1)*dayMS).
		Where("(company, id, accepted, nonce) IN (SELECT company, id, accepted, nonce FROM r)")
}

// forget removes those companies from the list that have no events left.
func (s *Store) forget(ctx context.Context, companies []storage.Key) error {
	windows, err := s.windows(ctx)
	if err != nil {
		return err
	}
	empty := slices.Clone(companies)
	for _, w := range windows {
		if len(empty) == 0 {
			break
		}
		err := s.db.Query(ctx, "look for companies without history", func(ctx context.Context, db bun.IDB) (err error) {
			empty, err = emptyIn(ctx, db, empty, w)
			return err
		})
		if err != nil {
			return unavailable(err)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	return unavailable(s.db.WriteWithin(ctx, writeLimit, "forget companies of history", func(ctx context.Context, tx bun.Tx) error {
		return forget(ctx, tx, empty)
	}))
}

// forget looks again while it locks the companies, so that none gets events. Events and days that were committed before are
// seen by later statements only.
func forget(ctx context.Context, tx bun.Tx, companies []storage.Key) error {
	lock := tx.NewSelect().Table("history_companies").Column("company").Where("company IN ?", bun.Tuple(companies)).OrderExpr("company")
	var empty []storage.Key
	if err := storage.Locked(lock, "").Scan(ctx, &empty); err != nil {
		return err
	}
	all, err := windows(ctx, tx)
	if err != nil {
		return err
	}
	for _, w := range all {
		if len(empty) == 0 {
			return nil
		}
		savepoint, err := tx.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if empty, err = emptyIn(ctx, savepoint, empty, w); err != nil {
			return err
		}
		if err := savepoint.Rollback(); err != nil { // unlocks the days
			return err
		}
	}
	_, err = tx.NewDelete().Table("history_companies").Where("company IN ?", bun.Tuple(empty)).Exec(ctx)
	return err
}

// emptyIn returns those of some companies that have no events in a window.
func emptyIn(ctx context.Context, db bun.IDB, companies []storage.Key, w window) (empty []storage.Key, err error) {
	err = emptyQuery(db, companies, w).Scan(ctx, &empty)
	return empty, err
}

// emptyQuery finds those of some companies that have no events in a window. The order and the limit make PostgreSQL look
// into the index once for each company; with NOT EXISTS it may read the whole table.
func emptyQuery(db bun.IDB, companies []storage.Key, w window) *bun.SelectQuery {
	first := db.NewSelect().TableExpr("history_events AS e").ColumnExpr("1").
		Where("e.company = c.company AND e.value IS NOT NULL").Where("?", w.where("e.accepted")).OrderExpr("e.accepted DESC, e.place DESC").Limit(1)
	return db.NewSelect().TableExpr("history_companies AS c").Column("company").
		Where("company IN ?", bun.Tuple(companies)).Where("(?) IS NULL", first)
}
