package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Check returns what would keep the relay from reading the table: it connects, and compares columns and privileges.
// It changes nothing.
func (s *Source) Check(ctx context.Context) error {
	return bounded(ctx, func(ctx context.Context) error {
		conn, err := s.connect(ctx)
		if err != nil {
			return err
		}
		defer disconnect(ctx, conn)
		var readOnly bool
		if err := conn.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::boolean`).Scan(&readOnly); err != nil {
			return fmt.Errorf("check the outbox: %w", err)
		}
		if readOnly {
			return errReadOnly
		}
		shared := strings.Split(strings.ReplaceAll(columns, `"`, ""), ", ")
		return errors.Join(
			checkTable(ctx, conn, s.names.table, append([]string{"seq"}, shared...), "SELECT", "DELETE"),
			checkTable(ctx, conn, s.names.dead, append([]string{"seq", "reason", "dead_at"}, shared...), "INSERT"),
			s.checkSession(ctx, conn),
		)
	})
}

// checkTable compares the columns of a table, and the privileges of this user, with those that are needed.
func checkTable(ctx context.Context, conn *pgx.Conn, table string, want []string, privileges ...string) error {
	var has []string
	err := conn.QueryRow(ctx, `SELECT array_agg(attname::text) FROM pg_attribute
		WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped`, table).Scan(&has)
	if err != nil {
		return fmt.Errorf("check the table %s: %w", table, err)
	}
	for _, column := range want {
		if !slices.Contains(has, column) {
			return fmt.Errorf("the table %s has no column %s", table, column)
		}
	}
	for _, privilege := range privileges {
		var granted bool
		if err := conn.QueryRow(ctx, `SELECT has_table_privilege($1::text, $2::text)`, table, privilege).Scan(&granted); err != nil {
			return fmt.Errorf("check the privileges of the table %s: %w", table, err)
		}
		if !granted {
			return fmt.Errorf("the user has no privilege %s on the table %s", privilege, table)
		}
	}
	return nil
}

// checkSession looks whether a connection keeps its process on the server, on which the lock depends. A pooler in the
// mode "transaction" lends that process to the second connection.
func (s *Source) checkSession(ctx context.Context, conn *pgx.Conn) error {
	var first, second int32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&first); err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	other, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect(ctx, other)
	if err := other.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&second); err != nil {
		return fmt.Errorf("check the session: %w", err)
	}
	return compareSessions(first, second)
}

func compareSessions(first, second int32) error {
	if first == second {
		return errors.New("a pooler shares the sessions of PostgreSQL: connect directly, or use its mode \"session\"")
	}
	return nil
}
