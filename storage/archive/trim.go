package archive

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/uptrace/bun"

	"spendhook/internal/pause"
	"spendhook/storage"
)

const (
	trimStep     = 1000 // events that a transaction of SQLite removes
	forgetStep   = 100  // companies that a transaction looks at
	dropAttempts = 5
	dropPause    = 500 * time.Millisecond
)

// Trim removes the events of the days (UTC) that ended before a time, with their deliveries. It returns how many
// events it removed, also of erased ones; in PostgreSQL this is an estimate. Others wait for it for some 400 ms at
// most. If it fails, it may have removed some.
func (s *Store) Trim(ctx context.Context, before time.Time) (removed int64, err error) {
	trim := s.deleteBefore
	if storage.IsPostgres(s.db) {
		trim = s.dropBefore
	}
	if removed, err = trim(ctx, before.UnixMilli()/dayMS); err != nil {
		return removed, unavailable(err)
	}
	return removed, s.forgetAll(ctx)
}

// dropBefore drops the partitions of the days before one.
func (s *Store) dropBefore(ctx context.Context, day int64) (removed int64, err error) {
	days, err := s.partitions(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range days {
		if d.day >= day {
			break
		}
		if err := s.dropDay(ctx, d.day); err != nil {
			return removed, err
		}
		removed += max(0, d.events)
	}
	return removed, nil
}

// dropDay drops the partitions of a day. It needs a lock that waits for all who use the tables, and for which others
// wait. So it waits only for a short time, and tries again later.
func (s *Store) dropDay(ctx context.Context, day int64) error {
	for attempt := 1; ; attempt++ {
		err := s.db.WriteWithin(ctx, writeLimit, "drop day of history", func(ctx context.Context, tx bun.Tx) error {
			if _, err := tx.ExecContext(ctx, "SET LOCAL lock_timeout = '200ms'"); err != nil {
				return err
			}
			for _, table := range tables {
				if _, err := tx.NewRaw("DROP TABLE IF EXISTS ?", bun.Ident(partitionOf(table, day))).Exec(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if !lockTimedOut(err) || attempt == dropAttempts || !pause.For(ctx, dropPause) {
			return err
		}
	}
}

func lockTimedOut(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == "55P03"
}

// deleteBefore deletes the events of the days before one in SQLite.
func (s *Store) deleteBefore(ctx context.Context, day int64) (removed int64, err error) {
	for n := int64(trimStep); n == trimStep; removed += n {
		err := s.db.WriteWithin(ctx, writeLimit, "trim history", func(ctx context.Context, tx bun.Tx) error {
			const some = "FROM history_events WHERE accepted < ? ORDER BY accepted LIMIT ?"
			for _, table := range []string{
				"history_deliveries WHERE (company, id, accepted, nonce) IN (SELECT company, id, accepted, nonce ",
				"history_terms WHERE rowid IN (SELECT number ",
			} {
				if _, err := tx.NewRaw("DELETE FROM "+table+some+")", day*dayMS, trimStep).Exec(ctx); err != nil {
					return err
				}
			}
			deleted, err := tx.NewRaw("DELETE FROM history_events WHERE number IN (SELECT number "+some+")", day*dayMS, trimStep).Exec(ctx)
			if err != nil {
				return err
			}
			n, err = deleted.RowsAffected()
			return err
		})
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// forgetAll removes the companies without events from the list.
func (s *Store) forgetAll(ctx context.Context) error {
	for last := uuid.Nil; ; {
		companies, err := s.Companies(ctx, last, forgetStep)
		if err != nil || len(companies) == 0 {
			return err
		}
		if err := s.forget(ctx, storage.Keys(companies)); err != nil {
			return err
		}
		last = companies[len(companies)-1]
	}
}
