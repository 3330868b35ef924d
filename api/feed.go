package api

import (
	"context"
	"net/http"
	"time"

	"spendhook/api/gen"
	"spendhook/dispatcher/feed"
)

// defaultLimit is how many events a page of a feed has.
const defaultLimit = 100

// ReadSubscriberFeed is GET /api/v1/subscribers/{uuid}/feed.
func (s *server) ReadSubscriberFeed(w http.ResponseWriter, r *http.Request, id gen.SubscriberPath, p gen.ReadSubscriberFeedParams) {
	wait, err := time.ParseDuration(or(p.Wait, "0s"))
	if err != nil { // readParameters has checked the form
		s.fail(w, r, err)
		return
	}
	var memory *reservation
	defer func() { memory.shrinkTo(0) }()
	s.doWithin(w, r, wait+2*s.opts.Timeout, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.companyFor(p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		q := feed.Request{
			Company: company, Subscriber: id, After: or(p.After, 0), Limit: or(p.Limit, defaultLimit), Signatures: or(p.Signatures, false),
		}
		waiting, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		forgotten := int64(0)
		for {
			// A request that waits for events holds no memory for answers.
			reserved, err := s.reserveBytes(ctx, c, pageBytes)
			if err != nil {
				return reply{}, err
			}
			memory = reserved
			page, err := within(ctx, s.opts.Timeout, s.opts.Feed.Read, q)
			if err != nil {
				return reply{}, err
			}
			forgotten += page.Forgotten
			page.Forgotten, q.After = forgotten, page.Next
			rep := shownFeed(page)
			memory.shrinkTo(rep.bytes)
			if len(page.Items) > 0 || page.More || wait == 0 {
				return rep, nil
			}
			arrived, err := s.opts.Feed.Wait(waiting, company, page.Next)
			if err != nil || !arrived {
				return rep, err
			}
			memory.shrinkTo(0)
		}
	})
}

func shownFeed(page feed.Page) reply {
	rep := ok(gen.Feed{Content: convertAll(page.Items, shownFeedEvent), Next: page.Next, Last: page.Last, More: page.More, Forgotten: page.Forgotten})
	rep.stream = true
	for _, item := range page.Items {
		rep.bytes += int64(len(item.Body)) + eventRest
	}
	return rep
}

func shownFeedEvent(item feed.Item) gen.FeedEvent {
	shown := gen.FeedEvent{
		Sequence: item.Sequence, ID: item.ID, Event: item.Type, Timestamp: item.Timestamp, AcceptedAt: item.AcceptedAt,
		Compacted: item.Compacted, ContentType: item.ContentType, Body: string(item.Body),
	}
	if item.Headers != nil {
		shown.Headers = &item.Headers
	}
	return shown
}
