package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/cmd/spendhook/remote"
)

// errForwarded ends the feed after --count events.
var errForwarded = errors.New("all events were forwarded")

// forward follows the subscriber's feed and posts each event to the local receiver, with the Standard
// Webhooks signature of a delivery. It prints a failed POST and does not retry it.
func (c *listenCmd) forward(ctx context.Context, term *stdio) error {
	api, err := c.Open(term)
	if err != nil {
		return err
	}
	if c.Subscribe {
		created, unsubscribe, err := c.create(ctx, api, client.SubscriberCreate{
			Name: "spendhook listen", CallbackURL: "https://example.com/" + uuid.NewString(), Events: c.Events, Enabled: new(false), // it has a feed, and no deliveries
		}, term)
		if err != nil {
			return err
		}
		defer unsubscribe()
		c.Subscriber = &created.UUID
	}
	feed := &remote.Feed{API: api, Company: c.CompanyUUID, Subscriber: *c.Subscriber, Signatures: true}
	if c.After != nil {
		feed.After = *c.After
	} else if err := feed.Begin(ctx); err != nil {
		return err
	}
	fmt.Fprintf(term.Err, "forwarding to %s, from the event after number %d\n", c.ForwardTo, feed.After)
	left, printed := c.Count, printer(term.Out) // a count of 0 means no limit
	local := &http.Client{
		Timeout:       15 * time.Second, // as long as an attempt of the daemon
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	err = feed.Follow(ctx, func(e client.FeedEvent) error {
		if e.Body == nil {
			fmt.Fprintf(term.Err, "event %s (%d) was skipped: it has no body (%s)\n", e.ID, e.Sequence, *cmp.Or(e.Gone, new(client.FeedEventGone)))
			return nil
		}
		status, err := c.post(ctx, local, e)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // the command was interrupted
		case err != nil:
			fmt.Fprintf(term.Err, "event %s (%d) was not accepted: %v\n", e.ID, e.Sequence, err)
		default:
			printed(received{At: time.Now(), ID: e.ID, Body: []byte(*e.Body), Verified: errNoKey, Answered: status})
		}
		if left--; left == 0 {
			return errForwarded
		}
		return nil
	}, func(err error) { fmt.Fprintf(term.Err, "the feed cannot be read: %v\n", err) })
	if errors.Is(err, errForwarded) {
		return nil
	}
	return err
}

// post sends an event to the local receiver.
func (c *listenCmd) post(ctx context.Context, local *http.Client, e client.FeedEvent) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.ForwardTo, bytes.NewReader([]byte(*e.Body)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", "spendhook/"+readBuild().Version)
	if e.ContentType != nil {
		req.Header.Set("Content-Type", *e.ContentType)
	}
	if e.Headers != nil {
		for name, value := range *e.Headers {
			req.Header.Set(name, value)
		}
	}
	resp, err := local.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 16<<10))
	return resp.StatusCode, err
}
