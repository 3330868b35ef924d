package events

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/accept.lua
var acceptSource string

var acceptScript = redis.NewScript(acceptSource)

// entry is one event on its way through accept.lua. commit sets status, or err
// to ErrConflict or to an error wrapping ErrUnavailable. nonce is new for every
// entry and stays when it is sent again.
type entry struct {
	ref    Ref
	body   []byte
	nonce  uint32
	status Status
	err    error
}

// commit runs accept.lua for each entry, in order, in one pipeline. The client
// may send the pipeline again after a lost reply. Scripts that the server does
// not know, because it restarted or was flushed, are sent whole once more.
func (s *Store) commit(ctx context.Context, entries []*entry) {
	if unknown := s.runAccept(ctx, entries, acceptScript.EvalSha); len(unknown) > 0 {
		s.runAccept(ctx, unknown, acceptScript.Eval)
	}
}

type runScript func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd

func (s *Store) runAccept(ctx context.Context, entries []*entry, run runScript) (unknown []*entry) {
	pipe := s.client.Pipeline()
	cmds := make([]*redis.Cmd, len(entries))
	now := s.now()
	for i, e := range entries {
		cmds[i] = run(ctx, pipe, e.keys(), e.args(now, s.retention)...)
	}
	_, _ = pipe.Exec(ctx) // each command tells its own error
	for i, e := range entries {
		if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
			unknown = append(unknown, e)
		}
		e.status, e.err = verdict(cmds[i])
	}
	return unknown
}

// verdict reads the reply of accept.lua.
func verdict(cmd *redis.Cmd) (Status, error) {
	said, err := cmd.Text()
	switch {
	case err != nil:
		return "", unavailable("accept event", err)
	case said == "CONFLICT":
		return "", ErrConflict
	}
	return Status(said), nil
}

func (e *entry) keys() []string {
	p := Partition(e.ref.Company)
	return []string{EventKey(e.ref), IndexKey(e.ref.Company), OpenKey(p), CompaniesKey(p)}
}

func (e *entry) args(now time.Time, retention time.Duration) []any {
	return []any{
		fmt.Sprintf("%013d", now.UnixMilli()), fmt.Sprintf("%08x", e.nonce), e.body,
		e.ref.ID, e.ref.Company.String(), e.ref.String(),
		retention.Milliseconds(), (retention + grace).Milliseconds(),
	}
}
