// Package feed reads the events of a company in the order of their numbers, in the form in which
// a subscriber gets them, and waits for new events.
package feed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/requests"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/sequence"
	"spendhook/internal/cursor"
	"spendhook/subscribers"
	"spendhook/subscribers/expression"
	"spendhook/subscribers/registry"
)

// Options configures a Reader. All are required.
type Options struct {
	Numbers  *sequence.Reader // closed with the feed
	Events   *history.Reader
	Registry *registry.Registry
	Requests *requests.Maker
	// Dropped returns which events, of Redis or archived ones, were cancelled for a subscriber before they arrived:
	// store.Store.Dropped.
	Dropped func(ctx context.Context, subscriber uuid.UUID, list []events.Ref, archived bool) ([]events.Ref, error)
	// Quarantined returns which events of a company wait for an operator: quarantine.Store.Events.
	Quarantined func(ctx context.Context, company uuid.UUID, ids []string) ([]string, error)
}

// Reader reads feeds, and is safe for concurrent use. Make it with New, and close it.
type Reader struct {
	*sequence.Reader // lets callers wait for new events

	opts Options
}

// New returns a Reader.
func New(o Options) *Reader { return &Reader{Reader: o.Numbers, opts: o} }

// Request asks for a page of a subscriber's feed.
type Request struct {
	Company, Subscriber uuid.UUID

	After      int64  // the page begins after this number; 0: with the oldest stored event
	Cursor     string // of the page before, in place of After; "": none
	Limit      int    // of items; positive
	Signatures bool   // Items have the Headers of an attempt
}

// readCursor sets After, and returns the mark of the event with this number; "" if it is not known.
func (q *Request) readCursor() (mark string, err error) {
	if q.Cursor == "" {
		return "", nil
	}
	number, mark, _ := strings.Cut(q.Cursor, "-")
	if q.After, err = strconv.ParseInt(number, 10, 64); err != nil {
		return "", cursor.ErrBad
	}
	return mark, nil
}

// Gone says why an Item has no body.
type Gone string

// The reasons.
const (
	GoneCompacted   Gone = "COMPACTED"   // the payload was removed with time or erased, and the history does not have it
	GoneCancelled   Gone = "CANCELLED"   // somebody cancelled its delivery to the subscriber
	GoneQuarantined Gone = "QUARANTINED" // its matching ended the daemon: it waits until an operator retries or drops it
)

// Item is an event as the subscriber gets it. One that is Gone has no Body, ContentType or Headers.
type Item struct {
	Sequence              int64
	ID, Type              string
	Timestamp, AcceptedAt time.Time
	Gone                  Gone // "": it is not
	Body                  []byte
	ContentType           string
	Headers               map[string]string // nil unless asked for
}

// Page is a part of a feed: the matching events with numbers after the request's After up to Next. Cursor names the event
// with the number Next. Forgotten is the number of events in that range whose numbers Redis has forgotten, although the
// history may have the events. More says that the company has events after Next. Last is the number of the company's last
// event, 0 without events.
type Page struct {
	Items     []Item
	Next      int64
	Cursor    string
	Last      int64
	More      bool
	Forgotten int64
}

// Bounds of one page of a feed.
const (
	maxEvents   = 1000     // events that a page covers, approximately
	maxRead     = 16 << 20 // bytes of events that are read, approximately
	batchBytes  = 1 << 20  // bytes of events that are read together, approximately
	batchEvents = 100      // events that are read together
)

// Read reads the events that match the subscriber's current settings, even while it is
// paused or disabled, in the order of their numbers. A compacted event is read from the history. If that has it not, or the
// event is in the quarantine, it matches by its type alone: the filter needs the content, or may have ended the daemon. A
// page may be short, even empty, and still have More. The error may be subscribers.ErrNotFound, sequence.ErrAhead or
// ErrChanged.
func (r *Reader) Read(ctx context.Context, q Request) (Page, error) {
	sub, err := r.opts.Registry.Find(ctx, q.Company, q.Subscriber)
	if err != nil {
		return Page{}, err
	}
	mark, err := q.readCursor()
	if err != nil {
		return Page{}, err
	}
	f := &page{reader: r, request: q, sub: sub, mark: mark, Page: Page{Next: q.After}}
	if sub.Locked != nil { // its event types cannot be read
		return Page{}, sub.Unusable()
	}
	if q.Signatures {
		if f.target = r.opts.Requests.Target(sub); f.target.Locked != nil {
			return Page{}, f.target.Locked
		}
	}
	for more := true; more && !f.full; {
		part, err := f.after(ctx)
		if err != nil {
			return Page{}, err
		}
		if err := f.take(ctx, part); err != nil {
			return Page{}, err
		}
		more = f.Next < part.Last
		f.More, f.Last = more, part.Last
		f.full = f.full || f.Next-q.After >= maxEvents || f.read >= maxRead
	}
	f.Cursor = fmt.Sprintf("%d-%s", f.Next, f.mark)
	return f.Page, nil
}

// ErrChanged means that Redis has lost events that were read, so that others have their numbers.
var ErrChanged = errors.New("the events up to this cursor were lost, and others have their numbers")

// after reads the events after the page so far, and before them the event of the number Next: it must be the one that was
// read, unless it is past its retention.
func (f *page) after(ctx context.Context) (sequence.Page, error) {
	part, err := f.reader.After(ctx, f.request.Company, max(0, f.Next-1))
	lost := errors.Is(err, sequence.ErrAhead) || err == nil && part.Last < f.Next
	switch {
	case lost && (f.request.Cursor != "" || f.Next > f.request.After):
		return part, ErrChanged
	case lost:
		return part, sequence.ErrAhead
	case err != nil || len(part.Events) == 0 || part.Events[0].Sequence != f.Next:
		return part, err
	}
	mark := markOf(part.Events[0])
	part.Events = part.Events[1:]
	if f.mark == "" {
		f.mark = mark
	}
	if f.mark != mark {
		return part, ErrChanged
	}
	return part, nil
}

// markOf returns when an event was accepted, in unix ms. A later event with the same number has another time.
func markOf(e sequence.Event) string { return strconv.FormatInt(e.AcceptedAt.UnixMilli(), 10) }

type page struct {
	Page

	reader  *Reader
	request Request
	sub     *subscribers.Subscriber
	target  *requests.Target // nil without signatures
	bytes   int              // of the bodies on the page
	read    int              // bytes of events that were read
	full    bool
	mark    string // of the event of the number Next; "": it is not known
}

// take adds a part of the events to the page. It stops early when the page is full, and
// at an event that was compacted since the part was read: the next round reads it again.
func (f *page) take(ctx context.Context, part sequence.Page) error {
	sizes := make([]int, len(part.Events))
	for i, e := range part.Events {
		sizes[i] = e.Bytes
		if e.Compacted {
			sizes[i] = history.ArchivedBytes
		}
	}
	for len(part.Events) > 0 {
		n := min(history.Fitting(sizes, batchBytes), batchEvents)
		stored, err := f.load(ctx, part.Events[:n])
		if err != nil {
			return err
		}
		gone, err := f.gone(ctx, part.Events[:n], stored)
		if err != nil {
			return err
		}
		for i, e := range part.Events[:n] {
			if stored[i] != nil && stored[i].State == events.Compacted { // and not in the history
				return nil
			}
			if err := f.add(ctx, e, stored[i], gone[e.Ref.ID]); err != nil || f.full {
				return err
			}
		}
		part.Events, sizes = part.Events[n:], sizes[n:]
	}
	if part.Through > f.Next {
		f.advance(part.Through, false)
		f.mark = ""
	}
	return nil
}

// load reads events in their order; those that the history does not have are nil if they are compacted, or not there
// any more.
func (f *page) load(ctx context.Context, list []sequence.Event) ([]*events.Stored, error) {
	refs, on := make([]events.Ref, len(list)), make([]bool, len(list))
	var compacted []events.Ref
	for i, e := range list {
		refs[i], on[i] = e.Ref, !e.Compacted
		f.read += e.Bytes
		if e.Compacted {
			compacted = append(compacted, e.Ref)
		}
	}
	stored, err := f.reader.opts.Events.GetSome(ctx, refs, on)
	if err != nil {
		return nil, err
	}
	archived, err := f.reader.opts.Events.GetArchived(ctx, compacted)
	if err != nil {
		return nil, err
	}
	for i, e := range list {
		if !e.Compacted {
			continue
		}
		if found := archived[0]; found != nil && found.Sequence == e.Sequence { // else it is a later event with the same id
			stored[i] = found
			f.read += len(found.Body)
		}
		archived = archived[1:]
	}
	return stored, nil
}

// gone finds, among stored events, those that the subscriber must not get from the feed, by their ids.
func (f *page) gone(ctx context.Context, list []sequence.Event, stored []*events.Stored) (map[string]Gone, error) {
	var unmatched []string
	matched := map[bool][]events.Ref{} // by whether they come from the history
	for i, e := range stored {
		switch {
		case e == nil || !f.sub.Wants(e.Type):
		case e.State != events.Ready:
			archived := list[i].Compacted
			matched[archived] = append(matched[archived], e.Ref())
		case f.sub.Filter != "" || f.sub.Transform != "": // else nothing is evaluated
			unmatched = append(unmatched, e.ID)
		}
	}
	quarantined, err := f.reader.opts.Quarantined(ctx, f.request.Company, unmatched)
	if err != nil {
		return nil, err
	}
	gone := map[string]Gone{}
	for _, id := range quarantined {
		gone[id] = GoneQuarantined
	}
	for archived, refs := range matched {
		dropped, err := f.reader.opts.Dropped(ctx, f.sub.UUID, refs, archived)
		if err != nil {
			return nil, err
		}
		for _, ref := range dropped {
			gone[ref.ID] = GoneCancelled
		}
	}
	return gone, nil
}

// matches reports whether an event is on the feed; stored is nil for one that was compacted, or is not there any more.
func (f *page) matches(ctx context.Context, item *Item, stored *events.Stored) (bool, error) {
	if stored == nil || item.Gone == GoneQuarantined {
		return item.Gone != "" && f.sub.Wants(item.Type), nil
	}
	ok, _ := f.sub.Matches(ctx, expression.NewEvent(stored.Event)) // a filter that fails does not match
	return ok, ctx.Err()
}

// add adds an event to the page if it matches. It sets full when the page cannot take
// this event, or cannot take another one after it.
func (f *page) add(ctx context.Context, e sequence.Event, stored *events.Stored, gone Gone) error {
	item := Item{Sequence: e.Sequence, ID: e.Ref.ID, Type: e.Type, Timestamp: e.Timestamp, AcceptedAt: e.AcceptedAt, Gone: gone}
	switch {
	case stored != nil:
		item.Type, item.Timestamp = stored.Type, stored.Timestamp
	case e.Compacted:
		item.Gone = GoneCompacted
	}
	matches, err := f.matches(ctx, &item, stored)
	if err != nil {
		return err
	}
	if matches && item.Gone == "" {
		p, err := f.reader.opts.Requests.Payload(ctx, stored, f.sub)
		if _, failed := errors.AsType[*requests.TransformError](err); failed { // the receiver must not miss the event
			p, err = f.reader.opts.Requests.Payloads(stored).In(subscribers.FormatStandard)
		}
		if err != nil {
			return err
		}
		item.Body, item.ContentType = p.Body, p.ContentType
		if f.target != nil {
			item.Headers = f.target.Request(item.ID, item.Sequence, p).Signed(time.Now()) //nolint:forbidigo // as an attempt would now
		}
		if len(f.Items) > 0 && f.bytes+len(item.Body) > history.PageBytes {
			f.full = true
			return nil
		}
	}
	f.advance(e.Sequence, e.Compacted || stored != nil)
	f.mark = markOf(e)
	if matches {
		f.bytes += len(item.Body)
		f.Items = append(f.Items, item)
		f.full = len(f.Items) >= f.request.Limit
	}
	return nil
}

// advance moves the end of the page to a number. The numbers skipped before it belong to events that
// are no longer stored; kept says whether the event of this number is stored.
func (f *page) advance(number int64, kept bool) {
	if number <= f.Next {
		return
	}
	f.Forgotten += number - f.Next
	if kept {
		f.Forgotten--
	}
	f.Next = number
}
