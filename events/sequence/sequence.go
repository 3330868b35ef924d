// Package sequence reads the events of a company by their numbers, and waits for new
// ones.
package sequence

import (
	"cmp"
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
)

var (
	//go:embed lua/after.lua
	afterSource string

	afterScript = queues.ReadScript(layout.Lua() + afterSource)
)

// blockSize is how many numbers a block has; see lua/lib.lua of package layout.
const blockSize = 128

// ErrAhead means that the number is higher than that of the company's last event.
var ErrAhead = errors.New("the company has no event with this number yet")

// Event describes an event with its number. Only compacted events have Type and Timestamp.
type Event struct {
	Ref        events.Ref
	Sequence   int64
	AcceptedAt time.Time
	Bytes      int // size of its stored value
	Compacted  bool
	Type       string
	Timestamp  time.Time
}

// Page is a part of the events of a company, in the order of their numbers.
// Numbers up to Through that are not among Events belong to events that are no longer stored.
type Page struct {
	Events  []Event
	Through int64
	Last    int64 // the number of the company's last event
}

// Reader reads events by number, and lets callers wait for new events. It is safe for concurrent
// use. Errors of Redis wrap events.ErrUnavailable. Close it.
type Reader struct {
	client  redis.UniversalClient
	stopped context.Context //nolint:containedctx // ends with Close
	stop    context.CancelFunc

	mu        sync.Mutex // guards this group
	waiting   int        // callers of Wait
	ofCompany map[uuid.UUID]int
}

// New returns a Reader on the client, which it does not close.
func New(client redis.UniversalClient) *Reader {
	r := &Reader{client: client, ofCompany: map[uuid.UUID]int{}}
	r.stopped, r.stop = context.WithCancel(context.Background())
	return r
}

// After lists up to 256 events of a company after a number. Numbers have the order of acceptance
// and no gaps, so no event is inserted later between two events that were read. The error is
// ErrAhead when after exceeds the last number.
func (r *Reader) After(ctx context.Context, company uuid.UUID, after int64) (Page, error) {
	p := partition.Of(company)
	reply, err := afterScript.Run(ctx, r.client, queues.Keys(p), partition.Prefix(p), company.String(), after).Slice()
	if err != nil {
		return Page{}, fmt.Errorf("%w: read events by number: %w", events.ErrUnavailable, err)
	}
	if len(reply) < 2 || (len(reply)-2)%6 != 0 {
		return Page{}, fmt.Errorf("%w: read events by number: unexpected reply", events.ErrUnavailable)
	}
	last, _ := reply[0].(int64)
	through, _ := reply[1].(int64)
	page := Page{Through: through, Last: last}
	if after > last {
		return page, fmt.Errorf("%w: the last is %d", ErrAhead, last)
	}
	for part := range slices.Chunk(reply[2:], 6) {
		page.Events = append(page.Events, readBlock(company, part)...)
	}
	page.Events = slices.DeleteFunc(page.Events, func(e Event) bool { return e.Sequence <= after })
	slices.SortFunc(page.Events, func(a, b Event) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return page, nil
}

// readBlock reads one block of the reply of after.lua. It leaves out damaged entries.
func readBlock(company uuid.UUID, part []any) []Event {
	number, _ := part[0].(int64)
	at, _ := part[1].(string)
	packed, _ := part[2].(string)
	ids, _ := part[3].([]any)
	headers, _ := part[4].([]any)
	lengths, _ := part[5].([]any)
	base, _ := strconv.ParseFloat(at, 64)
	found := readStubs(company, number*blockSize, int64(base), packed)
	for i := range min(len(ids), len(headers), len(lengths)) {
		id, _ := ids[i].(string)
		header, _ := headers[i].(string)
		length, _ := lengths[i].(int64)
		ref := events.Ref{Company: company, ID: id}
		head, err := layout.ParseHead(ref, header)
		if err != nil || head.State == events.Compacted || head.Sequence/blockSize != number {
			continue
		}
		found = append(found, Event{Ref: ref, Sequence: head.Sequence, AcceptedAt: head.AcceptedAt, Bytes: int(length)})
	}
	return found
}

// readStubs reads the stubs of the compacted events of a block; see lua/stub.lua of package
// layout.
func readStubs(company uuid.UUID, first, base int64, packed string) (found []Event) {
	kind := ""
	for packed != "" {
		var text, id string
		var ok bool
		within := int64(packed[0])
		if text, packed, ok = cutLength(packed[1:]); !ok {
			return found
		}
		if id, packed, ok = cutID(packed); !ok {
			return found
		}
		fields := strings.Split(text, " ")
		if len(fields) != 3 {
			return found
		}
		accepted, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return found
		}
		timestamp, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return found
		}
		if fields[2] != "" {
			kind = fields[2]
		}
		accepted += base
		found = append(found, Event{
			Ref: events.Ref{Company: company, ID: id}, Sequence: first + within, Compacted: true, Type: kind,
			AcceptedAt: time.UnixMilli(accepted).UTC(), Timestamp: time.UnixMilli(accepted + timestamp).UTC(),
		})
	}
	return found
}

func cutLength(packed string) (text, rest string, ok bool) {
	if packed == "" || len(packed) <= int(packed[0]) {
		return "", "", false
	}
	n := 1 + int(packed[0])
	return packed[1:n], packed[n:], true
}

func cutID(packed string) (id, rest string, ok bool) {
	const uuidBytes = 16
	if packed == "" || packed[0] != 0 {
		return cutLength(packed)
	}
	if len(packed) <= uuidBytes {
		return "", "", false
	}
	return uuid.UUID([]byte(packed[1 : 1+uuidBytes])).String(), packed[1+uuidBytes:], true
}

// lastNumber is the number of the company's last event, 0 when it never had one.
func (r *Reader) lastNumber(ctx context.Context, company uuid.UUID) (int64, error) {
	n, err := r.client.HGet(ctx, layout.StateKey(company), "seq").Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("%w: read the last number: %w", events.ErrUnavailable, err)
	}
	return n, nil
}
