package events

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

var (
	//go:embed lua/append.lua
	appendLua string
	//go:embed lua/notice.lua
	noticeLua string
	//go:embed lua/summary.lua
	summarySource string

	summaryScript = workqueue.Script(NoticeLua()+summarySource, true)
)

// NoticeLua is how scripts of other packages accept operational events: Lua, and
// the function notice, which takes what Store.Notice returns.
func NoticeLua() string { return Lua() + appendLua + noticeLua }

// The jobs of a company that notices need; lua/notice.lua adds them to the work
// queue, and has the same ids.
var (
	ForwardJob   = uuid.MustParse("00000000-0000-0000-0000-000000000001") // pass the Outbox on
	SummariseJob = uuid.MustParse("00000000-0000-0000-0000-000000000002") // Summarise what is Suppressed
)

// Notice is an operational event about a subscriber. The script that makes the
// change it tells of accepts it, so that neither is there without the other.
type Notice struct {
	ID       string // says what happened: the same change has the same id
	Type     string
	Company  uuid.UUID
	About    string // an event id; "" is the ID
	At       time.Time
	Metadata map[string]any // companyUuid is added
}

// Notice encodes a notice for a script that has NoticeLua.
func (s *Store) Notice(n Notice) (string, error) {
	about := map[string]any{"companyUuid": n.Company}
	maps.Copy(about, n.Metadata)
	metadata, err := json.Marshal(about)
	if err != nil {
		return "", fmt.Errorf("encode notice: %w", err)
	}
	e := Event{ID: n.ID, CompanyUUID: n.Company, Type: n.Type, Timestamp: n.At, Metadata: metadata}
	body, err := e.Body()
	if err != nil {
		return "", fmt.Errorf("encode notice: %w", err)
	}
	operations := '0'
	if s.operations != uuid.Nil && s.operations != n.Company {
		operations = '1'
	}
	if n.About == "" {
		n.About = n.ID
	}
	kept := keptBody(Ref{Company: n.Company, ID: n.ID}, body)
	return fmt.Sprintf("%d %d %c %s %s %s %s", s.retention.Milliseconds(), s.lead.Milliseconds(), operations, n.Type, n.ID, n.About, kept), nil
}

// Operations is the company that hears of the operational events of all others;
// the zero UUID when there is none.
func (s *Store) Operations() uuid.UUID { return s.operations }

// outboxKey is the notices of a company that are to be copied to the operations
// company. Type: sorted set, "id body" by ms. Writer: notice.lua. TTL: none, it is
// bounded and empties.
func outboxKey(company uuid.UUID) string { return partition.Key(company, "outbox:"+company.String()) }

// suppressedKey counts the notices of a company that were not written one by one.
// Type: hash, see notice.lua. Writer: notice.lua, summary.lua. TTL: none, a field
// goes with its summary.
func suppressedKey(company uuid.UUID) string { return partition.Key(company, "ns:"+company.String()) }

// outboxPage is how many notices are passed on at a time.
const outboxPage = 100

// Outgoing is a notice on its way to the operations company.
type Outgoing struct {
	Event Event // of the operations company; Err says why it cannot be read
	Err   error

	member string
}

// Outbox reads the oldest notices that are to be copied to the operations
// company, and whether there are more.
func (s *Store) Outbox(ctx context.Context, company uuid.UUID) (out []Outgoing, more bool, err error) {
	members, err := s.client.ZRange(ctx, outboxKey(company), 0, outboxPage).Result()
	if err != nil {
		return nil, false, unavailable("read outbox", err)
	}
	if more = len(members) > outboxPage; more {
		members = members[:outboxPage]
	}
	for _, m := range members {
		id, kept, _ := strings.Cut(m, " ")
		o := Outgoing{member: m}
		o.Event, o.Err = ParseBody([]byte(bodyHead(Ref{Company: s.operations, ID: id}) + kept))
		out = append(out, o)
	}
	return out, more, nil
}

// Sent removes notices from the outbox.
func (s *Store) Sent(ctx context.Context, company uuid.UUID, sent []Outgoing) error {
	if len(sent) == 0 {
		return nil
	}
	members := make([]any, len(sent))
	for i, o := range sent {
		members[i] = o.member
	}
	if err := s.client.ZRem(ctx, outboxKey(company), members...).Err(); err != nil {
		return unavailable("empty outbox", err)
	}
	return nil
}

// Suppressed is notices of one type about one subscriber that were too many in a
// minute.
type Suppressed struct {
	Company, Subscriber uuid.UUID
	Type                string
	Count               int64
	First, Last         string    // what the first and the last were about: event ids
	Due                 time.Time // when their summary is to be written, by Redis's clock

	key, value string
}

var errSuppressed = errors.New("a count of suppressed notices is damaged")

// Suppressed lists what is suppressed in a company.
func (s *Store) Suppressed(ctx context.Context, company uuid.UUID) ([]Suppressed, error) {
	hash, err := s.client.HGetAll(ctx, suppressedKey(company)).Result()
	if err != nil {
		return nil, unavailable("read suppressed notices", err)
	}
	all := make([]Suppressed, 0, len(hash))
	for key, value := range hash {
		one := Suppressed{Company: company, key: key, value: value}
		names, parts := strings.Split(key, "/"), strings.Split(value, " ")
		if len(names) != 3 || len(parts) != 4 {
			return nil, errSuppressed
		}
		var due int64
		one.Subscriber, err = uuid.Parse(names[1])
		if err == nil {
			due, err = strconv.ParseInt(parts[0], 10, 64)
		}
		if err == nil {
			one.Count, err = strconv.ParseInt(parts[1], 10, 64)
		}
		if err != nil {
			return nil, errors.Join(errSuppressed, err)
		}
		one.Type, one.First, one.Last, one.Due = names[2], parts[2], parts[3], time.UnixMilli(due)
		all = append(all, one)
	}
	return all, nil
}

// Summarise writes one event for notices that were suppressed, unless more were
// since they were read. It reports whether the company's partition needs a wake-up.
func (s *Store) Summarise(ctx context.Context, n Suppressed) (wake bool, err error) {
	now := s.now()
	text, err := s.Notice(Notice{
		ID:   "summary-" + n.key[:1] + "-" + strings.ToLower(n.Type) + "-" + n.Subscriber.String() + "-" + strconv.FormatInt(n.Due.UnixMilli(), 10),
		Type: n.Type, Company: n.Company, At: now,
		Metadata: map[string]any{
			"subscriberUuid": n.Subscriber, "suppressed": n.Count, "firstEventId": n.First, "lastEventId": n.Last,
		},
	})
	if err != nil {
		return false, err
	}
	p := partition.Of(n.Company)
	call := &script.Call{Script: summaryScript, Keys: workqueue.Keys(p), Args: []any{
		partition.Prefix(p), n.Company.String(), n.key, n.value, text, fmt.Sprintf("%013d", now.UnixMilli()),
	}}
	if err := script.Run(ctx, s.client, nil, call); err != nil {
		return false, unavailable("write summary", err)
	}
	flag, _ := call.Reply().(int64)
	return flag == 1, nil
}
