// Package outbox inserts events into the table spendhook_outbox of PostgreSQL, in the transaction of your own work, so
// that an event is sent if and only if that work is committed. `spendhook relay` sends the rows.
package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Event is one that is to be sent.
type Event struct {
	// ID is unique in the company: 1 to 128 of A-Z a-z 0-9 _ -, not beginning with spendhook-. Make it of your work, such
	// as the number of a payment, so that work that is repeated has the same one.
	ID string
	// Event is its type, such as PAYMENT_PAID.
	Event string
	// Company is the UUID of its company; "": that of the relay.
	Company string
	// Key orders events: those of one key are sent in the order in which they were inserted. Insert after you have locked
	// what the key stands for, such as the account, so that this is also the order of the commits. "": the order does not
	// matter. At most 1,024 bytes.
	Key string
	// Timestamp is when the event happened, to the millisecond. Zero: the begin of the transaction.
	Timestamp time.Time
	// Metadata is a JSON object of at most 256 KiB; nil: an empty one. Its numbers are sent as they are written.
	Metadata json.RawMessage
	// ErrorCode and ErrorMessage are optional, with at most 128 and 4,096 bytes.
	ErrorCode, ErrorMessage string
}

// statement inserts a row, and wakes the relay when the transaction is committed. The libraries of all languages have
// this text, with their own placeholders. It reads no column, so the user needs the privilege INSERT alone.
const statement = `WITH written AS (INSERT INTO spendhook_outbox` +
	` (id, company_uuid, event, key, "timestamp", metadata, error_code, error_message)` +
	` VALUES ($1, CAST($2 AS uuid), $3, $4, COALESCE(CAST($5 AS timestamptz), now()), CAST($6 AS json), $7, $8) RETURNING 1)` +
	` SELECT pg_notify('spendhook_outbox', '') FROM written`

// Insert inserts an event in a transaction of database/sql, a *sql.Tx, by any driver. An error is that of the database,
// or says what in the event is not valid.
func Insert(ctx context.Context, tx SQLTx, e Event) error {
	args, err := e.args()
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("insert event %s: %w", e.ID, err)
	}
	return nil
}

// InsertPGX is Insert for a transaction of pgx, a pgx.Tx.
func InsertPGX[Tag any](ctx context.Context, tx PGXTx[Tag], e Event) error {
	args, err := e.args()
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, statement, args...); err != nil {
		return fmt.Errorf("insert event %s: %w", e.ID, err)
	}
	return nil
}

// SQLTx is what Insert needs of a *sql.Tx.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// PGXTx is what InsertPGX needs of a pgx.Tx. Tag is its result, pgconn.CommandTag.
type PGXTx[Tag any] interface {
	Exec(ctx context.Context, query string, args ...any) (Tag, error)
}

const (
	maxKey          = 1024
	maxMetadata     = 256 << 10
	maxErrorCode    = 128
	maxErrorMessage = 4096
)

var (
	idSyntax      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	eventSyntax   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$`)
	companySyntax = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// args are the values of statement.
func (e *Event) args() ([]any, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	var at any
	if !e.Timestamp.IsZero() {
		at = e.Timestamp.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)
	}
	metadata := "{}"
	if e.Metadata != nil {
		metadata = string(e.Metadata)
	}
	return []any{e.ID, optional(e.Company), e.Event, optional(e.Key), at, metadata, optional(e.ErrorCode), optional(e.ErrorMessage)}, nil
}

func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func (e *Event) validate() error {
	switch {
	case !idSyntax.MatchString(e.ID) || strings.HasPrefix(e.ID, "spendhook-"):
		return errors.New("the id of an event has 1 to 128 of A-Z a-z 0-9 _ - and does not begin with spendhook-")
	case !eventSyntax.MatchString(e.Event):
		return fmt.Errorf("event %s: its type has 1 to 128 of A-Z a-z 0-9 _ . : - and begins with a letter or digit", e.ID)
	case e.Company != "" && !companySyntax.MatchString(e.Company):
		return fmt.Errorf("event %s: the company is not a UUID", e.ID)
	case len(e.Key) > maxKey:
		return fmt.Errorf("event %s: the key has more than %d bytes", e.ID, maxKey)
	case e.Metadata != nil && !isObject(e.Metadata):
		return fmt.Errorf("event %s: the metadata are not a JSON object", e.ID)
	case len(e.Metadata) > maxMetadata:
		return fmt.Errorf("event %s: the metadata have more than %d bytes", e.ID, maxMetadata)
	case len(e.ErrorCode) > maxErrorCode:
		return fmt.Errorf("event %s: the error code has more than %d bytes", e.ID, maxErrorCode)
	case len(e.ErrorMessage) > maxErrorMessage:
		return fmt.Errorf("event %s: the error message has more than %d bytes", e.ID, maxErrorMessage)
	}
	return nil
}

func isObject(text []byte) bool {
	return json.Valid(text) && bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{"))
}
