package query

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/keys"
	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
)

//go:embed lua/page.lua
var pageSource string

var pageScript = redis.NewScript(pageSource)

// Filter selects deliveries. Fields combine with AND, the values of one field with OR. Its
// JSON form, stored with retry jobs, leaves out company, cursor and size.
type Filter struct {
	Company      *uuid.UUID        `json:"-"`                    // nil: all companies, one after the other
	Subscriber   *uuid.UUID        `json:"subscriber,omitempty"` // needs Company
	EventTypes   []string          `json:"types,omitempty"`      // empty: any
	Statuses     []delivery.Status `json:"statuses,omitempty"`   // empty: any
	ErrorClasses []string          `json:"errors,omitempty"`     // of the last attempt; empty: any
	CodeFrom     int               `json:"codeFrom,omitzero"`    // the lowest status code of the last attempt; 0: any, or no answer
	CodeTo       int               `json:"codeTo,omitzero"`      // the highest; 0: any, or no answer
	From         *time.Time        `json:"from,omitempty"`       // of CreatedAt, inclusive
	To           *time.Time        `json:"to,omitempty"`         // the same
	Cursor       string            `json:"-"`                    // Page.Next of the page before
	Size         int               `json:"-"`                    // at most 500, default 20
}

// Page is a part of a list, newest first within a company. Next is
// empty at the end; while it is not, a page may be short, even empty, since one
// call reads a bounded number of deliveries.
type Page struct {
	Items []delivery.Delivery
	Next  string
}

const (
	defaultPage = 20
	maxPage     = 500
	maxExamined = 1000 // index entries that one page reads; perEntry deliveries of an event cost one more
	examineStep = 100
	perEntry    = 8    // deliveries that cost as much as an index entry
	maxLoaded   = 1000 // deliveries that are loaded at once; the deliveries of one event may be more
)

// position is where a page ended.
type position struct {
	Company uuid.UUID `json:"c"`
	Score   float64   `json:"s"`
	Member  string    `json:"m"`
	After   string    `json:"a,omitempty"` // the last subscriber seen of the event Member
}

const (
	listName = "deliveries"
	walkName = "deliveries of a subscriber"
)

// key identifies the filter in cursors.
func (f *Filter) key() string {
	return fmt.Sprint(f.Company, f.Subscriber, f.EventTypes, f.Statuses, f.ErrorClasses, f.CodeFrom, f.CodeTo, f.From, f.To)
}

// matches reports whether the filter lets a delivery of its company through.
func (f *Filter) matches(d *delivery.Delivery) bool {
	last := d.LastAttempt()
	return (f.Subscriber == nil || d.Subscriber == *f.Subscriber) &&
		isAny(f.EventTypes, d.EventType) && isAny(f.Statuses, d.Status) && isAny(f.ErrorClasses, last.Error) &&
		last.StatusCode >= f.CodeFrom && (f.CodeTo == 0 || last.StatusCode > 0 && last.StatusCode <= f.CodeTo) &&
		(f.From == nil || !time.UnixMilli(d.Created).Before(*f.From)) &&
		(f.To == nil || !time.UnixMilli(d.Created).After(*f.To))
}

// isAny reports whether asked is empty or has the value.
func isAny[T comparable](asked []T, value T) bool {
	return len(asked) == 0 || slices.Contains(asked, value)
}

// only reports whether the filter asks for statuses, and holds is true for all of them.
func (f *Filter) only(holds func(delivery.Status) bool) bool {
	return len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, func(s delivery.Status) bool { return !holds(s) })
}

func isDead(s delivery.Status) bool { return s == delivery.StatusDead }

// List reads one page of deliveries, newest first; see Page for how pages end.
// cursor.ErrBad when the cursor is not of this list.
func (r *Reader) List(ctx context.Context, f Filter) (Page, error) {
	at := position{}
	if err := cursor.Decode(f.Cursor, listName, f.key(), &at); err != nil {
		return Page{}, err
	}
	if f.Cursor != "" && f.Company != nil && at.Company != *f.Company {
		return Page{}, cursor.ErrBad
	}
	if f.Size <= 0 {
		f.Size = defaultPage
	}
	l := &lister{reader: r, filter: f, size: min(f.Size, maxPage)}
	if f.Company != nil {
		at.Company = *f.Company
		err := l.company(ctx, at)
		return l.page, err
	}
	err := l.companies(ctx, at)
	return l.page, err
}

// lister collects one page.
type lister struct {
	reader   *Reader
	filter   Filter
	size     int
	examined int
	page     Page
}

func (l *lister) full() bool { return len(l.page.Items) >= l.size || l.examined >= maxExamined }

// companies goes on through all companies from where a page ended, by partition
// and then by id.
func (l *lister) companies(ctx context.Context, at position) error {
	first := 0
	if at.Company != uuid.Nil {
		first = partition.Of(at.Company)
	}
	for p := first; p < partition.Count; p++ {
		ids, err := history.Companies(ctx, l.reader.client, p, 0)
		if err != nil {
			return err
		}
		for _, id := range ids {
			here := position{Company: id}
			switch c := strings.Compare(id.String(), at.Company.String()); {
			case p == first && c < 0:
				continue
			case c == 0:
				here = at
			}
			if l.full() {
				l.page.Next = cursor.Encode(listName, l.filter.key(), here)
				return nil
			}
			l.examined++
			if err := l.company(ctx, here); err != nil || l.page.Next != "" {
				return err
			}
		}
	}
	return nil
}

// company goes on through one company's deliveries from where a page ended.
func (l *lister) company(ctx context.Context, at position) error {
	key, byEvent := l.index(at.Company)
	for {
		entries, err := l.reader.entries(ctx, key, at, l.highest(), examineStep)
		if err != nil || len(entries) == 0 {
			return err
		}
		if byEvent {
			counts, err := l.reader.counts(ctx, refsOf(at.Company, entries))
			if err != nil {
				return err
			}
			entries = entries[:fitting(counts)]
		}
		groups, err := l.reader.read(ctx, at.Company, l.filter.Subscriber, entries, byEvent)
		if err != nil {
			return err
		}
		for i, e := range entries {
			if l.filter.From != nil && e.score < float64(l.filter.From.UnixMilli()) {
				return nil
			}
			after := ""
			if e.member == at.Member {
				after = at.After
			}
			at = position{Company: at.Company, Score: e.score, Member: e.member}
			if l.add(groups[i], after, at) {
				return nil
			}
		}
		at.After = ""
	}
}

// add appends the deliveries that match the filter, and reports whether the page is full.
func (l *lister) add(group []delivery.Delivery, after string, at position) bool {
	l.examined += 1 + len(group)/perEntry
	for i, d := range group {
		if d.Subscriber.String() <= after || !l.filter.matches(&d) {
			continue
		}
		l.page.Items = append(l.page.Items, d)
		if len(l.page.Items) >= l.size {
			if i < len(group)-1 {
				at.After = d.Subscriber.String()
			}
			break
		}
	}
	if !l.full() {
		return false
	}
	l.page.Next = cursor.Encode(listName, l.filter.key(), at)
	return true
}

// index is the sorted set that serves the filter in a company. byEvent: its
// members are events, each with the deliveries of all subscribers.
func (l *lister) index(company uuid.UUID) (key string, byEvent bool) {
	sub, dead, live := l.filter.Subscriber, l.filter.only(isDead), l.filter.only(delivery.Status.Live)
	switch {
	case sub != nil && dead:
		return keys.DeadOfSubscriber(company, *sub), false
	case sub != nil && live:
		return keys.LiveOfSubscriber(company, *sub), false
	case sub != nil:
		return layout.OfSubscriberKey(company, *sub), false
	case dead:
		return keys.DeadOfCompany(company), false
	case live:
		return keys.LiveOfCompany(company), false
	default:
		return layout.IndexKey(company), true
	}
}

// highest is the score at which to start. Dead letters are indexed by the time of death, so
// the filter's range of creation times does not limit their score.
func (l *lister) highest() string {
	if l.filter.To == nil || l.filter.only(isDead) {
		return "+inf"
	}
	return strconv.FormatInt(l.filter.To.UnixMilli(), 10) + ".9999" // the whole millisecond
}

// entry is a member of an index.
type entry struct {
	member string
	score  float64 // ms; of an event with a fraction, see layout.IndexKey
}

func (r *Reader) entries(ctx context.Context, key string, at position, highest string, n int) ([]entry, error) {
	again := "0"
	if at.After != "" {
		again = "1"
	}
	flat, err := pageScript.Run(ctx, r.client, []string{key}, at.Score, at.Member, again, highest, n).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	out := make([]entry, 0, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		score, err := strconv.ParseFloat(flat[i+1], 64)
		if err != nil {
			return nil, fmt.Errorf("list deliveries: %w", err)
		}
		out = append(out, entry{member: flat[i], score: score})
	}
	return out, nil
}

// fitting is how many of the first events may be loaded together, by their numbers of
// deliveries; at least one.
func fitting(counts []int64) int {
	sum := int64(0)
	for i, count := range counts {
		if sum += count; i > 0 && sum > maxLoaded {
			return i
		}
	}
	return len(counts)
}

// counts is about how many deliveries each of the events has.
func (r *Reader) counts(ctx context.Context, refs []events.Ref) ([]int64, error) {
	pipe := r.client.Pipeline()
	lengths := make([]*redis.IntCmd, len(refs))
	for i, r := range refs {
		lengths[i] = pipe.HLen(ctx, keys.Deliveries(r))
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("count deliveries: %w", err)
	}
	counts := make([]int64, len(refs))
	for i, length := range lengths {
		counts[i] = length.Val()
	}
	return counts, nil
}

func refsOf(company uuid.UUID, entries []entry) []events.Ref {
	refs := make([]events.Ref, len(entries))
	for i, e := range entries {
		refs[i] = events.Ref{Company: company, ID: e.member}
	}
	return refs
}

// read loads the deliveries behind index entries, by subscriber within each.
func (r *Reader) read(ctx context.Context, company uuid.UUID, sub *uuid.UUID, entries []entry, byEvent bool) ([][]delivery.Delivery, error) {
	if byEvent {
		groups, _, err := r.ofEvents(ctx, refsOf(company, entries))
		return groups, err
	}
	refs := make([]delivery.Ref, len(entries))
	for i, e := range entries {
		id, of, ok := strings.Cut(e.member, "/")
		refs[i] = delivery.Ref{Ref: events.Ref{Company: company, ID: id}}
		if !ok {
			refs[i].Subscriber = *sub
			continue
		}
		parsed, err := uuid.Parse(of)
		if err != nil {
			return nil, fmt.Errorf("list deliveries: %w", err)
		}
		refs[i].Subscriber = parsed
	}
	records, err := r.Get(ctx, refs)
	if err != nil {
		return nil, err
	}
	out := make([][]delivery.Delivery, len(entries))
	for i, rec := range records {
		if rec != nil {
			out[i] = []delivery.Delivery{{Ref: refs[i], Record: *rec}}
		}
	}
	return out, nil
}

// Get reads deliveries in one round trip; nil stands for one that is not kept, or
// is damaged. A live one with an attempt under way is DELIVERING, and one whose
// subscriber is paused has ReasonPaused.
func (r *Reader) Get(ctx context.Context, refs []delivery.Ref) ([]*delivery.Record, error) {
	pipe := r.client.Pipeline()
	records := make([]*redis.StringCmd, len(refs))
	states := make([]waiting, len(refs))
	for i, r := range refs {
		records[i] = pipe.HGet(ctx, keys.Deliveries(r.Ref), r.Subscriber.String())
		states[i] = askWaiting(ctx, pipe, r)
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	out := make([]*delivery.Record, len(refs))
	for i, c := range records {
		text, err := c.Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read deliveries: %w", err)
		}
		if rec, err := delivery.Decode(text); err == nil { // else it is quarantined when it is claimed
			states[i].show(&rec.Status, &rec.Reason)
			out[i] = rec
		}
	}
	return out, nil
}

// Kept reports which deliveries have a record that is not damaged, in one round trip.
func (r *Reader) Kept(ctx context.Context, refs []delivery.Ref) ([]bool, error) {
	pipe := r.client.Pipeline()
	records := make([]*redis.StringCmd, len(refs))
	for i, r := range refs {
		records[i] = pipe.HGet(ctx, keys.Deliveries(r.Ref), r.Subscriber.String())
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("look for deliveries: %w", err)
	}
	out := make([]bool, len(refs))
	for i, c := range records {
		text, err := c.Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("look for deliveries: %w", err)
		}
		if err == nil {
			_, err = delivery.Decode(text)
		}
		out[i] = err == nil
	}
	return out, nil
}

// waiting is the state of a live delivery in its endpoint queue, which its record does not
// contain.
type waiting struct{ busy, paused *redis.BoolCmd }

func askWaiting(ctx context.Context, pipe redis.Pipeliner, r delivery.Ref) waiting {
	return waiting{
		busy:   pipe.HExists(ctx, queues.InFlightKey(r.Company, r.Subscriber), r.ID),
		paused: pipe.HExists(ctx, queues.EndpointKey(r.Company, r.Subscriber), "paused"),
	}
}

// show corrects status and reason of a live delivery.
func (w waiting) show(status *delivery.Status, reason *string) {
	switch {
	case !status.Live():
	case w.busy.Val():
		*status = delivery.StatusDelivering
	case w.paused.Val() && *reason != delivery.ReasonSubscriberDisabled:
		*reason = delivery.ReasonPaused
	}
}

// ofEvents reads all deliveries of events, by subscriber. held says which events matched a
// disabled subscriber.
func (r *Reader) ofEvents(ctx context.Context, refs []events.Ref) (groups [][]delivery.Delivery, held []bool, err error) {
	pipe := r.client.Pipeline()
	cmds := make([]*redis.MapStringStringCmd, len(refs))
	for i, r := range refs {
		cmds[i] = pipe.HGetAll(ctx, keys.Deliveries(r))
	}
	if pipe.Len() == 0 {
		return nil, nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, fmt.Errorf("read deliveries: %w", err)
	}
	groups, held = make([][]delivery.Delivery, len(refs)), make([]bool, len(refs))
	var live []*delivery.Delivery
	for i, r := range refs {
		groups[i] = deliveriesOf(r, cmds[i].Val())
		_, held[i] = cmds[i].Val()[keys.HeldMark]
		for j := range groups[i] {
			if groups[i][j].Status.Live() {
				live = append(live, &groups[i][j])
			}
		}
	}
	return groups, held, r.showWaiting(ctx, live)
}

// showWaiting sets status and reason of live deliveries from their endpoint queues.
func (r *Reader) showWaiting(ctx context.Context, live []*delivery.Delivery) error {
	if len(live) == 0 {
		return nil
	}
	pipe := r.client.Pipeline()
	states := make([]waiting, len(live))
	for i, d := range live {
		states[i] = askWaiting(ctx, pipe, d.Ref)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("read deliveries in flight: %w", err)
	}
	for i, d := range live {
		states[i].show(&d.Status, &d.Reason)
	}
	return nil
}

// deliveriesOf decodes an event's deliveries hash. It skips damaged records.
func deliveriesOf(r events.Ref, hash map[string]string) []delivery.Delivery {
	all := make([]delivery.Delivery, 0, len(hash))
	for field, text := range hash {
		id, err := uuid.Parse(field)
		if err != nil {
			continue // a mark of the event's, see keys.go
		}
		rec, err := delivery.Decode(text)
		if err != nil {
			continue
		}
		all = append(all, delivery.Delivery{Ref: delivery.Ref{Ref: r, Subscriber: id}, Record: *rec})
	}
	slices.SortFunc(all, func(a, b delivery.Delivery) int {
		return strings.Compare(a.Subscriber.String(), b.Subscriber.String())
	})
	return all
}

// Index names one of a subscriber's lists of deliveries.
type Index int

// The indexes of a subscriber.
const (
	All  Index = iota // every delivery that is kept, by creation
	Live              // those with attempts ahead, by creation
	Dead              // the dead letters, by death
)

// Walk reads up to n deliveries of one of a subscriber's indexes, newest first.
// after is the next of the step before, "" to start; next is "" when there are
// no more. A nil record is one that is not kept any more.
func (r *Reader) Walk(ctx context.Context, company, subscriber uuid.UUID, index Index, after string, n int) (refs []delivery.Ref, records []*delivery.Record, next string, err error) {
	at := position{Company: company}
	walked := fmt.Sprint(company, subscriber, index)
	if err := cursor.Decode(after, walkName, walked, &at); err != nil {
		return nil, nil, "", err
	}
	key := [...]func(c, s uuid.UUID) string{All: layout.OfSubscriberKey, Live: keys.LiveOfSubscriber, Dead: keys.DeadOfSubscriber}[index](company, subscriber)
	entries, err := r.entries(ctx, key, at, "+inf", n)
	if err != nil || len(entries) == 0 {
		return nil, nil, "", err
	}
	refs = make([]delivery.Ref, len(entries))
	for i, e := range entries {
		refs[i] = delivery.Ref{Ref: events.Ref{Company: company, ID: e.member}, Subscriber: subscriber}
	}
	if records, err = r.Get(ctx, refs); err != nil {
		return nil, nil, "", err
	}
	last := entries[len(entries)-1]
	next = cursor.Encode(walkName, walked, position{Company: company, Score: last.score, Member: last.member})
	return refs, records, next, nil
}
