package outbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spendhook/internal/secret"
)

const (
	connectTimeout = 10 * time.Second
	closeTimeout   = 2 * time.Second

	// keepalives have the server end a session half a minute after the machine of its relay is lost, which frees the
	// lock. They are set afterwards, since a pooler refuses to begin a session with them; not all servers know all of
	// them; and they do nothing on a Unix socket.
	keepalives = `SELECT set_config(name, value, false) FROM pg_settings JOIN (VALUES
		('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
		('tcp_user_timeout', '30000')) wanted (name, value) USING (name)`
)

// config reads the URL. Its errors have no part of it, since a password may be in the wrong place.
func config(address secret.Text) (*pgx.ConnConfig, error) {
	u, err := url.Parse(address.Reveal())
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("the address of the outbox is not a URL that begins with postgres://")
	}
	c, err := pgx.ParseConfig(address.Reveal())
	if file, is := errors.AsType[*fs.PathError](err); is {
		return nil, fmt.Errorf("the URL of the outbox: %w", file)
	}
	if err != nil {
		return nil, errors.New("the URL of the outbox has a part that is not valid")
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "spendhook-relay"
	}
	// Nothing is prepared, so each statement is planned with its values.
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	return c, nil
}

func (s *Source) connect(ctx context.Context) (*pgx.Conn, error) {
	c, err := config(s.opts.URL) // again, since its files may be new
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect to the outbox: %w", oneLine(err))
	}
	err = bounded(ctx, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, keepalives)
		return err
	})
	if _, refused := errors.AsType[*pgconn.PgError](err); err != nil && !refused { // a server may forbid it
		disconnect(ctx, conn)
		return nil, fmt.Errorf("set the keepalives of the outbox: %w", err)
	}
	return conn, nil
}

// oneLine makes a line of an error of the library, which has a line for each address, with and without TLS.
func oneLine(err error) error {
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return errors.New(strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": "))
}

// disconnect ends a session, which frees its lock, also after ctx has ended.
func disconnect(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the server ends it in any case
}
