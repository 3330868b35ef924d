package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/pause"
	"spendhook/internal/terminal"
)

// Feed reads a subscriber's feed, beginning after the event After. Use it from one goroutine.
type Feed struct {
	API        *client.ClientWithResponses
	Company    *uuid.UUID // nil if the token is tied to a company
	Subscriber uuid.UUID
	After      int64 // sequence number of the last event that was read; 0: none
	Signatures bool  // include the headers of a delivery

	cursor string // of the last page, of which all events were handled; "": none
}

// feedWait is how long one request waits for an event: less than a client's time-out.
const feedWait = "20s"

// Begin moves to the end of the feed, so that only new events are read.
func (f *Feed) Begin(ctx context.Context) error {
	page, err := f.page(ctx, "0s", 1)
	if err == nil {
		f.After = page.Last
	}
	return err
}

// read calls handle for the events after f.After, in their order, until the end of the feed or
// until handle returns an error. A page has at most 4 MiB.
func (f *Feed) read(ctx context.Context, handle func(client.FeedEvent) error) error {
	for more := true; more; {
		page, err := f.page(ctx, "0s", 1000)
		if err == nil {
			err = f.take(page, handle)
		}
		if err != nil {
			return err
		}
		more = page.More
	}
	return nil
}

// Follow calls handle for the events after f.After and for all later events. It returns nil when
// ctx ends, and otherwise the error of handle. While the daemon is unreachable or busy, it calls
// retrying and tries again every 2 s.
func (f *Feed) Follow(ctx context.Context, handle func(client.FeedEvent) error, retrying func(error)) error {
	limit := 100
	if f.Signatures { // a small page, because receivers refuse signatures that are 5 min old
		limit = 20
	}
	for ctx.Err() == nil {
		page, err := f.page(ctx, feedWait, limit)
		switch {
		case err == nil:
			if err := f.take(page, handle); err != nil {
				return err
			}
		case ctx.Err() != nil:
		case KindOf(err) == Unavailable:
			retrying(err)
			pause.For(ctx, 2*time.Second)
		default:
			return err
		}
	}
	return nil
}

func (f *Feed) page(ctx context.Context, wait string, limit int) (*client.Feed, error) {
	p := &client.ReadSubscriberFeedParams{CompanyUUID: f.Company, Limit: &limit, Wait: &wait, Signatures: &f.Signatures}
	if p.Cursor = &f.cursor; f.cursor == "" {
		p.After, p.Cursor = &f.After, nil
	}
	answer, err := f.API.ReadSubscriberFeedWithResponse(ctx, f.Subscriber, p)
	if err != nil {
		return nil, err
	}
	return answer.JSON200, nil
}

// take calls handle for the events of a page, and moves f.After after every event. So no event is
// skipped or repeated if handle fails within a page.
func (f *Feed) take(page *client.Feed, handle func(client.FeedEvent) error) error {
	for _, e := range page.Content {
		if err := handle(e); err != nil {
			return err
		}
		f.After, f.cursor = e.Sequence, ""
	}
	f.After, f.cursor = page.Next, page.Cursor
	return nil
}

type eventFeedCmd struct {
	Subscriber uuid.UUID `arg:"" name:"uuid" predictor:"subscriber" help:"UUID of the subscriber."`
	After      int64     `help:"Sequence number after which the feed begins; 0 begins with the oldest kept event." default:"0"`
	New        bool      `help:"With --follow: begin with new events."`
	Follow     bool      `help:"Wait for new events until interrupted." short:"f"`
	Signatures bool      `help:"Include the headers of a delivery, signed now."`
}

// Validate checks the flags that exclude or need each other.
func (c *eventFeedCmd) Validate() error {
	if c.New && (c.After != 0 || !c.Follow) {
		return UsageError("--new needs --follow, and excludes --after")
	}
	return nil
}

// Run prints each event as soon as it has read the event.
func (c *eventFeedCmd) Run(ctx context.Context, s *session) error {
	f := &Feed{
		API: s.ClientWithResponses, Company: s.connection.CompanyUUID, Subscriber: c.Subscriber, After: c.After, Signatures: c.Signatures,
	}
	if c.New {
		if err := f.Begin(ctx); err != nil {
			return err
		}
	}
	p := s.feedPrinter()
	if !c.Follow {
		return f.read(ctx, p)
	}
	return f.Follow(ctx, p, func(err error) { fmt.Fprintln(s.term.Err, err) })
}

// feedPrinter returns a function that prints one event: as one line, or as an item of a YAML list.
func (s *session) feedPrinter() func(client.FeedEvent) error {
	out := s.term.Out
	if s.output.Format == "table" {
		fmt.Fprintf(out, feedLine, "SEQUENCE", "ACCEPTED", "EVENT", "ID")
	}
	return func(e client.FeedEvent) error {
		switch s.output.Format {
		case "table":
			at := e.AcceptedAt.Format(time.RFC3339)
			_, err := fmt.Fprintf(out, feedLine, strconv.FormatInt(e.Sequence, 10), at, e.Event, e.ID)
			return err
		case "name":
			_, err := fmt.Fprintln(out, e.ID)
			return err
		}
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if s.output.Format == "yaml" {
			return printYAML(out, fmt.Appendf(nil, "[%s]", text))
		}
		_, err = fmt.Fprintln(out, terminal.Escape(string(text), ""))
		return err
	}
}

// feedLine is the format of a line of the table.
const feedLine = "%-9s  %-20s  %-28s  %s\n"
