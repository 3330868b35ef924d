package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/cursor"
	"spendhook/internal/syntax"
)

const (
	defaultSize = 20
	maxSize     = 100
	// maxWork bounds the index entries that one call examines. Each company costs
	// companyWork entries more.
	maxWork     = 1000
	companyWork = 10
	// typeBatch is how many entries are read at a time when a filter leaves some out.
	typeBatch = 100
	// readBytes bounds the bytes loaded at a time; a single event may be larger.
	readBytes = 1 << 20
)

// PageBytes bounds the bodies on one page of a list; one event is always listed.
const PageBytes = 4 << 20

// Filter says which events to list; zero fields do not filter.
type Filter struct {
	Company    *uuid.UUID // nil: all companies
	Subscriber *uuid.UUID // a subscriber with a delivery of the event; needs Company
	Types      []string   // patterns of types, any of which matches
	From, To   *time.Time // time of acceptance, inclusive
	// Search finds events in the history alone, of one Company: by path=value, where path is that of a field such as
	// metadata.cardUuid, and value all of its text, or the text of an element if the field has an array; else by words, all
	// of which are in the id, the type, the error or the metadata. Case and accents of words do not matter. "": any event.
	Search string
	Cursor string // Next of the page before, under the same filter
	Size   int    // at most 100; 0 means 20

	// Only reports which of up to 100 events are on the list. work is the cost of the check, in
	// index entries. OnlyKey identifies the function in cursors.
	Only    func(ctx context.Context, refs []events.Ref) (on []bool, work int, err error)
	OnlyKey string
}

// position is where a page ended: after a place of a company, or after the whole company when
// there is no ID.
type position struct {
	Place

	Company uuid.UUID `json:"c"`
}

const listName = "events"

func (f *Filter) key() string {
	return fmt.Sprint(f.Company, f.Subscriber, f.Types, f.From, f.To, f.OnlyKey, f.Search)
}

func (f *Filter) index(company uuid.UUID) string {
	if f.Subscriber != nil {
		return layout.OfSubscriberKey(company, *f.Subscriber)
	}
	return layout.IndexKey(company)
}

// Page is one page of a list, without the Body of its events. Next is "" at the end
// of the list; a page may be short, even empty, and still have a Next.
type Page struct {
	Items []events.Stored
	Next  string
}

// List reads events, newest first. Without a company it reads partition by partition, and
// company by company in the order of their UUIDs. It examines at most maxWork index entries:
// a rare type needs more calls, but no longer ones. A search takes some 2 s at most. The error is cursor.ErrBad when the
// cursor is not of this list, and of a search events.ErrNoHistory, or events.ErrSearching while others are under way.
func (r *Reader) List(ctx context.Context, f Filter) (Page, error) {
	l := &listing{reader: r, filter: f, left: min(cmp.Or(f.Size, defaultSize), maxSize), bytes: PageBytes, work: maxWork}
	err := cursor.Decode(f.Cursor, listName, f.key(), &l.at)
	switch {
	case err != nil:
	case f.Search != "":
		err = l.search(ctx, *f.Company)
	case f.Company != nil:
		err = l.readCompany(ctx, *f.Company)
	default:
		err = l.readCompanies(ctx)
	}
	if err != nil {
		return Page{}, err
	}
	if l.more {
		return Page{Items: l.items, Next: cursor.Encode(listName, f.key(), l.at)}, nil
	}
	return Page{Items: l.items}, nil
}

type listing struct {
	reader *Reader
	filter Filter
	at     position
	items  []events.Stored
	left   int  // items left on the page
	bytes  int  // bytes of bodies left on the page
	work   int  // index entries left to examine
	more   bool // the list continues after at
}

func (l *listing) spent() bool { return l.left <= 0 || l.work <= 0 }

func (l *listing) readCompanies(ctx context.Context) error {
	low := l.reader.Oldest().UnixMilli()
	if l.filter.From != nil {
		low = max(low, ceilMillis(*l.filter.From))
	}
	for company, err := range Companies(ctx, l.reader.client, l.reader.archive, l.at.Company, low) {
		if err != nil {
			return err
		}
		if company == l.at.Company && l.at.ID == "" { // an earlier page has finished it
			continue
		}
		if l.more = l.spent(); l.more {
			return nil
		}
		if err := l.readCompany(ctx, company); err != nil || l.more {
			return err
		}
		l.at = position{Company: company}
		l.work -= companyWork
	}
	return nil
}

func (l *listing) readCompany(ctx context.Context, company uuid.UUID) error {
	if l.at.Company != company {
		l.at = position{Company: company}
	}
	sp := l.reader.span(l.filter.index(company), company, l.filter.From, l.filter.To)
	sp.Subscriber = l.filter.Subscriber
	for {
		n := l.batch()
		places, err := ReadIndex(ctx, l.reader.client, l.reader.archive, sp, l.at.Place, n)
		if err != nil {
			return err
		}
		taken, err := l.take(ctx, places)
		if err != nil {
			return err
		}
		ended := len(places) < n
		if l.more = taken < len(places) || !ended && l.spent(); l.more || ended {
			return nil
		}
	}
}

// batch returns how many index entries to read next: one more than fit on the page, to see
// whether the list continues.
func (l *listing) batch() int {
	if len(l.filter.Types) > 0 || l.filter.Only != nil {
		return min(typeBatch, l.work)
	}
	return min(l.left+1, l.work)
}

// take adds the events of places until the page is full, and returns how many places it used.
// An index entry may outlive its event or the event's payload.
func (l *listing) take(ctx context.Context, places []Place) (int, error) {
	refs := make([]events.Ref, len(places))
	for i, p := range places {
		refs[i] = events.Ref{Company: l.at.Company, ID: p.ID}
	}
	on, err := l.only(ctx, refs)
	if err != nil {
		return 0, err
	}
	sizes, err := l.reader.sizes(ctx, refs)
	if err != nil {
		return 0, err
	}
	for i := range sizes {
		if !on[i] {
			sizes[i] = 0
		}
	}
	for taken := 0; taken < len(places); {
		if l.left == 0 {
			return taken, nil
		}
		n := Fitting(sizes[taken:], readBytes)
		stored, err := l.reader.GetSome(ctx, refs[taken:taken+n], on[taken:])
		if err != nil {
			return 0, err
		}
		for i, e := range stored {
			if e != nil && l.reader.archive != nil && !l.lists(e, places[taken+i]) {
				e = nil
			}
			if !l.add(e) {
				return taken + i, nil
			}
			l.at.Place = places[taken+i]
			l.work--
		}
		taken += n
	}
	return len(places), nil
}

// lists checks what only an event tells that was read from the archive: its type. The event at an archived place may
// also be a later one with the same id, which has a place of its own.
func (l *listing) lists(e *events.Stored, at Place) bool {
	return int64(at.MS) == e.AcceptedAt.UnixMilli() && syntax.MatchesAnyEvent(l.filter.Types, e.Type)
}

// only reports which of the events to load.
func (l *listing) only(ctx context.Context, refs []events.Ref) (on []bool, err error) {
	on = slices.Repeat([]bool{true}, len(refs))
	if l.filter.Only != nil && len(refs) > 0 {
		var work int
		on, work, err = l.filter.Only(ctx, refs)
		l.work -= work
	}
	if err != nil || len(l.filter.Types) == 0 {
		return on, err
	}
	heads, gone, err := l.reader.heads(ctx, refs)
	for i, e := range heads {
		matches := e != nil && syntax.MatchesAnyEvent(l.filter.Types, e.Type)
		on[i] = on[i] && (matches || l.reader.archive != nil && slices.Contains(gone, i))
	}
	return on, err
}

// Batches divides events, in their order, into batches of about readBytes, so that no reader loads
// all events of a company at once.
func (r *Reader) Batches(ctx context.Context, refs []events.Ref) (batches [][]events.Ref, err error) {
	sizes, err := r.sizes(ctx, refs)
	for len(refs) > 0 && err == nil {
		n := Fitting(sizes, readBytes)
		batches = append(batches, refs[:n])
		refs, sizes = refs[n:], sizes[n:]
	}
	return batches, err
}

// Fitting returns how many of the first items to load together: as many as have at most the size
// most in total, but at least one.
func Fitting(sizes []int, most int) int {
	sum := 0
	for i, size := range sizes {
		if sum += size; i > 0 && sum > most {
			return i
		}
	}
	return len(sizes)
}

// add adds an event that matches the filter. It reports false when the page is full.
func (l *listing) add(e *events.Stored) bool {
	switch {
	case l.left == 0:
		return false
	case e == nil, e.State == events.Compacted:
		return true
	case len(l.items) > 0 && len(e.Body) > l.bytes:
		l.left = 0
		return false
	}
	l.bytes -= len(e.Body)
	l.left--
	e.Body = nil
	l.items = append(l.items, *e)
	return true
}

// Matched reports whether the events of a company that were accepted until a time have been matched with its subscribers.
// The answer may be up to half a second late.
func (r *Reader) Matched(ctx context.Context, company uuid.UUID, until time.Time) (bool, error) {
	cursor, err := r.client.HGet(ctx, layout.StateKey(company), "cursor").Result()
	if errors.Is(err, redis.Nil) {
		cursor, err = "0", nil
	}
	var left int64
	if err == nil {
		left, err = r.client.ZCount(ctx, layout.IndexKey(company), "("+cursor, "("+strconv.FormatInt(until.UnixMilli()+1, 10)).Result()
	}
	if err != nil {
		return false, fmt.Errorf("%w: read how far events are matched: %w", events.ErrUnavailable, err)
	}
	return left == 0, nil
}

const walkName = "events of a company"

// Walk lists the ids of a company's events that were accepted between from and to, inclusive,
// oldest first, n at a time. after is next of the previous call, "" for the first call. next is ""
// on the last page. A walk may be resumed at any time: it skips events that Redis has forgotten, unless the Archive has
// them. The error is cursor.ErrBad when after is not of this walk.
func (r *Reader) Walk(ctx context.Context, company uuid.UUID, from, to time.Time, after string, n int) (ids []string, next string, err error) {
	at := position{Company: company}
	if err := cursor.Decode(after, walkName, company, &at); err != nil {
		return nil, "", err
	}
	sp := r.span(layout.IndexKey(company), company, &from, &to)
	sp.Ascending = true
	places, err := ReadIndex(ctx, r.client, r.archive, sp, at.Place, n+1)
	if err != nil {
		return nil, "", err
	}
	if len(places) > n {
		places = places[:n]
		next = cursor.Encode(walkName, company, position{Company: company, Place: places[n-1]})
	}
	for _, p := range places {
		ids = append(ids, p.ID)
	}
	return ids, next, nil
}
