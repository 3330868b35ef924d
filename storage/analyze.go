package storage

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// analyzeTimeout bounds what Analyze does for one table.
const analyzeTimeout = 10 * time.Minute

// Analyze lets the planner know what the tables hold now, and PostgreSQL which
// of their pages everybody sees: until it has noted that, it reads the row for
// every entry of an index that it counts.
func (db *DB) Analyze(ctx context.Context, tables ...string) error {
	statement := "ANALYZE ?"
	if db.postgres() {
		statement = "VACUUM (ANALYZE) ?"
	}
	for _, table := range tables {
		ctx, cancel := context.WithTimeout(ctx, analyzeTimeout)
		err := db.untilItsTurn(ctx, func() error {
			_, err := db.w.ExecContext(ctx, statement, bun.Ident(table))
			return err
		})
		cancel()
		if err != nil {
			return failed("tidy "+table, err)
		}
	}
	return nil
}
