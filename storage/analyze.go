package storage

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// analyzeTimeout bounds the work of Analyze on one table.
const analyzeTimeout = 10 * time.Minute

// Analyze updates the planner's statistics of the tables. In PostgreSQL it also vacuums the
// tables: without that, counting the entries of an index reads every row.
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
