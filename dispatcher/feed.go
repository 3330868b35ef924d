package dispatcher

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/sequence"
	"spendhook/subscribers"
	"spendhook/subscribers/filter"
)

// FeedRequest asks for a page of a subscriber's feed.
type FeedRequest struct {
	Company, Subscriber uuid.UUID

	After      int64 // the number of the event before the first; 0: from the oldest that is kept
	Limit      int   // of items; positive
	Signatures bool  // with the headers of an attempt
}

// FeedItem is an event as the subscriber gets it. Of a compacted one there is no Body
// any more, and so neither ContentType nor Headers.
type FeedItem struct {
	Sequence              int64
	ID, Type              string
	Timestamp, AcceptedAt time.Time
	Compacted             bool
	Body                  []byte
	ContentType           string
	Headers               map[string]string // nil unless asked for
}

// FeedPage is a part of a feed. Everything up to the number Next has been looked at:
// it is among Items, does not match, or is not kept any more. Of the latter there are
// Forgotten. More says that the company has events after Next; Last is the number of
// its last event, 0 before the first.
type FeedPage struct {
	Items     []FeedItem
	Next      int64
	Last      int64
	More      bool
	Forgotten int64
}

// What one page of a feed may cost.
const (
	feedEvents = 1000     // that are looked at, nearly
	feedRead   = 16 << 20 // bytes of events that are read, nearly
	feedBatch  = 100      // events that are read together, of feedBytes at most
	feedBytes  = 1 << 20
)

// Feed reads the events of a company in the order of their numbers, as the subscriber
// gets them: those that it matches as it is now, also when it is paused or disabled. A
// compacted event is among them when its type is wanted, since its filter cannot be
// asked any more. A page may be short, even empty, and still have More.
// subscribers.ErrNotFound; sequence.ErrAhead when After is beyond the last event.
func (d *Dispatcher) Feed(ctx context.Context, q FeedRequest) (FeedPage, error) {
	sub, err := d.subscriber(ctx, q.Company, q.Subscriber)
	if errors.Is(err, delivery.ErrSubscriberGone) {
		return FeedPage{}, subscribers.ErrNotFound
	}
	if err != nil {
		return FeedPage{}, err
	}
	f := &feed{dispatcher: d, request: q, sub: sub, page: FeedPage{Next: q.After}}
	if sub.Locked != nil { // its event types cannot be read
		return FeedPage{}, sub.Unusable()
	}
	if q.Signatures {
		if f.to, err = d.targets.of(ctx, sub); err != nil {
			return FeedPage{}, err
		}
		if f.to.locked != nil {
			return FeedPage{}, f.to.locked
		}
	}
	for more := true; more && !f.full; {
		part, err := d.numbers.After(ctx, q.Company, f.page.Next)
		if err != nil {
			return FeedPage{}, err
		}
		if err := f.take(ctx, part); err != nil {
			return FeedPage{}, err
		}
		more = f.page.Next < part.Last
		f.page.More, f.page.Last = more, part.Last
		f.full = f.full || f.page.Next-q.After >= feedEvents || f.read >= feedRead
	}
	return f.page, nil
}

// AwaitEvent returns once a company has an event with a higher number than after, or
// ctx ends, or EndWaits is called; it tells which. sequence.ErrTooManyWaiting at once.
func (d *Dispatcher) AwaitEvent(ctx context.Context, company uuid.UUID, after int64) (arrived bool, err error) {
	return d.numbers.Wait(ctx, company, after)
}

// EndWaits ends every AwaitEvent, now and from now on.
func (d *Dispatcher) EndWaits() { d.numbers.Close() }

// feed is a page of a feed that is being read.
type feed struct {
	dispatcher *Dispatcher
	request    FeedRequest
	sub        *subscribers.Subscriber
	to         *target // nil without signatures
	page       FeedPage
	bytes      int  // of the bodies on the page
	read       int  // bytes of events that were read
	full       bool // the page
}

// take moves on over a part of the events. It stops early when the page is full, and
// at an event that was compacted just now, which is then to be read again.
func (f *feed) take(ctx context.Context, part sequence.Page) error {
	for len(part.Events) > 0 {
		n := f.batch(part.Events)
		stored, err := f.load(ctx, part.Events[:n])
		if err != nil {
			return err
		}
		for i, e := range part.Events[:n] {
			if stored[i] != nil && stored[i].State == events.Compacted {
				return nil
			}
			if err := f.add(e, stored[i]); err != nil || f.full {
				return err
			}
		}
		part.Events = part.Events[n:]
	}
	f.pass(part.Through, false)
	return nil
}

// batch is how many of the events to read together.
func (f *feed) batch(list []sequence.Event) int {
	bytes := 0
	for i, e := range list {
		if bytes += e.Bytes; i >= feedBatch || i > 0 && bytes > feedBytes {
			return i
		}
	}
	return len(list)
}

// load reads events in their order; those that are compacted, or not there any more,
// are nil.
func (f *feed) load(ctx context.Context, list []sequence.Event) ([]*events.Stored, error) {
	var refs []events.Ref
	for _, e := range list {
		if !e.Compacted {
			refs = append(refs, e.Ref)
			f.read += e.Bytes
		}
	}
	found, err := f.dispatcher.opts.Events.GetMany(ctx, refs)
	if err != nil {
		return nil, err
	}
	all := make([]*events.Stored, len(list))
	for i, e := range list {
		if !e.Compacted {
			all[i], found = found[0], found[1:]
		}
	}
	return all, nil
}

// add puts an event on the page when it matches. The page is full when there is no
// memory for it, or no event after it.
func (f *feed) add(e sequence.Event, stored *events.Stored) error {
	item := FeedItem{
		Sequence: e.Sequence, ID: e.Ref.ID, Type: e.Type, Timestamp: e.Timestamp, AcceptedAt: e.AcceptedAt, Compacted: e.Compacted,
	}
	matches := e.Compacted && f.sub.Wants(e.Type)
	if stored != nil {
		item.Type, item.Timestamp = stored.Type, stored.Timestamp
		matches, _ = f.sub.Matches(filter.NewEvent(stored.Event)) // one that fails does not match
	}
	if matches && stored != nil {
		if err := f.encode(&item, stored); err != nil {
			return err
		}
		if len(f.page.Items) > 0 && f.bytes+len(item.Body) > history.PageBytes {
			f.full = true
			return nil
		}
	}
	f.pass(e.Sequence, e.Compacted || stored != nil)
	if matches {
		f.bytes += len(item.Body)
		f.page.Items = append(f.page.Items, item)
		f.full = len(f.page.Items) >= f.request.Limit
	}
	return nil
}

// encode gives an item what a delivery of it would have.
func (f *feed) encode(item *FeedItem, stored *events.Stored) error {
	p, err := f.dispatcher.payloadsOf(stored).in(f.sub.Format)
	if err != nil {
		return err
	}
	item.Body, item.ContentType = p.body, p.contentType
	if item.ContentType == "" {
		item.ContentType = "application/json"
	}
	if f.to != nil {
		item.Headers = f.to.request(item.ID, item.Sequence, p).Signed(f.dispatcher.opts.Now())
	}
	return nil
}

// pass moves on to a number. Those before it that were not among the events are not
// kept, and it may not be itself.
func (f *feed) pass(number int64, kept bool) {
	if number <= f.page.Next {
		return
	}
	f.page.Forgotten += number - f.page.Next
	if kept {
		f.page.Forgotten--
	}
	f.page.Next = number
}
