package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
	"spendhook/internal/syntax"
	"spendhook/internal/timestamp"
)

// Filter selects deliveries. Fields combine with AND, the values of one field with OR. Its
// JSON form, stored with jobs, leaves out company, cursor and size.
type Filter struct {
	Company      *uuid.UUID        `json:"-"`                    // nil: all companies, one after the other
	Subscriber   *uuid.UUID        `json:"subscriber,omitempty"` // needs Company
	EventTypes   []string          `json:"types,omitempty"`      // patterns, any of which matches; empty: any
	Statuses     []delivery.Status `json:"statuses,omitempty"`   // empty: any
	ErrorClasses []string          `json:"errors,omitempty"`     // of the last attempt; empty: any
	CodeFrom     int               `json:"codeFrom,omitzero"`    // the lowest status code of the last attempt; 0: any, or no answer
	CodeTo       int               `json:"codeTo,omitzero"`      // the highest; 0: any, or no answer
	From         *time.Time        `json:"from,omitempty"`       // the earliest creation; nil: any
	To           *time.Time        `json:"to,omitempty"`         // the latest creation; nil: any
	Cursor       string            `json:"-"`                    // Page.Next of the page before
	Size         int               `json:"-"`                    // default 20
}

// Page is a part of a list, newest first within a company. Next is empty on the last page. Other
// pages may be short, even empty, because one call reads a bounded number of deliveries.
type Page struct {
	Items []delivery.Delivery
	Next  string
}

const (
	defaultPage = 20
	maxExamined = 1000 // index entries that one page reads
	examineStep = 100
	perEntry    = 8 // deliveries of an event that count as one more index entry
	// archiveBatch is how many events are read from the history at a time: their sizes are not known before.
	archiveBatch = 25
	maxLoaded    = 1000 // deliveries that are loaded at once; the deliveries of one event may be more
	companyWork  = 10   // index entries that a company counts as, if its index is read from an archive too
)

type position struct {
	history.Place

	Company uuid.UUID `json:"c"`
	After   string    `json:"a,omitempty"` // the last subscriber seen of the event at Place
}

const listName = "deliveries"

func (f *Filter) key() string {
	return fmt.Sprint(f.Company, f.Subscriber, f.EventTypes, f.Statuses, f.ErrorClasses, f.CodeFrom, f.CodeTo, f.From, f.To)
}

func (f *Filter) matches(d *delivery.Delivery) bool {
	last := d.LastAttempt()
	return (f.Subscriber == nil || d.Subscriber == *f.Subscriber) &&
		syntax.MatchesAnyEvent(f.EventTypes, d.EventType) && isAny(f.Statuses, d.Status) && isAny(f.ErrorClasses, last.Error) &&
		last.StatusCode >= f.CodeFrom && (f.CodeTo == 0 || last.StatusCode > 0 && last.StatusCode <= f.CodeTo) &&
		(f.From == nil || !time.UnixMilli(d.Created).Before(*f.From)) &&
		(f.To == nil || !time.UnixMilli(d.Created).After(*f.To))
}

func isAny[T comparable](asked []T, value T) bool {
	return len(asked) == 0 || slices.Contains(asked, value)
}

// only reports whether the filter names statuses, and holds is true for all of them.
func (f *Filter) only(holds func(delivery.Status) bool) bool {
	return len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, func(s delivery.Status) bool { return !holds(s) })
}

func isDead(s delivery.Status) bool { return s == delivery.StatusDead }

// List reads one page of deliveries, newest first; see Page for how pages end.
// cursor.ErrBad when the cursor is not of this list.
func (s *Store) List(ctx context.Context, f Filter) (Page, error) {
	at := position{}
	if err := cursor.Decode(f.Cursor, listName, f.key(), &at); err != nil {
		return Page{}, err
	}
	l := &lister{store: s, filter: f, size: cmp.Or(f.Size, defaultPage)}
	if f.Company != nil {
		at.Company = *f.Company
		err := l.company(ctx, at)
		return l.page, err
	}
	err := l.companies(ctx, at)
	return l.page, err
}

type lister struct {
	store    *Store
	filter   Filter
	size     int
	examined int
	page     Page
}

func (l *lister) full() bool { return len(l.page.Items) >= l.size || l.examined >= maxExamined }

func (l *lister) companies(ctx context.Context, at position) error {
	archive, work := l.archive(), 1
	if archive != nil {
		work = companyWork
	}
	for company, err := range history.Companies(ctx, l.store.client, archive, at.Company, 0) {
		if err != nil {
			return err
		}
		here := position{Company: company}
		if company == at.Company {
			here = at
		}
		if l.full() {
			l.page.Next = cursor.Encode(listName, l.filter.key(), here)
			return nil
		}
		l.examined += work
		if err := l.company(ctx, here); err != nil || l.page.Next != "" {
			return err
		}
	}
	return nil
}

func (l *lister) company(ctx context.Context, at position) error {
	span, byEvent := l.index(at.Company)
	at.Inclusive = at.After != ""
	for {
		entries, err := history.ReadIndex(ctx, l.store.client, l.archive(), span, at.Place, examineStep)
		if err != nil || len(entries) == 0 {
			return err
		}
		groups, err := l.store.read(ctx, at.Company, l.filter.Subscriber, entries, byEvent)
		if err != nil {
			return err
		}
		if l.archive() != nil {
			if err := l.dropFormer(ctx, span, entries, groups); err != nil {
				return err
			}
		}
		for i, group := range groups {
			after := ""
			if entries[i].ID == at.ID {
				after = at.After
			}
			at = position{Company: at.Company, Place: entries[i]}
			if l.add(group, after, at) {
				return nil
			}
		}
	}
}

// archive is the archive whose index is merged with that of Redis; nil for none. It has no live deliveries.
func (l *lister) archive() history.Archive {
	if l.filter.only(delivery.Status.Live) {
		return nil
	}
	return l.store.opts.Archive
}

// dropFormer empties the groups of places that are only in the archive's index and no longer right: those of an earlier
// event with the same id, and of an earlier death of a delivery that died again.
func (l *lister) dropFormer(ctx context.Context, span history.Span, entries []history.Place, groups [][]delivery.Delivery) error {
	deaths := make([]float64, len(groups))
	if span.Deaths {
		ids := make([]string, len(groups))
		for i := range ids {
			ids[i] = entries[i].ID
		}
		var err error
		if deaths, err = l.store.client.ZMScore(ctx, span.Index, ids...).Result(); err != nil {
			return fmt.Errorf("read times of death: %w", err)
		}
	}
	for i := range groups {
		at := entries[i].MS
		groups[i] = slices.DeleteFunc(groups[i], func(d delivery.Delivery) bool {
			if span.Deaths {
				return deaths[i] != 0 && deaths[i] != at || at < float64(d.Created)
			}
			return int64(at) != d.Created
		})
	}
	return nil
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

// index returns the part of a sorted set to read for the filter in a company. With byEvent the
// members of the set are events, each with the deliveries of all subscribers.
func (l *lister) index(company uuid.UUID) (span history.Span, byEvent bool) {
	sub, dead, live := l.filter.Subscriber, l.filter.only(isDead), l.filter.only(delivery.Status.Live)
	span = history.Span{High: timestamp.MaxMillis, Company: company, Subscriber: sub, Deaths: dead}
	if l.filter.From != nil {
		span.Low = l.filter.From.UnixMilli()
	}
	if l.filter.To != nil && !dead { // dead letters are indexed by the time of death, which may be later
		span.High = l.filter.To.UnixMilli()
	}
	switch {
	case dead:
		span.Index = indexKey(deadIndex, company, sub)
	case live:
		span.Index = indexKey(liveIndex, company, sub)
	case sub != nil:
		span.Index = layout.OfSubscriberKey(company, *sub)
	default:
		span.Index, byEvent = layout.IndexKey(company), true
	}
	return span, byEvent
}

// read reads the deliveries of the first entries, at least of one.
func (s *Store) read(ctx context.Context, company uuid.UUID, sub *uuid.UUID, entries []history.Place, byEvent bool) ([][]delivery.Delivery, error) {
	if byEvent {
		refs := make([]events.Ref, len(entries))
		for i, e := range entries {
			refs[i] = events.Ref{Company: company, ID: e.ID}
		}
		groups, _, err := s.ofEvents(ctx, refs)
		return groups, err
	}
	refs := make([]delivery.Ref, len(entries))
	for i, e := range entries {
		id, of, ok := strings.Cut(e.ID, "/")
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
	records, err := s.Get(ctx, refs)
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

// Get reads deliveries; nil for a delivery that neither Redis nor the Archive has, or that is damaged. A live delivery with an attempt
// under way is DELIVERING. If its subscriber is disabled or paused, its reason is
// ReasonSubscriberDisabled or ReasonPaused.
func (s *Store) Get(ctx context.Context, refs []delivery.Ref) ([]*delivery.Record, error) {
	records, err := s.Stored(ctx, refs)
	if err != nil {
		return nil, err
	}
	return records, s.showWaiting(ctx, refs, records)
}

// Stored reads the records of deliveries as they are stored; nil for a delivery that neither Redis nor the Archive has,
// or that is damaged.
func (s *Store) Stored(ctx context.Context, refs []delivery.Ref) ([]*delivery.Record, error) {
	fields, err := s.readFields(ctx, math.MaxInt32, refs, false)
	if err != nil {
		return nil, err
	}
	records := make([]*delivery.Record, len(refs))
	for i, found := range fields {
		if len(found) < 2 {
			continue
		}
		if rec, err := delivery.Decode(found[1]); err == nil { // else it is quarantined in its turn
			records[i] = rec
		}
	}
	return records, nil
}

// Dropped returns the events whose delivery to a subscriber was cancelled on request before an attempt had succeeded. That
// of a replay may be cancelled after one has. Only for archived events does it read the Archive.
func (s *Store) Dropped(ctx context.Context, subscriber uuid.UUID, list []events.Ref, archived bool) (dropped []events.Ref, err error) {
	refs := make([]delivery.Ref, len(list))
	for i, ref := range list {
		refs[i] = delivery.Ref{Ref: ref, Subscriber: subscriber}
	}
	if !archived {
		s = s.InRedis()
	}
	records, err := s.Stored(ctx, refs)
	for i, r := range records {
		if r != nil && r.Status == delivery.StatusCancelled && r.Reason == delivery.ReasonDropped &&
			!slices.ContainsFunc(r.Attempts, func(a attempt.Attempt) bool { return a.StatusCode/100 == 2 }) {
			dropped = append(dropped, list[i])
		}
	}
	return dropped, err
}

// readFields reads fields of deliveriesKey, name and value in turn, also of events that have the records in
// their own value, and of those that only the Archive has: for each ref those of its subscriber, or all of its event. It
// reads at most `most` deliveries, but all of the first ref. Without fields, the list is empty or has one text.
func (s *Store) readFields(ctx context.Context, most int, refs []delivery.Ref, all bool) (fields [][]string, err error) {
	groups := script.Groups(s.client, refs, examineStep, func(r delivery.Ref) int { return partition.Of(r.Company) })
	calls := make([]*script.Call, len(groups))
	for i, group := range groups {
		args := []any{most, len(group)}
		for _, r := range group {
			sub := r.Subscriber.String()
			if all {
				sub = ""
			}
			args = append(args, partition.Prefix(partition.Of(r.Company)), r.Company.String(), r.ID, sub)
		}
		calls[i] = &script.Call{Script: readScript, Keys: queues.Keys(partition.Of(group[0].Company)), Args: args}
	}
	if err := script.Run(ctx, s.client, calls...); err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	read := make(map[delivery.Ref][]string, len(refs))
	for i, group := range groups {
		lists, _ := calls[i].Reply().([]any)
		for j, list := range lists {
			values, _ := list.([]any)
			read[group[j]] = texts(values)
		}
	}
	for _, r := range refs {
		found, ok := read[r]
		if !ok {
			break // beyond the bound
		}
		fields = append(fields, found)
	}
	if s.opts.Archive == nil {
		return fields, nil
	}
	return s.addArchived(ctx, most, refs, all, fields)
}

// addArchived adds what readFields reads from the Archive. It may shorten fields, to the same bound.
func (s *Store) addArchived(ctx context.Context, most int, refs []delivery.Ref, all bool, fields [][]string) ([][]string, error) {
	var gone []int // refs that Redis has not
	for i := range fields {
		if len(fields[i]) == 0 {
			gone = append(gone, i)
		}
	}
	count := 0
	for i := range fields {
		if len(gone) > 0 && gone[0] == i {
			batch := gone[:min(len(gone), archiveBatch)]
			gone = gone[len(batch):]
			if err := s.readArchived(ctx, batch, refs, all, fields); err != nil {
				return nil, err
			}
		}
		if count += len(fields[i]) / 2; count > most && i > 0 {
			return fields[:i], nil
		}
	}
	return fields, nil
}

// readArchived sets the fields of some refs from the Archive.
func (s *Store) readArchived(ctx context.Context, batch []int, refs []delivery.Ref, all bool, fields [][]string) error {
	var wanted []events.Ref
	at := make(map[events.Ref]int, len(batch)) // a list may have several deliveries of an event
	for _, i := range batch {
		if _, known := at[refs[i].Ref]; !known {
			at[refs[i].Ref] = len(wanted)
			wanted = append(wanted, refs[i].Ref)
		}
	}
	found, err := s.opts.Archive.Get(ctx, wanted)
	if err != nil {
		return fmt.Errorf("read archived deliveries: %w", err)
	}
	for _, i := range batch {
		e := found[at[refs[i].Ref]]
		if e == nil {
			continue
		}
		for _, d := range e.Deliveries {
			if all || d.Subscriber == refs[i].Subscriber {
				fields[i] = append(fields[i], d.Subscriber.String(), d.Record)
			}
		}
	}
	return nil
}

// ofEvents reads the deliveries of events, by subscriber: of at least the first event, and of as many
// more as may be loaded at once. held says which events matched a disabled subscriber.
func (s *Store) ofEvents(ctx context.Context, refs []events.Ref) (groups [][]delivery.Delivery, held []bool, err error) {
	refs = refs[:min(len(refs), examineStep)]
	asked := make([]delivery.Ref, len(refs))
	for i, ref := range refs {
		asked[i].Ref = ref
	}
	fields, err := s.readFields(ctx, maxLoaded, asked, true)
	if err != nil {
		return nil, nil, err
	}
	groups, held = make([][]delivery.Delivery, len(fields)), make([]bool, len(fields))
	var all []delivery.Ref
	var records []*delivery.Record
	for i, ref := range refs[:len(fields)] {
		found := fields[i]
		groups[i] = deliveriesOf(ref, found)
		held[i] = slices.Contains(found, heldMark)
		for j := range groups[i] {
			all, records = append(all, groups[i][j].Ref), append(records, &groups[i][j].Record)
		}
	}
	return groups, held, s.showWaiting(ctx, all, records)
}

// showWaiting corrects status and reason of live deliveries by what is in flight, paused or not verified, which
// their records do not contain.
func (s *Store) showWaiting(ctx context.Context, refs []delivery.Ref, records []*delivery.Record) error {
	marks, endpoints := make([]*redis.StringCmd, len(refs)), make([]*redis.SliceCmd, len(refs))
	owners := make(map[int]*redis.StringCmd)      // by partition
	former := make(map[int]*redis.StringSliceCmd) // that still work
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, ref := range refs {
			if records[i] != nil && records[i].Status.Live() {
				if p := partition.Of(ref.Company); owners[p] == nil {
					owners[p], former[p] = pipe.Get(ctx, partition.Prefix(p)+"owner"), pipe.SMembers(ctx, partition.Prefix(p)+"handover")
				}
				marks[i] = pipe.HGet(ctx, queues.InFlightKey(ref.Company, ref.Subscriber), ref.ID)
				endpoints[i] = pipe.HMGet(ctx, queues.EndpointKey(ref.Company, ref.Subscriber), "until", "paused", "unverified")
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("read deliveries in flight: %w", err)
	}
	for i, rec := range records {
		switch {
		case marks[i] == nil:
		case isInFlight(marks[i].Val(), owners[partition.Of(refs[i].Company)].Val(), former[partition.Of(refs[i].Company)].Val()):
			rec.Status = delivery.StatusDelivering
		case endpoints[i].Val()[0] == queues.InOrder: // subscribers/lua/update.lua sets it
			rec.Reason = delivery.ReasonSubscriberDisabled
		case endpoints[i].Val()[1] != nil, endpoints[i].Val()[2] != nil:
			rec.Reason = delivery.ReasonPaused
		}
	}
	return nil
}

// isInFlight is as the function in_flight of the scripts.
func isInFlight(mark, owner string, former []string) bool {
	token := mark[:max(0, strings.LastIndexByte(mark, ' '))]
	return token != "" && (token == owner || slices.Contains(former, token))
}

func deliveriesOf(r events.Ref, fields []string) []delivery.Delivery {
	all := make([]delivery.Delivery, 0, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		id, err := uuid.Parse(fields[i])
		if err != nil {
			continue // a mark, see deliveriesKey
		}
		rec, err := delivery.Decode(fields[i+1])
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
