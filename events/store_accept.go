package events

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/script"
	"spendhook/internal/tracing"
)

var (
	//go:embed lua/lib.lua
	libSource string
	//go:embed lua/accept.lua
	acceptSource string

	acceptScript = workqueue.Script(Lua()+appendLua+acceptSource, false)
	// knownScript is acceptScript where no new event may be admitted: it only reads
	// what is known, also when Redis is at its memory limit.
	knownScript = workqueue.Script(Lua()+appendLua+acceptSource, true)
)

// What Redis needs for an event besides the body that is kept, in bytes: keys,
// indexes and a delivery that was delivered; and of a compacted one in all.
const (
	eventOverhead  = 900
	compactedBytes = 280
)

// Lua is how scripts of other packages find an event's state: names of its parts
// and of the states, and what is counted for it.
func Lua() string {
	return fmt.Sprintf("local OVERHEAD, COMPACTED_BYTES = %d, %d\n", eventOverhead, compactedBytes) + libSource
}

// acceptChunk bounds the events of one script call, and with them how long
// Redis does nothing else.
const acceptChunk = 64

// entry is one event on its way through accept.lua. commit sets status, or err
// to ErrConflict, ErrBacklogFull, ErrStorageFull or to an error wrapping ErrUnavailable. nonce is
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
	for i, g := range groups {
		calls[i] = s.acceptCall(ctx, g)
		scripts[i] = calls[i].call
	}
	_ = script.Run(ctx, s.client, nil, scripts...) // each call has its own error
	s.askAgain(ctx, calls)
	seen := make(map[int]bool)
	for _, c := range calls {
		for _, p := range c.answer() {
			if !seen[p] {
				seen[p] = true
				wakes = append(wakes, p)
			}
		}
	}
	return wakes
}

// askAgain asks what is known of the events of calls that Redis refused since it
// is at its memory limit.
func (s *Store) askAgain(ctx context.Context, calls []*acceptCall) {
	var again []*script.Call
	for _, c := range calls {
		if _, err := c.call.Result(); redis.IsOOMError(err) {
			c.admit(0, 0)
			again = append(again, c.call)
		}
	}
	_ = script.Run(ctx, s.client, nil, again...) // each call has its own error
}

// acceptCall is one call of accept.lua.
type acceptCall struct {
	entries   []*entry
	companies []uuid.UUID // in the order of their numbers, from 1
	call      *script.Call
	bytes     int64 // of all entries
	reserved  int64
	giveBack  func(bytes int64) // of what was reserved
}

// admit sets how many bytes of new events the call may admit, and how many are free.
func (c *acceptCall) admit(bytes, free int64) {
	c.reserved, c.call.Args[4], c.call.Args[5] = bytes, bytes, free
	c.call.Script = acceptScript
	if bytes == 0 {
		c.call.Script = knownScript
	}
}

// bytes is what is counted for the event.
func (e *entry) bytes() int64 {
	n := eventOverhead + len(keptBody(e.Ref(), e.Body))
	if !e.Trace.IsZero() {
		n += tracing.Bytes + 1
	}
	return int64(n)
}

func (s *Store) acceptCall(ctx context.Context, group []*entry) *acceptCall {
	c := &acceptCall{entries: group}
	numbers := make(map[uuid.UUID]int, 1)
	for _, e := range group {
		if _, ok := numbers[e.CompanyUUID]; !ok {
			c.companies = append(c.companies, e.CompanyUUID)
			numbers[e.CompanyUUID] = len(c.companies)
		}
	}
	args := append(make([]any, 0, 7+2*len(c.companies)+4*len(group)),
		s.now().UnixMilli(), s.retention.Milliseconds(), s.lead.Milliseconds(),
		s.backlog.Load(), int64(0), int64(0), len(c.companies))
	for _, company := range c.companies {
		args = append(args, partition.Prefix(partition.Of(company)), company.String())
	}
	bytes := int64(0)
	for _, e := range group {
		args = append(args, numbers[e.CompanyUUID], e.ID, e.kept(), fmt.Sprintf("%08x", e.nonce))
		bytes += e.bytes()
	}
	p := partition.Of(group[0].CompanyUUID)
	c.call = &script.Call{Keys: workqueue.Keys(p), Args: args}
	shard, err := partition.Shard(ctx, s.client, p)
	if err != nil {
		shard = "" // the call fails, and says why
	}
	reserved, free, giveBack := s.memory.Reserve(ctx, shard, bytes)
	c.bytes, c.giveBack = bytes, giveBack
	c.admit(reserved, free)
	return c
}

var errReply = errors.New("unexpected reply of the accept script")

// answer tells each entry what became of it, and returns the partitions that
// need a wake-up.
func (c *acceptCall) answer() []int {
	reply, err := c.call.Result()
	list, _ := reply.([]any)
	if err == nil && len(list) != 1+len(c.entries) {
		err = errReply
	}
	for i, e := range c.entries {
		if err != nil {
			e.status, e.err = "", unavailable("accept event", err)
		} else {
			said, _ := list[1+i].(string)
			e.status, e.err = verdict(said)
			if errors.Is(e.err, ErrStorageFull) && c.reserved < c.bytes {
				e.err = errMemoryFull
			}
		}
	}
	if err != nil {
		return nil // what it admitted is not known
	}
	c.giveBack(c.reserved - c.admitted())
	var wakes []int
	numbers, _ := list[0].([]any)
	for _, n := range numbers {
		if i, ok := n.(int64); ok && i >= 1 && int(i) <= len(c.companies) {
			wakes = append(wakes, partition.Of(c.companies[i-1]))
		}
	}
	return wakes
}

// admitted is the bytes of the call's new events, at most.
func (c *acceptCall) admitted() int64 {
	bytes := int64(0)
	for _, e := range c.entries {
		if e.status == Accepted {
			bytes += e.bytes()
		}
	}
	return min(bytes, c.reserved)
}

// verdict reads what accept.lua says of an event.
func verdict(said string) (Status, error) {
	switch said {
	case "CONFLICT":
		return "", ErrConflict
	case "BACKLOG_FULL":
		return "", ErrBacklogFull
	case "STORAGE_FULL":
		return "", ErrStorageFull
	}
	return Status(said), nil
}
