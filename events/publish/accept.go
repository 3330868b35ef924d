package publish

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/accept.lua
	acceptSource string

	acceptScript = queues.Script(layout.AppendLua()+acceptSource, false)
	// knownScript is acceptScript for calls that may admit no new event. It only looks up
	// known ids, and also runs when Redis is at its memory limit.
	knownScript = queues.Script(layout.AppendLua()+acceptSource, true)
)

// acceptChunk bounds the events of one script call, and so how long the call blocks Redis.
const acceptChunk = 64

// entry is one event to be accepted by accept.lua.
type entry struct {
	events.Ref
	kept    []byte  // body and trace, as layout.Encode returns them
	nonce   uint32  // unique to the entry, and the same when the entry is sent again
	result  *Result // set by write; its Err may also wrap events.ErrUnavailable
	request *request
}

// write runs accept.lua for the entries, those of a company in order, in one pipeline, and sets
// their results. The client may send the pipeline again after a lost reply.
func (p *Publisher) write(ctx context.Context, entries []*entry) []*acceptCall {
	groups := script.Groups(p.opts.Client, entries, acceptChunk, func(e *entry) int { return partition.Of(e.Company) })
	calls := make([]*acceptCall, len(groups))
	scripts := make([]*script.Call, len(groups))
	for i, g := range groups {
		calls[i] = p.acceptCall(ctx, g)
		scripts[i] = calls[i].call
	}
	_ = script.Run(ctx, p.opts.Client, scripts...) // each call has its own error
	p.lookUpKnown(ctx, calls)
	for _, c := range calls {
		c.readReply()
	}
	return calls
}

// lookUpKnown repeats calls that Redis refused at its memory limit with knownScript, which only
// looks up known ids.
func (p *Publisher) lookUpKnown(ctx context.Context, calls []*acceptCall) {
	var again []*script.Call
	for _, c := range calls {
		if _, err := c.call.Result(); redis.IsOOMError(err) {
			c.admit(0, 0)
			again = append(again, c.call)
		}
	}
	_ = script.Run(ctx, p.opts.Client, again...) // each call has its own error
}

// acceptCall is one call of accept.lua.
type acceptCall struct {
	entries   []*entry
	companies []uuid.UUID // in the order of their numbers, from 1
	call      *script.Call
	bytes     int64 // of all entries
	reserved  int64
	release   func(bytes int64) // releases reserved bytes that no event took

	number uint64               // number of the claim
	tokens map[uuid.UUID]string // companies whose events may be claimed, and the tokens of their partitions

	wakes      []int // partitions that need a wake-up
	batches    []any // claimed events
	deliveries int   // approximate number of their deliveries
	lost       bool  // events may be claimed, but the answer was lost
}

// admit sets how many bytes of new events the call may admit, and how many are free.
func (c *acceptCall) admit(bytes, free int64) {
	c.reserved, c.call.Args[3], c.call.Args[4] = bytes, bytes, free
	c.call.Script = acceptScript
	if bytes == 0 {
		c.call.Script = knownScript
	}
}

// bytes is the size of the event in the counts of memory.
func (e *entry) bytes() int64 { return int64(layout.Overhead + len(e.kept)) }

func (p *Publisher) acceptCall(ctx context.Context, group []*entry) *acceptCall {
	c := &acceptCall{entries: group, tokens: make(map[uuid.UUID]string)}
	var most int
	if p.opts.Claimer != nil {
		c.number, most = p.opts.Claimer.BeginAccept()
	}
	numbers := make(map[uuid.UUID]int, 1)
	for _, e := range group {
		if _, ok := numbers[e.Company]; !ok {
			c.companies = append(c.companies, e.Company)
			numbers[e.Company] = len(c.companies)
		}
	}
	args := append(make([]any, 0, 8+4*len(c.companies)+4*len(group)),
		script.Now(p.clock), p.opts.Retention.Milliseconds(),
		p.backlog.Load(), int64(0), int64(0), c.number, most, len(c.companies))
	for _, company := range c.companies {
		token, free := "", 0
		if most > 0 {
			token, free = p.opts.Claimer.AcceptFree(company)
		}
		if token != "" {
			c.tokens[company] = token
		}
		args = append(args, partition.Prefix(partition.Of(company)), company.String(), free, token)
	}
	bytes := int64(0)
	for _, e := range group {
		args = append(args, numbers[e.Company], e.ID, e.kept, fmt.Sprintf("%08x", e.nonce))
		bytes += e.bytes()
	}
	of := partition.Of(group[0].Company)
	c.call = &script.Call{Keys: queues.Keys(of), Args: args}
	reserved, free := bytes, int64(math.MaxInt64)
	c.bytes, c.release = bytes, func(int64) {}
	if p.opts.Memory != nil {
		shard, err := partition.Shard(ctx, p.opts.Client, of)
		if err != nil {
			shard = "" // the call fails with the same error
		}
		reserved, free, c.release = p.opts.Memory.Reserve(ctx, shard, bytes)
	}
	c.admit(reserved, free)
	return c
}

var errReply = errors.New("unexpected reply of the accept script")

// readReply reads the reply of the script: the result of each entry, the partitions to wake and
// the claimed events.
func (c *acceptCall) readReply() {
	reply, err := c.call.Result()
	list, _ := reply.([]any)
	if err == nil && len(list) != 3+len(c.entries) {
		err = errReply
	}
	for i, e := range c.entries {
		if err != nil {
			e.result.Err = fmt.Errorf("%w: accept event: %w", events.ErrUnavailable, err)
		} else {
			said, _ := list[3+i].(string)
			e.result.Status, e.result.Err = verdict(said)
			if errors.Is(e.result.Err, ErrStorageFull) && c.reserved < c.bytes {
				e.result.Err = errMemoryFull
			}
		}
	}
	if err != nil { // Redis may have admitted the events: the bytes stay reserved
		_, refused := errors.AsType[*partition.FormatError](err) // refused calls claim nothing
		c.lost = !refused
		return
	}
	c.release(c.reserved - c.admitted())
	numbers, _ := list[0].([]any)
	for _, n := range numbers {
		if i, ok := n.(int64); ok && i >= 1 && int(i) <= len(c.companies) {
			c.wakes = append(c.wakes, partition.Of(c.companies[i-1]))
		}
	}
	c.batches, _ = list[1].([]any)
	claimed, _ := list[2].(int64)
	c.deliveries = int(claimed)
}

// startClaimed starts the events that the call claimed. If the answer was lost, it requeues the events
// that the call may have claimed.
func (c *acceptCall) startClaimed(claimer Claimer) {
	if len(c.batches) > 0 {
		claimer.StartAccepted(func(company uuid.UUID) string { return c.tokens[company] }, c.deliveries, c.batches)
	}
	if c.lost {
		for company, token := range c.tokens {
			claimer.LostAccepted(token, c.number, company)
		}
	}
}

// admitted is an upper bound of the bytes of the call's new events.
func (c *acceptCall) admitted() int64 {
	bytes := int64(0)
	for _, e := range c.entries {
		if e.result.Status == Accepted {
			bytes += e.bytes()
		}
	}
	return min(bytes, c.reserved)
}

// verdict converts the answer of accept.lua for one event.
func verdict(said string) (Status, error) {
	switch said {
	case "CONFLICT":
		return "", ErrConflict
	case "BACKLOG_FULL":
		return "", ErrBacklogFull
	case "STORAGE_FULL":
		return "", ErrStorageFull
	}
	if why, failed := strings.CutPrefix(said, "FAILED "); failed {
		return "", fmt.Errorf("%w: accept event: %s", events.ErrUnavailable, why)
	}
	return Status(said), nil
}
