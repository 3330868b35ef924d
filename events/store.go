package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/syntax"
	"spendhook/internal/tracing"
)

var (
	// ErrNotFound means that no such event is kept: never accepted, or past retention.
	ErrNotFound = errors.New("event not found")
	// ErrCompacted means that an event's payload is not kept any more.
	ErrCompacted = errors.New("the event's payload is not kept any more")
	// ErrUnavailable means that Redis did not answer, or not in time. What was
	// asked may or may not have happened; asking again is safe.
	ErrUnavailable = errors.New("event store unavailable")
)

// grace is how much longer than retention a key lives. An id may be sent
// again until its timestamp, at most maxFuture ahead of the accept, is older
// than retention; the rest is for clocks that disagree.
const (
	grace     = 10 * time.Minute
	maxFuture = 5 * time.Minute
)

// A company's events are accepted in the order of time, so after one that was accepted
// too late by a wrong clock the others are too, until that time. maxLead bounds it.
const (
	maxLead     = 24 * time.Hour
	endlessLead = 100 * 365 * 24 * time.Hour
)

// State is where an event stands.
type State byte

// The states of an event.
const (
	Ready     State = 'R' // waits for its subscribers to be matched, or that is under way
	Matched   State = 'M' // every matching subscriber has a delivery, some are open
	Settled   State = 'S' // all its deliveries have ended
	Compacted State = 'C' // settled, and only its digest is kept
)

// Stored is an accepted event with the exact bytes that are signed and sent. Of
// a compacted one the Event has only id and company, and Body is nil.
type Stored struct {
	Event
	State      State
	AcceptedAt time.Time
	Sequence   int64 // its number in the company, from 1
	Body       []byte
}

// Ref names the event.
func (s *Stored) Ref() Ref { return Ref{Company: s.CompanyUUID, ID: s.ID} }

// Memory decides how many bytes of new events a Redis server may take. It is used
// concurrently.
type Memory interface {
	// Reserve takes up to n bytes of what may be admitted to a server, as
	// partition.Shard names it, and returns how many, and how many were free before.
	// giveBack returns what was not used.
	Reserve(ctx context.Context, shard string, n int64) (reserved, free int64, giveBack func(bytes int64))
}

// endless is a Memory without a limit.
type endless struct{}

// Reserve takes all that is asked for.
func (endless) Reserve(_ context.Context, _ string, n int64) (reserved, free int64, giveBack func(int64)) {
	return n, math.MaxInt64, func(int64) {}
}

// StoreOptions are what a Store needs.
type StoreOptions struct {
	Client    redis.UniversalClient
	Retention time.Duration // how long ids are remembered; positive
	Backlog   int           // pending events a company may have; default 1,000,000
	Memory    Memory        // nil: no limit

	// Operations is a company that hears of the operational events of all others;
	// the zero UUID is none.
	Operations uuid.UUID

	// Now is the clock. The real one, with nil, is believed to be ahead of Redis's by
	// maxLead at most.
	Now func() time.Time
}

// Store keeps events in Redis. It is safe for concurrent use; every error of
// Redis is returned wrapping ErrUnavailable.
type Store struct {
	client     redis.UniversalClient
	retention  time.Duration
	backlog    atomic.Int64
	memory     Memory
	operations uuid.UUID
	now        func() time.Time
	lead       time.Duration // that now may be ahead of Redis's clock
}

// NewStore returns a Store on the client, which it does not close.
func NewStore(o StoreOptions) *Store {
	lead := endlessLead
	if o.Now == nil {
		o.Now, lead = time.Now, maxLead //nolint:forbidigo // the nil default
	}
	if o.Backlog <= 0 {
		o.Backlog = 1_000_000
	}
	if o.Memory == nil {
		o.Memory = endless{}
	}
	s := &Store{
		client: o.Client, retention: o.Retention, memory: o.Memory, operations: o.Operations,
		now: o.Now, lead: lead,
	}
	s.SetBacklog(o.Backlog)
	return s
}

// SetBacklog replaces StoreOptions.Backlog, also while events are accepted.
func (s *Store) SetBacklog(n int) { s.backlog.Store(int64(n)) }

// Get reads one event, or ErrNotFound. What cannot be read is another error.
func (s *Store) Get(ctx context.Context, ref Ref) (Stored, error) {
	raw, err := s.client.Get(ctx, EventKey(ref)).Result()
	if errors.Is(err, redis.Nil) {
		return Stored{}, ErrNotFound
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Stored{}, fmt.Errorf("event %s: %w", ref, errStored)
	}
	if err != nil {
		return Stored{}, unavailable("read event", err)
	}
	stored, err := ParseStored(ref, raw)
	if err != nil {
		return Stored{}, err
	}
	return *stored, nil
}

// sizes are the bytes that reading each of the events takes; 0 for one that is not
// there or is no event.
func (s *Store) sizes(ctx context.Context, refs []Ref) ([]int, error) {
	pipe := s.client.Pipeline()
	lengths := make([]*redis.IntCmd, len(refs))
	for i, ref := range refs {
		lengths[i] = pipe.StrLen(ctx, EventKey(ref))
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	_, _ = pipe.Exec(ctx) // each command tells its own error
	sizes := make([]int, len(refs))
	for i, length := range lengths {
		n, err := length.Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, unavailable("measure events", err)
		}
		sizes[i] = int(n)
	}
	return sizes, nil
}

// getBatch bounds one pipeline of reads.
const getBatch = 500

// GetMany reads events in the order of refs; those not found are nil, and so are
// those that cannot be read, so that one damaged event fails no list.
func (s *Store) GetMany(ctx context.Context, refs []Ref) ([]*Stored, error) {
	all := make([]*Stored, 0, len(refs))
	for batch := range slices.Chunk(refs, getBatch) {
		found, err := s.getBatch(ctx, batch)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s *Store) getBatch(ctx context.Context, refs []Ref) ([]*Stored, error) {
	pipe := s.client.Pipeline()
	gets := make([]*redis.StringCmd, len(refs))
	for i, ref := range refs {
		gets[i] = pipe.Get(ctx, EventKey(ref))
	}
	_, _ = pipe.Exec(ctx) // each command tells its own error
	found := make([]*Stored, len(refs))
	for i, get := range gets {
		raw, err := get.Result()
		if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue
		}
		if err != nil {
			return nil, unavailable("read events", err)
		}
		if found[i], err = ParseStored(refs[i], raw); err != nil {
			found[i] = nil
		}
	}
	return found, nil
}

// headLen is how much of what is stored tells an event's head: the header, and the type
// behind it.
const headLen = headerLen + len(`"event":"",`) + syntax.MaxEventType

// Heads reads events in the order of refs without what is long in them: state, time of
// acceptance, sequence, id, company and type are set. Those not found are nil, and so are
// those that cannot be read; a compacted event has no type.
func (s *Store) Heads(ctx context.Context, refs []Ref) ([]*Stored, error) {
	pipe := s.client.Pipeline()
	gets := make([]*redis.StringCmd, len(refs))
	for i, ref := range refs {
		gets[i] = pipe.GetRange(ctx, EventKey(ref), 0, int64(headLen)-1)
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	_, _ = pipe.Exec(ctx) // each command tells its own error
	found := make([]*Stored, len(refs))
	for i, get := range gets {
		raw, err := get.Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, unavailable("read heads of events", err)
		}
		found[i] = parseHead(refs[i], raw)
	}
	return found, nil
}

// parseHead reads the first headLen bytes of what is stored, or returns nil.
func parseHead(ref Ref, raw string) *Stored {
	stored, err := parseHeader(raw)
	if err != nil {
		return nil
	}
	stored.ID, stored.CompanyUUID = ref.ID, ref.Company
	if stored.State == Compacted {
		return stored
	}
	rest, begins := strings.CutPrefix(raw[headerLen:], `"event":"`)
	name, _, ends := strings.Cut(rest, `"`)
	if !begins || !ends {
		return nil
	}
	stored.Type = name
	return stored
}

// headerLen is the length of what stands before the body; see lua/lib.lua.
const headerLen = 1 + 13 + 8 + 10

var errStored = errors.New("stored event has no header")

// ParseStored reads the value of the EventKey of ref.
func ParseStored(ref Ref, raw string) (*Stored, error) {
	stored, err := parseStored(ref, raw)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", ref, err)
	}
	return stored, nil
}

func parseStored(ref Ref, raw string) (*Stored, error) {
	stored, err := parseHeader(raw)
	if err != nil {
		return nil, err
	}
	if stored.State == Compacted {
		stored.ID, stored.CompanyUUID = ref.ID, ref.Company
		return stored, nil
	}
	body, trace, err := cutTrace(raw[headerLen:])
	if err != nil {
		return nil, err
	}
	stored.Body = []byte(bodyHead(ref) + body)
	stored.Event, err = ParseBody(stored.Body)
	stored.Trace = trace
	return stored, err
}

// traceMark ends what is kept of an event that was sent in a trace; a body ends with }.
const traceMark = 'T'

// cutTrace takes the trace off what is kept behind the header.
func cutTrace(kept string) (body string, trace tracing.Parent, err error) {
	n := len(kept) - tracing.Bytes - 1
	if n < 0 || kept[len(kept)-1] != traceMark {
		return kept, trace, nil
	}
	trace, err = tracing.ParseParent(kept[n : len(kept)-1])
	return kept[:n], trace, err
}

// parseHeader reads what stands before the body.
func parseHeader(raw string) (*Stored, error) {
	if len(raw) < headerLen {
		return nil, errStored
	}
	stored := &Stored{State: State(raw[0])}
	ms, err := strconv.ParseUint(raw[1:14], 10, 63)
	if err != nil {
		return nil, errStored
	}
	if stored.Sequence, err = strconv.ParseInt(raw[22:headerLen], 16, 64); err != nil {
		return nil, errStored
	}
	stored.AcceptedAt = time.UnixMilli(int64(ms)).UTC()
	switch stored.State {
	case Ready, Matched, Settled, Compacted:
		return stored, nil
	}
	return nil, errStored
}

// Every body begins with what its key says already: the id and the company are
// not kept twice.
func bodyHead(ref Ref) string {
	return `{"id":"` + ref.ID + `","companyUuid":"` + ref.Company.String() + `",`
}

// kept is what is kept of an event behind the header.
func (s *Stored) kept() []byte {
	body := keptBody(s.Ref(), s.Body)
	if s.Trace.IsZero() {
		return body
	}
	return append(s.Trace.AppendTo(append(make([]byte, 0, len(body)+tracing.Bytes+1), body...)), traceMark)
}

// keptBody is what is kept of a body.
func keptBody(ref Ref, body []byte) []byte {
	return bytes.TrimPrefix(body, []byte(bodyHead(ref)))
}

func unavailable(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}
