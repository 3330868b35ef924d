// Package outbox reads events from a table of PostgreSQL, in which a service inserts them in the transaction of its own
// work. A row is deleted when its event is accepted. A row that can never be accepted is moved to a second table.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"spendhook/internal/pause"
	"spendhook/internal/secret"
	"spendhook/relay"
)

const (
	// defaultTable is the table that the libraries in clients insert into.
	defaultTable = "spendhook_outbox"

	// poll is how often a table is read without a notification.
	poll = time.Second
	// standby is how often a relay tries to take the place of the one that reads.
	standby = time.Second
	// maxBehind is where Behind stops counting.
	maxBehind = 100_000
)

// bound is the longest that a statement may take; tests on a busy machine need longer.
var bound = time.Minute

// Options are those of a Source.
type Options struct {
	// URL is the address of the database (postgres://...). Its parameters name the files for TLS. The connection must
	// keep its session, so a pooler in the mode "transaction" cannot be used.
	URL secret.Text
	// Table may name its schema (sales.spendhook_outbox); "" means spendhook_outbox. The table of dead rows is in the same
	// schema, with _dead added to the name.
	Table string
}

// Source reads a table. Of several relays one reads it, and the others wait until that one is gone.
type Source struct {
	opts  Options
	names names
	poll  time.Duration // replaced by tests
}

var _ relay.Source = (*Source)(nil)

// New returns a Source. It does not connect. An error is that of the options, and has no part of the URL.
func New(o Options) (*Source, error) {
	names, err := parseTable(o.Table)
	if err != nil {
		return nil, err
	}
	if _, err := config(o.URL); err != nil {
		return nil, err
	}
	return &Source{opts: o, names: names, poll: poll}, nil
}

// Run implements relay.Source.
func (s *Source) Run(ctx context.Context, to *relay.Sender) error {
	if err := s.run(ctx, to); ctx.Err() == nil {
		return err
	}
	return nil
}

func (s *Source) run(ctx context.Context, to *relay.Sender) error {
	session, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer disconnect(ctx, session)
	if err := s.lock(ctx, session, to); err != nil {
		return err
	}
	var conns [2]*pgx.Conn // a row is deleted while others are read
	for i := range conns {
		if conns[i], err = s.connect(ctx); err != nil {
			return err
		}
		defer disconnect(ctx, conns[i])
	}
	to.Active(true)
	defer to.Active(false)

	r := newReader(s.names, conns[0], conns[1])
	r.stream = to.Stream(r.settle)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.stream.Run(ctx) })
	group.Go(func() error { return s.watch(ctx, session, r.woken) })
	group.Go(func() error { return r.read(ctx) })
	return group.Wait()
}

// lock waits until this session may read the table.
//
// A relay that loses its session, and with it the lock, may send on for a while beside the next one. This does no harm.
// Both send the rows of a key from the lowest that is left, each only after the one before it was accepted or dead, so
// the daemon accepts them in order whoever is faster; what comes second is a duplicate. Only one of two sessions
// gets a row that it deletes, so only one moves it.
func (s *Source) lock(ctx context.Context, session *pgx.Conn, to *relay.Sender) error {
	// The lock has the number of the table, however the options spell its name.
	const try = `SELECT current_setting('transaction_read_only')::boolean,
		pg_try_advisory_lock((1399876965::bigint << 32) | $1::text::regclass::oid::bigint)`
	for waited := false; ; waited = true {
		var readOnly, locked bool
		err := bounded(ctx, func(ctx context.Context) error {
			return session.QueryRow(ctx, try, s.names.table).Scan(&readOnly, &locked)
		})
		switch {
		case err != nil:
			return fmt.Errorf("lock the outbox: %w", err)
		case readOnly: // its rows could be sent, but not deleted
			return errReadOnly
		case locked:
			return s.listen(ctx, session)
		case !waited:
			to.Active(false)
		}
		if !pause.For(ctx, standby) {
			return ctx.Err()
		}
	}
}

var errReadOnly = errors.New("the database is read-only: connect to the primary")

func (s *Source) listen(ctx context.Context, session *pgx.Conn) error {
	return bounded(ctx, func(ctx context.Context) error {
		if _, err := session.Exec(ctx, s.names.listen); err != nil {
			return fmt.Errorf("listen to the outbox: %w", err)
		}
		return nil
	})
}

// watch has the table read after each notification, and otherwise once in a while. It fails when the session of the lock
// is lost.
func (s *Source) watch(ctx context.Context, session *pgx.Conn, woken chan<- struct{}) error {
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, s.poll)
		_, err := session.WaitForNotification(waiting)
		if err != nil && waiting.Err() != nil {
			err = bounded(ctx, session.Ping)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("hold the lock of the outbox: %w", err)
		}
		signal(woken)
	}
	return nil
}

// Behind implements relay.Source. It counts at most 100,000 rows.
func (s *Source) Behind(ctx context.Context) (map[string]int64, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer disconnect(ctx, conn)
	var rows int64
	if err := conn.QueryRow(ctx, s.names.count, maxBehind).Scan(&rows); err != nil {
		return nil, fmt.Errorf("count the rows of the outbox: %w", err)
	}
	return map[string]int64{"": rows}, nil
}

// bounded calls do with a limit on its time.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return do(ctx)
}

// signal fills a channel of capacity 1.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
