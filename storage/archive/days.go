package archive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"spendhook/storage"
)

const dayMS = 24 * 60 * 60 * 1000

// tables have a partition for each day in PostgreSQL, named after the table and the day. They are locked in this order.
var tables = []string{"history_events", "history_deliveries"}

// dayFormat ends the name of a partition.
const dayFormat = "_20060102"

func partitionOf(table string, day int64) string {
	return table + time.UnixMilli(day*dayMS).UTC().Format(dayFormat)
}

// makeDays creates the partitions of rows that are missing in PostgreSQL.
func (s *Store) makeDays(ctx context.Context, rows []eventRow) error {
	if !storage.IsPostgres(s.db) {
		return nil
	}
	days := map[int64]bool{}
	for i := range rows {
		days[rows[i].Accepted/dayMS] = true
	}
	var missing []int64
	err := s.db.Query(ctx, "read days of history", func(ctx context.Context, db bun.IDB) error {
		for day := range days {
			exists, err := dayExists(ctx, db, day)
			if err != nil {
				return err
			}
			if !exists {
				missing = append(missing, day)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, day := range missing {
		err := s.db.WriteWithin(ctx, writeLimit, "add day to history", func(ctx context.Context, tx bun.Tx) error {
			// The lock is the one that ATTACH PARTITION takes: it excludes other replicas that add days, and nobody else.
			if _, err := tx.NewRaw("LOCK TABLE ? IN SHARE UPDATE EXCLUSIVE MODE", bun.Ident(tables[0])).Exec(ctx); err != nil {
				return err
			}
			exists, err := dayExists(ctx, tx, day) // another replica may have added it
			if err == nil && !exists {
				err = makeDay(ctx, tx, day)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// window is a range of acceptance times, from inclusive and to exclusive; none: all times.
type window struct{ from, to int64 } // unix ms

// windowDays bounds the days of a window. PostgreSQL locks each partition that a statement may read, with its indexes, and
// has a limited number of locks.
const windowDays = 14

// windows returns all days that may have events, newest first. No transaction holds the locks of two windows.
func (s *Store) windows(ctx context.Context) (list []window, err error) {
	err = s.db.Query(ctx, "read days of history", func(ctx context.Context, db bun.IDB) error {
		list, err = windows(ctx, db)
		return err
	})
	return list, unavailable(err)
}

func windows(ctx context.Context, db bun.IDB) ([]window, error) {
	if !storage.IsPostgres(db) {
		return []window{{}}, nil
	}
	days, err := partitions(ctx, db)
	slices.Reverse(days)
	var list []window
	for some := range slices.Chunk(days, windowDays) {
		list = append(list, window{some[len(some)-1].day * dayMS, (some[0].day + 1) * dayMS})
	}
	return list, err
}

// overlaps reports whether the window has times between two, both included.
func (w window) overlaps(low, high int64) bool {
	return w == (window{}) || w.from <= high && low < w.to
}

// where is the condition that a column is in the window. PostgreSQL leaves out the other partitions because it has constants.
func (w window) where(column string) schema.QueryAppender {
	if w == (window{}) {
		return bun.SafeQuery("TRUE")
	}
	return bun.SafeQuery("? >= ? AND ? < ?", bun.Ident(column), w.from, bun.Ident(column), w.to)
}

// days returns the first and the last day that may have events. Without events, the last one is before the first one.
func (s *Store) days(ctx context.Context) (first, last int64, err error) {
	if storage.IsPostgres(s.db) {
		list, err := s.partitions(ctx)
		if err != nil || len(list) == 0 {
			return 0, -1, err
		}
		return list[0].day, list[len(list)-1].day, nil
	}
	const query = "SELECT coalesce((SELECT min(accepted) FROM history_events) / ?, 0), coalesce((SELECT max(accepted) FROM history_events) / ?, -1)"
	err = s.db.Query(ctx, "read days of history", func(ctx context.Context, db bun.IDB) error {
		return db.NewRaw(query, dayMS, dayMS).Scan(ctx, &first, &last)
	})
	return first, last, err
}

// dayRow is a partition of events.
type dayRow struct {
	day    int64
	events int64 // an estimate, or -1
}

func (s *Store) partitions(ctx context.Context) (list []dayRow, err error) {
	err = s.db.Query(ctx, "list days of history", func(ctx context.Context, db bun.IDB) error {
		list, err = partitions(ctx, db)
		return err
	})
	return list, err
}

// partitions lists the partitions of events in PostgreSQL, by day.
func partitions(ctx context.Context, db bun.IDB) (list []dayRow, err error) {
	var found []struct {
		Relname   string
		Reltuples float64
	}
	err = db.NewRaw("SELECT relname, reltuples FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"+
		" WHERE inhparent = to_regclass(?) ORDER BY relname", tables[0]).Scan(ctx, &found)
	for _, f := range found {
		if at, err := time.Parse(tables[0]+dayFormat, f.Relname); err == nil { // else a person has added it
			list = append(list, dayRow{day: at.UnixMilli() / dayMS, events: int64(f.Reltuples)})
		}
	}
	return list, err
}

func dayExists(ctx context.Context, db bun.IDB, day int64) (exists bool, err error) {
	err = db.NewRaw("SELECT to_regclass(?) IS NOT NULL", partitionOf(tables[0], day)).Scan(ctx, &exists)
	return exists, err
}

// makeDay adds the partitions of a day. Unlike CREATE TABLE … PARTITION OF, ATTACH PARTITION does not wait for those who
// read and write the table, and they do not wait for it.
func makeDay(ctx context.Context, tx bun.Tx, day int64) error {
	for _, table := range tables {
		name := partitionOf(table, day)
		if _, err := tx.NewRaw("CREATE TABLE ? (LIKE ?)", bun.Ident(name), bun.Ident(table)).Exec(ctx); err != nil {
			return err
		}
		_, err := tx.NewRaw("ALTER TABLE ? ATTACH PARTITION ? FOR VALUES FROM (?) TO (?)",
			bun.Ident(table), bun.Ident(name), day*dayMS, (day+1)*dayMS).Exec(ctx)
		if err != nil {
			return fmt.Errorf("add partition %s: %w", name, err)
		}
	}
	return nil
}
