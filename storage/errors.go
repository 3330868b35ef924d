package storage

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var (
	// ErrUnavailable means that the database is away, full or too slow: the
	// same call may succeed later.
	ErrUnavailable = errors.New("the database is unavailable")
	// ErrNotFound means that the company has nothing of that id, whether or not
	// another company does.
	ErrNotFound = errors.New("not found")
)

var errNotMigrated = fmt.Errorf("%w: it has not been migrated yet", ErrUnavailable)

// failed says what was attempted, and turns the drivers' many errors into the
// few that callers tell apart.
func failed(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s: %w", op, ErrNotFound)
	case isUnavailable(err) && !errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%s: %w: %w", op, ErrUnavailable, err)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

// inTime lets an error that a cut-off transaction ended with show its cause.
func inTime(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

func isUnavailable(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	var server *pgconn.PgError
	var local *sqlite.Error
	switch {
	case errors.Is(err, context.Canceled):
		return false // the caller went away, not the database
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	case errors.As(err, &server):
		return serverUnavailable(server.Code)
	case errors.As(err, &local):
		return localUnavailable(local.Code())
	default:
		return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err)
	}
}

// serverUnavailable goes by the classes of SQLSTATE: connection exceptions,
// out of resources, operator intervention, system error, and a server that has
// become a read-only standby.
func serverUnavailable(code string) bool {
	if code == "25006" {
		return true
	}
	switch code[:min(2, len(code))] {
	case "08", "53", "57", "58":
		return true
	default:
		return false
	}
}

// localUnavailable goes by SQLite's primary result codes.
func localUnavailable(code int) bool {
	switch code & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT,
		sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return true
	default:
		return false
	}
}

// isRetryable: PostgreSQL ended the transaction for a deadlock or because
// another one came first, or in SQLite another process is writing; and nothing
// of it remains.
func isRetryable(err error) bool {
	var server *pgconn.PgError
	var local *sqlite.Error
	switch {
	case errors.As(err, &server):
		return server.Code == "40P01" || server.Code == "40001"
	case errors.As(err, &local):
		return local.Code()&0xff == sqlite3.SQLITE_BUSY
	default:
		return false
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
