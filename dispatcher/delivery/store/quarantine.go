package store

import (
	"context"
	_ "embed" // the script
	"fmt"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

var (
	//go:embed lua/drop.lua
	dropSource string

	dropScript = queues.Script(layout.Lua()+lib+dropSource, true)
)

// DropQuarantined drops an entry of the quarantine: an event is no longer pending; with damaged, the
// record of a delivery is deleted, without, the caller has ended the delivery.
// quarantine.ErrNotFound when there is no such entry. Calling it again is safe.
func (s *Store) DropQuarantined(ctx context.Context, e quarantine.Entry, damaged bool) error {
	p := partition.Of(e.Company)
	event := events.Ref{Company: e.Company, ID: e.EventID}
	sub := ""
	if e.Subscriber != nil {
		sub = e.Subscriber.String()
	}
	text, err := s.client.Get(ctx, layout.EventKey(event)).Result()
	if err != nil && !missing(err) {
		return fmt.Errorf("read event: %w", err)
	}
	_, unreadable := layout.Parse(event, text)
	call := &script.Call{Script: dropScript, Keys: queues.Keys(p), Args: append(
		s.keeps(s.opts.Now(), ""), partition.Prefix(p), e.Company.String(), e.EventID, sub, flag(damaged), flag(unreadable != nil),
	)}
	if err := script.Run(ctx, s.client, call); err != nil {
		return fmt.Errorf("drop quarantined: %w", err)
	}
	if call.Reply() != int64(1) {
		return quarantine.ErrNotFound
	}
	return nil
}

// missing reports whether there is nothing, or nothing of the right type.
func missing(err error) bool { return isNil(err) || redis.HasErrorPrefix(err, "WRONGTYPE") }

// flag is how the scripts read a yes or no.
func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
