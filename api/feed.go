package api

import (
	"context"
	"time"

	"spendhook/api/gen"
	"spendhook/dispatcher/feed"
)

// defaultLimit is the maximum number of events of a page without the parameter limit.
const defaultLimit = 100

// ReadSubscriberFeed is GET /api/v1/subscribers/{uuid}/feed. While the request waits for events, no
// memory is reserved for the answer.
func (s *server) ReadSubscriberFeed(ctx context.Context, q *request, id gen.SubscriberPath, p gen.ReadSubscriberFeedParams) (reply, error) {
	wait, _ := time.ParseDuration(or(p.Wait, "0s")) // readParameters has checked the form
	if p.After != nil && p.Cursor != nil {
		return reply{}, fieldProblem("cursor", "INVALID", "cannot be given with after")
	}
	f := feed.Request{
		Company: q.company, Subscriber: id, After: or(p.After, 0), Cursor: textOf(p.Cursor), Limit: or(p.Limit, defaultLimit), Signatures: or(p.Signatures, false),
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	forgotten := int64(0)
	for {
		if err := s.reserve(ctx, q, pageBytes); err != nil {
			return reply{}, err
		}
		reading, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		page, err := s.opts.Feed.Read(reading, f)
		cancel()
		if err != nil {
			return reply{}, err
		}
		forgotten += page.Forgotten
		page.Forgotten, f.Cursor = forgotten, page.Cursor
		rep := shownFeed(page)
		q.memory.ShrinkTo(rep.bytes)
		if len(page.Items) > 0 || page.More || wait == 0 {
			return rep, nil
		}
		arrived, err := s.opts.Feed.Wait(waiting, q.company, page.Next)
		if err != nil || !arrived {
			return rep, err
		}
		q.memory.ShrinkTo(0)
	}
}

func shownFeed(page feed.Page) reply {
	bytes := int64(0)
	for _, item := range page.Items {
		bytes += int64(len(item.Body)) + eventRest
	}
	return streamed(gen.Feed{
		Content: convertAll(page.Items, shownFeedEvent), Next: page.Next, Cursor: page.Cursor, Last: page.Last, More: page.More, Forgotten: page.Forgotten,
	}, bytes)
}

func shownFeedEvent(item feed.Item) gen.FeedEvent {
	shown := gen.FeedEvent{
		Sequence: item.Sequence, ID: item.ID, Event: item.Type, Timestamp: item.Timestamp, AcceptedAt: item.AcceptedAt,
		Gone: gen.FeedEventGone(item.Gone), ContentType: item.ContentType, Body: string(item.Body),
	}
	if item.Headers != nil {
		shown.Headers = &item.Headers
	}
	return shown
}
