package storage

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var (
	// ErrUnavailable means that the database is unreachable, full or too slow.
	// The same call may succeed later.
	ErrUnavailable = errors.New("the database is unavailable")
	// ErrNotFound means that the company has no object with the id. Another company may have it.
	ErrNotFound = errors.New("not found")
)

var errNotMigrated = fmt.Errorf("%w: its schema has not been migrated yet", ErrUnavailable)

// failed adds op to an error, and maps the errors of the drivers to ErrUnavailable and
// ErrNotFound.
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

// addContextError adds the context's error to the error of an interrupted transaction.
func addContextError(ctx context.Context, err error) error {
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
		return false // the caller cancelled the call
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	case errors.As(err, &server):
		return postgresUnavailable(server.Code)
	case errors.As(err, &local):
		return sqliteUnavailable(local.Code())
	default:
		return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err)
	}
}

// postgresUnavailable reports whether the SQLSTATE has one of the classes connection exception,
// insufficient resources, operator intervention and system error, or says that the server has
// become a read-only standby.
func postgresUnavailable(code string) bool {
	return code == "25006" || slices.Contains([]string{"08", "53", "57", "58"}, code[:min(2, len(code))])
}

// sqliteUnavailable checks the primary result code, which is the low byte of code.
func sqliteUnavailable(code int) bool {
	return slices.Contains([]int{
		sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_INTERRUPT,
		sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT,
	}, code&0xff)
}

// isRetryable reports whether a transaction was rolled back and may be repeated: after a
// deadlock or a serialization failure in PostgreSQL, or while another process writes to SQLite.
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
