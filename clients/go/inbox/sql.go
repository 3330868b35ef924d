package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// SQLStore is a Store in PostgreSQL or SQLite, by any driver of database/sql. Work gets the transaction. Several
// processes may share the database.
//
// With SQLite, give the driver a busy time-out, such as PRAGMA busy_timeout = 5000: writers wait for each other.
type SQLStore struct {
	DB *sql.DB
	// Name is that of the inbox, at most 100 characters; "" means "inbox". Inboxes of several subscribers in one database
	// need names of their own; two processes of one inbox have the same name.
	Name string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// The statements of PostgreSQL and SQLite, which agree in all of this.
const (
	createInbox = `CREATE TABLE IF NOT EXISTS spendhook_inbox (inbox VARCHAR(100) NOT NULL, id VARCHAR(255) NOT NULL,` +
		` sequence BIGINT, received_at BIGINT NOT NULL, PRIMARY KEY (inbox, id))`
	createCursor = `CREATE TABLE IF NOT EXISTS spendhook_cursor (inbox VARCHAR(100) NOT NULL PRIMARY KEY, position VARCHAR(64) NOT NULL)`
	insertEvent  = `INSERT INTO spendhook_inbox (inbox, id, sequence, received_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (inbox, id) DO NOTHING`
	selectCursor = `SELECT position FROM spendhook_cursor WHERE inbox = $1`
	upsertCursor = `INSERT INTO spendhook_cursor (inbox, position) VALUES ($1, $2)
		ON CONFLICT (inbox) DO UPDATE SET position = excluded.position`
	deleteEvents = `DELETE FROM spendhook_inbox WHERE inbox = $1 AND received_at < $2`
)

// Migrate creates the tables spendhook_inbox and spendhook_cursor unless they exist.
func (s *SQLStore) Migrate(ctx context.Context) error {
	for _, statement := range []string{createInbox, createCursor} {
		_, err := s.DB.ExecContext(ctx, statement)
		if err != nil { // PostgreSQL refuses the second of two processes that create a table at the same time
			_, err = s.DB.ExecContext(ctx, statement)
		}
		if err != nil {
			return fmt.Errorf("create the tables of the inbox: %w", err)
		}
	}
	return nil
}

// Forget removes the ids of this inbox's events that were received before so long ago, and returns how many. An event
// that is delivered after its id was removed is worked on once more. So age must be more than the sender keeps
// events (7 days by default, longer where the operator says so), and more than it takes until somebody replays one.
func (s *SQLStore) Forget(ctx context.Context, age time.Duration) (int64, error) {
	result, err := s.DB.ExecContext(ctx, deleteEvents, s.name(), s.now().Add(-age).Unix())
	if err != nil {
		return 0, fmt.Errorf("forget events: %w", err)
	}
	return result.RowsAffected()
}

func (s *SQLStore) now() time.Time {
	if s.Now == nil {
		return time.Now() //nolint:forbidigo // the nil default
	}
	return s.Now()
}

func (s *SQLStore) name() string { return cmp.Or(s.Name, "inbox") }

// Transaction implements Store.
func (s *SQLStore) Transaction(ctx context.Context, do func(tx Transaction, work *sql.Tx) error) error {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := do(&sqlTransaction{tx, s}, tx); err != nil {
		return err
	}
	return tx.Commit()
}

type sqlTransaction struct {
	tx    *sql.Tx
	store *SQLStore
}

// Add inserts first, and does not look whether the id is there: the unique key decides between two processes, and
// SQLite takes the lock for writing at once.
func (t *sqlTransaction) Add(ctx context.Context, id string, sequence int64) (bool, error) {
	number := sql.NullInt64{Int64: sequence, Valid: sequence != 0}
	result, err := t.tx.ExecContext(ctx, insertEvent, t.store.name(), id, number, t.store.now().Unix())
	if err != nil {
		return false, fmt.Errorf("note the event: %w", err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

func (t *sqlTransaction) Cursor(ctx context.Context) (cursor string, err error) {
	err = t.tx.QueryRowContext(ctx, selectCursor, t.store.name()).Scan(&cursor)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return cursor, err
}

func (t *sqlTransaction) SetCursor(ctx context.Context, cursor string) error {
	if _, err := t.tx.ExecContext(ctx, upsertCursor, t.store.name(), cursor); err != nil {
		return fmt.Errorf("move the cursor: %w", err)
	}
	return nil
}
