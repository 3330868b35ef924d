package events

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

var (
	//go:embed lua/lib.lua
	lib string
	//go:embed lua/accept.lua
	acceptSource string
)

var acceptScript = workqueue.Script(Lua()+appendLua+acceptSource, false)

// Lua is how scripts of other packages find an event's state: names of its parts
// and of the states.
func Lua() string { return lib }

// acceptChunk bounds the events of one script call, and with them how long
// Redis does nothing else.
const acceptChunk = 64

// entry is one event on its way through accept.lua. commit sets status, or err
// to ErrConflict, ErrBacklogFull or to an error wrapping ErrUnavailable. nonce is
// new for every entry and stays when it is sent again.
type entry struct {
	Stored
	nonce  uint32
	status Status
	err    error
	unit   *unit
}

// commit runs accept.lua for the entries, those of a company in order, in one
// pipeline. The client may send the pipeline again after a lost reply. It returns
// the partitions that need a wake-up.
func (s *Store) commit(ctx context.Context, entries []*entry) (wakes []int) {
	groups := script.Groups(s.client, entries, acceptChunk, func(e *entry) int { return partition.Of(e.CompanyUUID) })
	calls := make([]*acceptCall, len(groups))
	scripts := make([]*script.Call, len(groups))
	now := time.UnixMilli(s.now().UnixMilli()).UTC() // as it is kept
	for i, g := range groups {
		calls[i] = s.acceptCall(g, now)
		scripts[i] = calls[i].call
	}
	_ = script.Run(ctx, s.client, nil, scripts...) // each call has its own error
	seen := make(map[int]bool)
	for _, c := range calls {
		for _, p := range c.answer(now) {
			if !seen[p] {
				seen[p] = true
				wakes = append(wakes, p)
			}
		}
	}
	return wakes
}

// acceptCall is one call of accept.lua.
type acceptCall struct {
	entries   []*entry
	companies []uuid.UUID // in the order of their numbers, from 1
	call      *script.Call
}

func (s *Store) acceptCall(group []*entry, now time.Time) *acceptCall {
	c := &acceptCall{entries: group}
	numbers := make(map[uuid.UUID]int, 1)
	for _, e := range group {
		if _, ok := numbers[e.CompanyUUID]; !ok {
			c.companies = append(c.companies, e.CompanyUUID)
			numbers[e.CompanyUUID] = len(c.companies)
		}
	}
	args := append(make([]any, 0, 5+2*len(c.companies)+4*len(group)),
		fmt.Sprintf("%013d", now.UnixMilli()), s.retention.Milliseconds(), (s.retention + grace).Milliseconds(),
		s.backlog, len(c.companies))
	for _, company := range c.companies {
		args = append(args, partition.Prefix(partition.Of(company)), company.String())
	}
	for _, e := range group {
		args = append(args, numbers[e.CompanyUUID], e.ID, keptBody(e.Ref(), e.Body), fmt.Sprintf("%08x", e.nonce))
	}
	c.call = &script.Call{Script: acceptScript, Keys: workqueue.Keys(partition.Of(group[0].CompanyUUID)), Args: args}
	return c
}

var errReply = errors.New("unexpected reply of the accept script")

// answer tells each entry what became of it, and returns the partitions that
// need a wake-up.
func (c *acceptCall) answer(now time.Time) []int {
	reply, err := c.call.Result()
	list, _ := reply.([]any)
	if err == nil && len(list) != 1+len(c.entries) {
		err = errReply
	}
	for i, e := range c.entries {
		e.AcceptedAt = now
		if err != nil {
			e.status, e.err = "", unavailable("accept event", err)
		} else {
			said, _ := list[1+i].(string)
			e.status, e.err = verdict(said)
		}
	}
	if err != nil {
		return nil
	}
	var wakes []int
	numbers, _ := list[0].([]any)
	for _, n := range numbers {
		if i, ok := n.(int64); ok && i >= 1 && int(i) <= len(c.companies) {
			wakes = append(wakes, partition.Of(c.companies[i-1]))
		}
	}
	return wakes
}

// verdict reads what accept.lua says of an event.
func verdict(said string) (Status, error) {
	switch said {
	case "CONFLICT":
		return "", ErrConflict
	case "BACKLOG_FULL":
		return "", ErrBacklogFull
	}
	return Status(said), nil
}
