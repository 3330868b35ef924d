package publish

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
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

	tokens map[uuid.UUID]string // companies whose partitions this replica owns, and the tokens

	wakes []int   // partitions whose owners are to be woken
	begun []Begun // accepted events of the others
	lost  bool    // events may have been accepted, but the answer was lost
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
func (e *entry) bytes() int64 { return int64(layout.Bytes(len(e.kept))) }

func (p *Publisher) acceptCall(ctx context.Context, group []*entry) *acceptCall {
	c := &acceptCall{entries: group, tokens: make(map[uuid.UUID]string)}
	numbers := make(map[uuid.UUID]int, 1)
	for _, e := range group {
		if _, ok := numbers[e.Company]; !ok {
			c.companies = append(c.companies, e.Company)
			numbers[e.Company] = len(c.companies)
		}
	}
	args := append(make([]any, 0, 6+3*len(c.companies)+4*len(group)),
		script.Now(p.clock), p.opts.Retention.Milliseconds(),
		p.backlog.Load(), int64(0), int64(0), len(c.companies))
	for _, company := range c.companies {
		token := ""
		if p.opts.Owner != nil {
			token = p.opts.Owner.Token(company)
		}
		if token != "" {
			c.tokens[company] = token
		}
		args = append(args, partition.Prefix(partition.Of(company)), company.String(), token)
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
// the events to start.
func (c *acceptCall) readReply() {
	reply, err := c.call.Result()
	list, _ := reply.([]any)
	if err == nil && len(list) != 2+len(c.entries) {
		err = errReply
	}
	for i, e := range c.entries {
		if err != nil {
			e.result.Err = fmt.Errorf("%w: accept event: %w", events.ErrUnavailable, err)
		} else {
			said, _ := list[2+i].(string)
			e.result.Status, e.result.Err = verdict(said)
			if errors.Is(e.result.Err, ErrStorageFull) && c.reserved < c.bytes {
				e.result.Err = errMemoryFull
			}
		}
	}
	if err != nil { // Redis may have admitted the events: the bytes stay reserved
		_, refused := errors.AsType[*partition.FormatError](err)
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
	begun, _ := list[1].([]any)
	for _, b := range begun {
		if of, _ := b.([]any); len(of) == 8 {
			c.begun = append(c.begun, c.readBegun(of))
		}
	}
}

// readBegun reads what the script returned of a company whose partition this replica owns.
func (c *acceptCall) readBegun(reply []any) (b Begun) {
	n, _ := reply[0].(int64)
	b.Company = c.companies[n-1]
	b.Token, b.After, b.Cost = c.tokens[b.Company], number(reply[1]), number(reply[4])
	first, seq := number(reply[2]), int64(number(reply[3]))
	b.Cursor, b.Version, b.Managed = number(reply[5]), reply[6], reply[7]
	for _, e := range c.entries {
		if e.Company == b.Company && e.result.Status == Accepted {
			seq++
			place, value := layout.Value(first, len(b.Events), e.nonce, seq, e.kept)
			b.Events = append(b.Events, BegunEvent{ID: e.ID, Place: place, Number: seq, Value: value})
		}
	}
	return b
}

func number(v any) float64 {
	text, _ := v.(string)
	f, _ := strconv.ParseFloat(text, 64) // our script writes it
	return f
}

// start has the events started that were accepted in partitions that this replica owns.
func (c *acceptCall) start(owner Owner) {
	if len(c.begun) > 0 {
		owner.Accepted(c.begun)
	}
	if c.lost && len(c.tokens) > 0 {
		owner.Unsure(slices.Collect(maps.Keys(c.tokens)))
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
