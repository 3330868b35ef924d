package archive

import (
	"context"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"spendhook/events/history"
	"spendhook/storage"
)

// Write stores events, some hundred with about 1 MiB at most. If it fails, it may have stored some. It may be repeated: it
// replaces the value of an event, adds deliveries, and replaces those whose record has a lower version. It changes
// nothing of an erased event. An event without the header of a stored value gives an error.
func (s *Store) Write(ctx context.Context, list []history.Archived) error {
	rows, deliveries, err := rowsOf(list)
	if err != nil || len(rows) == 0 {
		return err
	}
	if err := s.makeDays(ctx, rows); err != nil {
		return unavailable(err)
	}
	byWindow := map[int64][]eventRow{}
	for i := range rows {
		n := rows[i].Accepted / (windowDays * dayMS)
		byWindow[n] = append(byWindow[n], rows[i])
	}
	for _, some := range byWindow {
		err := s.db.WriteWithin(ctx, writeLimit, "write history", func(ctx context.Context, tx bun.Tx) error {
			return write(ctx, tx, some, deliveries)
		})
		if err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// write writes events with those of the deliveries that are theirs.
func write(ctx context.Context, tx bun.Tx, rows []eventRow, deliveries []deliveryRow) error {
	kept, err := writeEvents(ctx, tx, rows)
	if err != nil || len(kept) == 0 {
		return err
	}
	if err := writeTerms(ctx, tx, rows, kept); err != nil {
		return err
	}
	if err := writeCompanies(ctx, tx, kept); err != nil {
		return err
	}
	return writeDeliveries(ctx, tx, deliveries, kept)
}

// rowsOf returns the rows of events, each once and sorted, so that transactions which write the same rows
// lock them in one order.
func rowsOf(list []history.Archived) ([]eventRow, []deliveryRow, error) {
	type deliveryKey struct {
		key
		subscriber storage.Key
	}
	rows, deliveries := map[key]eventRow{}, map[deliveryKey]deliveryRow{}
	for i := range list {
		k, err := keyOf(list[i].Ref, list[i].Value)
		if err != nil {
			return nil, nil, err
		}
		rows[k] = newEvent(k, &list[i])
		for j := range list[i].Deliveries {
			d := newDelivery(k, &list[i].Deliveries[j])
			at := deliveryKey{k, d.Subscriber}
			if deliveries[at].Version <= d.Version {
				deliveries[at] = d
			}
		}
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b eventRow) int { return a.compare(&b.key) }),
		slices.SortedFunc(maps.Values(deliveries), func(a, b deliveryRow) int {
			if c := a.compare(&b.key); c != 0 {
				return c
			}
			return slices.Compare(a.Subscriber[:], b.Subscriber[:])
		}), nil
}

// writeEvents returns the numbers of the events that are not erased; in PostgreSQL they have none. It locks all of them
// until the end of the transaction, so that Erase also finds the deliveries.
func writeEvents(ctx context.Context, tx bun.Tx, rows []eventRow) (map[key]int64, error) {
	q := tx.NewInsert().Model(&rows).On("CONFLICT (company, id, accepted, nonce) DO UPDATE").
		Set("value = EXCLUDED.value").Where("e.value IS NOT NULL")
	if storage.IsPostgres(tx) {
		q = q.Set("terms = EXCLUDED.terms").Returning("company, id, accepted, nonce, 0 AS number")
	} else {
		q = q.ExcludeColumn("terms").Returning("company, id, accepted, nonce, number")
	}
	var kept []struct {
		key

		Number int64
	}
	_, err := q.Exec(ctx, &kept)
	numbers := make(map[key]int64, len(kept))
	for _, k := range kept {
		numbers[k.key] = k.Number
	}
	return numbers, err
}

type termsRow struct {
	bun.BaseModel `bun:"table:history_terms"`

	Number int64  `bun:"rowid"`
	Terms  string `bun:"terms"`
}

// writeTerms writes the full-text index of SQLite.
func writeTerms(ctx context.Context, tx bun.Tx, rows []eventRow, kept map[key]int64) error {
	if storage.IsPostgres(tx) {
		return nil
	}
	var index []termsRow
	for i := range rows {
		if number, ok := kept[rows[i].key]; ok {
			index = append(index, termsRow{Number: number, Terms: tokens(rows[i].terms, " ")})
		}
	}
	_, err := tx.NewInsert().Model(&index).Replace().Exec(ctx)
	return err
}

func writeDeliveries(ctx context.Context, tx bun.Tx, all []deliveryRow, kept map[key]int64) error {
	var rows []deliveryRow
	for i := range all {
		if _, ok := kept[all[i].key]; ok {
			rows = append(rows, all[i])
		}
	}
	if len(rows) == 0 {
		return nil
	}
	_, err := tx.NewInsert().Model(&rows).On("CONFLICT (company, id, accepted, nonce, subscriber) DO UPDATE").
		Set("created = EXCLUDED.created, died = EXCLUDED.died, member = EXCLUDED.member, version = EXCLUDED.version, record = EXCLUDED.record").
		Where("d.version < EXCLUDED.version").Exec(ctx)
	return err
}

// writeCompanies adds the companies of events. It locks the rows of those that are listed already until the end of
// the transaction, so that none is removed meanwhile.
func writeCompanies(ctx context.Context, tx bun.Tx, kept map[key]int64) error {
	missing := map[storage.Key]companyRow{}
	for k := range kept {
		missing[k.Company] = newCompany(k.Company)
	}
	query := "SELECT company FROM history_companies WHERE company IN (?)"
	if storage.IsPostgres(tx) {
		query += " ORDER BY company FOR KEY SHARE"
	}
	var listed []storage.Key
	if err := tx.NewRaw(query, bun.List(slices.Collect(maps.Keys(missing)))).Scan(ctx, &listed); err != nil {
		return err
	}
	for _, company := range listed {
		delete(missing, company)
	}
	if len(missing) == 0 {
		return nil
	}
	rows := slices.SortedFunc(maps.Values(missing), func(a, b companyRow) int { return slices.Compare(a.Company[:], b.Company[:]) })
	_, err := tx.NewInsert().Model(&rows).On("CONFLICT (company) DO UPDATE").Set("partition_number = EXCLUDED.partition_number").Exec(ctx)
	return err
}
