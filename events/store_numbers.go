package events

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

var (
	//go:embed lua/feed.lua
	feedSource string
	//go:embed lua/stub.lua
	stubLua string

	feedScript = workqueue.Script(Lua()+feedSource, true)
)

// StubLua is how scripts of other packages keep stubs of the events that they compact;
// it needs Lua.
func StubLua() string { return stubLua }

// blockSize is how many numbers a block has; see lua/lib.lua.
const blockSize = 128

// ErrAhead means that a company has no event with so high a number.
var ErrAhead = errors.New("the company has no event with this number yet")

// Numbered is an event as far as its number tells it. Of a compacted one Type and
// Timestamp are known too.
type Numbered struct {
	Ref        Ref
	Sequence   int64
	AcceptedAt time.Time
	Bytes      int // that its value takes
	Compacted  bool
	Type       string
	Timestamp  time.Time
}

// Following is a part of the events of a company, in the order of their numbers.
// Those with a number up to Through that are not among Events are not kept any more.
type Following struct {
	Events  []Numbered
	Through int64
	Last    int64 // the number of the company's last event
}

// Following reads which events of a company come after a number, at most 256. Numbers
// are given in the order of acceptance, without gaps, so what follows a number that
// was read is never filled in later. ErrAhead when after is beyond the last event.
func (s *Store) Following(ctx context.Context, company uuid.UUID, after int64) (Following, error) {
	p := partition.Of(company)
	call := &script.Call{Script: feedScript, Keys: workqueue.Keys(p), Args: []any{partition.Prefix(p), company.String(), after}}
	if err := script.Run(ctx, s.client, nil, call); err != nil {
		return Following{}, unavailable("read events by number", err)
	}
	reply, _ := call.Reply().([]any)
	if len(reply) < 2 || (len(reply)-2)%6 != 0 {
		return Following{}, unavailable("read events by number", errReply)
	}
	last, _ := reply[0].(int64)
	through, _ := reply[1].(int64)
	f := Following{Through: through, Last: last}
	if after > last {
		return f, fmt.Errorf("%w: the last is %d", ErrAhead, last)
	}
	for part := range slices.Chunk(reply[2:], 6) {
		f.Events = append(f.Events, readBlock(company, part)...)
	}
	f.Events = slices.DeleteFunc(f.Events, func(n Numbered) bool { return n.Sequence <= after })
	slices.SortFunc(f.Events, func(a, b Numbered) int { return int(a.Sequence - b.Sequence) })
	return f, nil
}

// readBlock reads one block of the reply of feed.lua. What is damaged is left out.
func readBlock(company uuid.UUID, part []any) []Numbered {
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
		ref := Ref{Company: company, ID: id}
		head, err := parseHeader(header)
		if err != nil || head.State == Compacted || head.Sequence/blockSize != number {
			continue
		}
		found = append(found, Numbered{Ref: ref, Sequence: head.Sequence, AcceptedAt: head.AcceptedAt, Bytes: int(length)})
	}
	return found
}

// readStubs reads what is left of the compacted events of a block; see lua/stub.lua.
func readStubs(company uuid.UUID, first, base int64, packed string) (found []Numbered) {
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
		found = append(found, Numbered{
			Ref: Ref{Company: company, ID: id}, Sequence: first + within, Compacted: true, Type: kind,
			AcceptedAt: time.UnixMilli(accepted).UTC(), Timestamp: time.UnixMilli(accepted + timestamp).UTC(),
		})
	}
	return found
}

// cutLength takes a text off that a byte with its length stands before.
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
func (s *Store) lastNumber(ctx context.Context, company uuid.UUID) (int64, error) {
	n, err := s.client.HGet(ctx, StateKey(company), "seq").Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, unavailable("read the last number", err)
	}
	return n, nil
}
