// Package operational writes operational events ("notices" in the code): events of the daemon about
// subscribers and deliveries. The script that makes a change also writes its notice. A summary
// replaces notices beyond a limit. The operations company gets copies.
package operational

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/notice.lua
	noticeLua string
	//go:embed lua/summary.lua
	summarySource string

	summaryScript = queues.Script(Lua()+summarySource, true)
)

// Lua is code for scripts of other packages that accept operational events: layout.AppendLua,
// and the function notice. Its argument is the result of Store.Encode.
func Lua() string { return layout.AppendLua() + noticeLua }

// The jobs that forward and summarise the operational events of a company. lua/notice.lua
// schedules the jobs, and has the same ids.
var (
	ForwardJob   = uuid.MustParse("00000000-0000-0000-0000-000000000001") // forward the Outbox
	SummariseJob = uuid.MustParse("00000000-0000-0000-0000-000000000002") // Summarise the Suppressed notices
)

// Event is an operational event about a subscriber. The script that makes the change also
// accepts the event, in one atomic step.
type Event struct {
	ID       string // derived from the change, so that a repeated change has the same id; events.OwnPrefix is added
	Type     string
	Company  uuid.UUID
	About    string // id of the event that it is about; "": ID
	At       time.Time
	Metadata map[string]any // companyUuid is added
}

// Options are what a Store needs.
type Options struct {
	Client    redis.UniversalClient
	Retention time.Duration // how long ids are remembered; positive

	// Operations is the company that gets copies of the operational events of all other
	// companies; the zero UUID: none.
	Operations uuid.UUID

	// Now is the clock; nil: the real clock, and Redis's for the times of acceptance.
	Now func() time.Time
}

// Store keeps the outboxes and the suppressed notices of companies. It is safe for concurrent use;
// errors of Redis wrap events.ErrUnavailable.
type Store struct {
	opts  Options
	clock func() time.Time // of acceptance; nil: Redis's
}

// New returns a Store on the client, which it does not close.
func New(o Options) *Store {
	s := &Store{}
	s.clock, o.Now = o.Now, clock.Or(o.Now)
	s.opts = o
	return s
}

// Encode encodes an event for a script that has Lua.
func (s *Store) Encode(n Event) (string, error) {
	about := map[string]any{"companyUuid": n.Company}
	maps.Copy(about, n.Metadata)
	metadata, err := json.Marshal(about)
	if err != nil {
		return "", fmt.Errorf("encode notice: %w", err)
	}
	e := events.Event{ID: events.OwnPrefix + n.ID, CompanyUUID: n.Company, Type: n.Type, Timestamp: n.At, Metadata: metadata}
	body, err := e.Body()
	if err != nil {
		return "", fmt.Errorf("encode notice: %w", err)
	}
	operations := '0'
	if s.opts.Operations != uuid.Nil && s.opts.Operations != n.Company {
		operations = '1'
	}
	if n.About == "" {
		n.About = e.ID
	}
	kept := layout.Encode(&events.Stored{Event: e, Body: body})
	return fmt.Sprintf("%d %c %s %s %s %s", s.opts.Retention.Milliseconds(), operations, n.Type, e.ID, n.About, kept), nil
}

// Operations is the company that gets copies of all operational events; the zero UUID when
// there is none.
func (s *Store) Operations() uuid.UUID { return s.opts.Operations }

// docs/redis.md lists type, writer and time to live of each key.

// outboxKey is the sorted set of a company's notices to be copied to the operations company.
func outboxKey(company uuid.UUID) string { return partition.Key(company, "outbox:"+company.String()) }

// suppressedKey counts the notices of a company that were not written one by one.
func suppressedKey(company uuid.UUID) string { return partition.Key(company, "ns:"+company.String()) }

const outboxPage = 100

// Outgoing is a notice on its way to the operations company.
type Outgoing struct {
	Event events.Event // of the operations company; Err says why it cannot be read
	Err   error

	member string
}

// Outbox reads the oldest notices that are to be copied to the operations
// company, and whether there may be more.
func (s *Store) Outbox(ctx context.Context, company uuid.UUID) (out []Outgoing, more bool, err error) {
	members, err := s.opts.Client.ZRange(ctx, outboxKey(company), 0, outboxPage-1).Result()
	if err != nil {
		return nil, false, fmt.Errorf("%w: read outbox: %w", events.ErrUnavailable, err)
	}
	for _, m := range members {
		id, kept, _ := strings.Cut(m, " ")
		o := Outgoing{member: m}
		o.Event, o.Err = events.ParseBody(layout.Body(events.Ref{Company: s.opts.Operations, ID: id}, kept))
		out = append(out, o)
	}
	return out, len(members) == outboxPage, nil
}

// Sent removes notices from the outbox.
func (s *Store) Sent(ctx context.Context, company uuid.UUID, sent []Outgoing) error {
	if len(sent) == 0 {
		return nil
	}
	members := make([]string, len(sent))
	for i, o := range sent {
		members[i] = o.member
	}
	if err := s.opts.Client.ZRem(ctx, outboxKey(company), members).Err(); err != nil {
		return fmt.Errorf("%w: empty outbox: %w", events.ErrUnavailable, err)
	}
	return nil
}

// Suppressed counts the notices of one type about one subscriber that were not written because
// they exceeded the limit.
type Suppressed struct {
	Company, Subscriber uuid.UUID
	Type                string
	Count               int64
	First, Last         string    // event ids that the first and the last notice were about
	Due                 time.Time // when their summary is to be written, by Redis's clock
	Err                 error     // why the counts cannot be read

	key, value string
}

// suppressedField matches a field of suppressedKey, a line feed and its value.
var suppressedField = regexp.MustCompile(`^[co]/([0-9a-f-]{36})/([A-Z_]+)\n(\d{1,15}) (\d{1,15}) (\S+) (\S+)$`)

func readSuppressed(company uuid.UUID, key, value string) Suppressed {
	s := Suppressed{Company: company, key: key, value: value}
	parts := suppressedField.FindStringSubmatch(key + "\n" + value)
	if parts == nil {
		s.Err = fmt.Errorf("the count of suppressed notices %.100q is damaged: %.100q", key, value)
		return s
	}
	s.Subscriber, s.Err = uuid.Parse(parts[1])
	due, _ := strconv.ParseInt(parts[3], 10, 64) // 15 digits
	s.Count, _ = strconv.ParseInt(parts[4], 10, 64)
	s.Type, s.Due, s.First, s.Last = parts[2], time.UnixMilli(due), parts[5], parts[6]
	return s
}

// Suppressed lists the suppressed notices of a company.
func (s *Store) Suppressed(ctx context.Context, company uuid.UUID) ([]Suppressed, error) {
	hash, err := s.opts.Client.HGetAll(ctx, suppressedKey(company)).Result()
	if err != nil {
		return nil, fmt.Errorf("%w: read suppressed notices: %w", events.ErrUnavailable, err)
	}
	all := make([]Suppressed, 0, len(hash))
	for key, value := range hash {
		all = append(all, readSuppressed(company, key, value))
	}
	return all, nil
}

// Summarise writes one event for suppressed notices, or removes them if n.Err is set. It reports whether the company's
// partition needs a wake-up. If more were suppressed since n was read, it does nothing but report this: read them again.
func (s *Store) Summarise(ctx context.Context, n Suppressed) (wake, more bool, err error) {
	now, text := s.opts.Now(), ""
	if n.Err == nil {
		text, err = s.Encode(Event{
			ID:   "summary-" + n.key[:1] + "-" + strings.ToLower(n.Type) + "-" + n.Subscriber.String() + "-" + strconv.FormatInt(n.Due.UnixMilli(), 10),
			Type: n.Type, Company: n.Company, At: now,
			Metadata: map[string]any{
				"subscriberUuid": n.Subscriber, "suppressed": n.Count, "firstEventId": n.First, "lastEventId": n.Last,
			},
		})
		if err != nil {
			return false, false, err
		}
	}
	p := partition.Of(n.Company)
	result, err := summaryScript.Run(ctx, s.opts.Client, queues.Keys(p),
		partition.Prefix(p), n.Company.String(), n.key, n.value, text, script.Now(s.clock)).Int()
	if err != nil {
		return false, false, fmt.Errorf("%w: write summary: %w", events.ErrUnavailable, err)
	}
	return result > 0, result < 0, nil
}
