package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/pause"
)

// Feed says which feed has the events that an Inbox may have missed.
type Feed struct {
	// API is the client of the daemon. Its token needs the scopes events:read and subscribers:read.
	API        *client.ClientWithResponses
	Subscriber uuid.UUID
	// Company is needed if the token belongs to no company.
	Company *uuid.UUID
}

// Progress says what was read of the feed.
type Progress struct {
	// Missing is the number of events that the inbox lacked, and were worked on.
	Missing int
	// Gone is the number of events that were passed over, because the daemon names them without a body: it has removed the
	// payload, somebody cancelled the delivery, or an operator is to look at the event.
	Gone int
	// Forgotten is the number of events that the daemon no longer keeps, whether they are for this subscriber or not.
	Forgotten int64
}

// Passed is an event of the feed that has no body, also one that was worked on before.
type Passed struct {
	ID       string
	Sequence int64 // the number of the event in its company
	// Reason is COMPACTED: the daemon has removed the payload; CANCELLED: somebody cancelled the delivery; or QUARANTINED: an
	// operator is to look at the event.
	Reason string
}

// reading is the state of a reading of the feed.
type reading struct {
	Progress

	whole bool // it began at the start of the feed
}

const (
	feedLimit = 100
	// feedWait is how long one request waits for an event: less than the time-out of a client.
	feedWait = "20s"
)

var errNoFeed = errors.New("the inbox has no feed")

// CatchUp reads the feed from where the last reading ended, and works on the events that the inbox lacks. At an
// error, such as one of Work, it stops; the next call reads the page of the event that failed again. Deliveries may
// arrive meanwhile. If the daemon has lost events that were read, in a failover, it reads the feed from its start.
func (i *Inbox[T]) CatchUp(ctx context.Context) (Progress, error) {
	var r reading
	for {
		more, err := i.page(ctx, "0s", &r)
		if err != nil || !more {
			return r.Progress, err
		}
	}
}

// Rewind sets the stored cursor to "", so that the next reading begins at the start of the feed. Events that are known are
// not worked on again. It is for an inbox that only reads the feed, after an operator retried what was QUARANTINED, or
// somebody replayed a CANCELLED delivery: the feed has the body now, but the inbox has passed the event. Call it again if a
// reading from the start was under way, which may have moved the cursor since.
func (i *Inbox[T]) Rewind(ctx context.Context) error { return i.setCursor(ctx, "") }

// Follow catches up, and then works on each new event that the inbox lacks, until ctx ends. After an error it waits for
// a second, and longer after each further one, up to a minute. Without a feed it calls Failed and returns. It is for a
// receiver that gets no deliveries; one that does runs FillGaps.
func (i *Inbox[T]) Follow(ctx context.Context) {
	if i.o.Feed == nil {
		i.o.Failed(fmt.Errorf("follow the feed: %w", errNoFeed))
		return
	}
	var r reading
	failures := 0
	for ctx.Err() == nil {
		more, err := i.page(ctx, feedWait, &r)
		switch {
		case err == nil:
			failures = 0
			r.whole = r.whole && more
		case ctx.Err() == nil:
			i.o.Failed(fmt.Errorf("follow the feed: %w", err))
			pause.For(ctx, i.backoff(failures))
			failures++
		}
	}
}

// backoff is how long Follow waits after an error.
func backoff(failures int) time.Duration {
	return min(time.Second<<min(failures, 6), time.Minute)
}

// page reads and works on one page.
func (i *Inbox[T]) page(ctx context.Context, wait string, r *reading) (more bool, err error) {
	if i.o.Feed == nil {
		return false, errNoFeed
	}
	cursor, err := i.cursor(ctx)
	if err != nil {
		return false, fmt.Errorf("read the cursor: %w", err)
	}
	before := i.chain.reading()
	page, err := i.read(ctx, cursor, wait)
	if refusal, ok := errors.AsType[*client.Error](err); ok && refusal.Code == "FEED_CHANGED" && cursor != "" {
		cursor = "" // other events have the numbers of lost ones: read all, of which most are known
		if err = i.setCursor(ctx, cursor); err == nil {
			page, err = i.read(ctx, cursor, wait)
		}
	}
	if err != nil {
		return false, fmt.Errorf("read the feed: %w", err)
	}
	r.whole = r.whole || cursor == ""
	r.Forgotten += page.Forgotten
	if page.Forgotten > 0 && !r.whole {
		i.o.Failed(fmt.Errorf("%d events since the last reading are no longer kept by the service", page.Forgotten))
	}
	for _, e := range page.Content {
		if err := i.take(ctx, e, &r.Progress); err != nil {
			return false, fmt.Errorf("event %s: %w", e.ID, err)
		}
	}
	if page.Cursor != cursor {
		err = i.moveCursor(ctx, cursor, page.Cursor)
	}
	if err == nil && !page.More {
		i.chain.read(before, page.Next)
	}
	return page.More, err
}

// read asks for the page at a cursor; "": the first one.
func (i *Inbox[T]) read(ctx context.Context, cursor, wait string) (*client.Feed, error) {
	limit := feedLimit
	params := client.ReadSubscriberFeedParams{CompanyUUID: i.o.Feed.Company, Limit: &limit, Wait: &wait}
	if cursor == "" {
		params.After = new(int64)
	} else {
		params.Cursor = &cursor
	}
	answer, err := i.o.Feed.API.ReadSubscriberFeedWithResponse(ctx, i.o.Feed.Subscriber, &params)
	if err != nil {
		return nil, err
	}
	page := answer.JSON200
	if page == nil || page.Cursor == "" || (page.More && page.Cursor == cursor) {
		return nil, errors.New("the answer is not from a feed")
	}
	return page, nil
}

func (i *Inbox[T]) take(ctx context.Context, e client.FeedEvent, p *Progress) error {
	if e.Body == nil {
		p.Gone++
		return i.pass(e)
	}
	added, err := i.once(ctx, newEvent(e.ID, e.Sequence, []byte(*e.Body)))
	if added {
		p.Missing++
	}
	return err
}

func (i *Inbox[T]) pass(e client.FeedEvent) (err error) {
	defer recovered(&err)
	passed := Passed{ID: e.ID, Sequence: e.Sequence}
	if e.Gone != nil {
		passed.Reason = string(*e.Gone)
	}
	i.o.Passed(passed)
	return nil
}

func (i *Inbox[T]) cursor(ctx context.Context) (cursor string, err error) {
	err = i.o.Store.Transaction(ctx, func(tx Transaction, _ T) error {
		cursor, err = tx.Cursor(ctx)
		return err
	})
	return cursor, err
}

// moveCursor replaces the cursor unless somebody has replaced it while the page was read, such as Rewind. It takes two
// transactions, since SQLite may refuse to write in one that began with reading.
func (i *Inbox[T]) moveCursor(ctx context.Context, from, to string) error {
	if now, err := i.cursor(ctx); err != nil || now != from {
		return err
	}
	return i.setCursor(ctx, to)
}

func (i *Inbox[T]) setCursor(ctx context.Context, cursor string) error {
	return i.o.Store.Transaction(ctx, func(tx Transaction, _ T) error { return tx.SetCursor(ctx, cursor) })
}
