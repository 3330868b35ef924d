package store

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/keys"
	"spendhook/dispatcher/delivery/lifecycle"
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

// dropTries bounds the retries for a delivery that changes meanwhile.
const dropTries = 5

var errContended = errors.New("the delivery keeps changing")

// DropQuarantined drops an entry of the quarantine: an event is no longer pending; a delivery
// is cancelled, or deleted when its record cannot be read.
// quarantine.ErrNotFound when there is none; ErrInFlight while an attempt is
// under way. Calling it again is safe.
func (s *Store) DropQuarantined(ctx context.Context, e quarantine.Entry) error {
	p := partition.Of(e.Company)
	err := s.client.ZScore(ctx, quarantine.Key(p), e.Member()).Err()
	if isNil(err) {
		return quarantine.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("find quarantined: %w", err)
	}
	event := events.Ref{Company: e.Company, ID: e.EventID}
	sub, recordDamaged := "", false
	if e.Subscriber != nil {
		sub = e.Subscriber.String()
		if recordDamaged, err = s.cancelReadable(ctx, delivery.Ref{Ref: event, Subscriber: *e.Subscriber}); err != nil {
			return err
		}
	}
	text, err := s.client.Get(ctx, layout.EventKey(event)).Result()
	if err != nil && !missing(err) {
		return fmt.Errorf("read event: %w", err)
	}
	_, damage := layout.Parse(event, text)
	call := &script.Call{Script: dropScript, Keys: queues.Keys(p), Args: append(
		s.keeps(s.opts.Now(), ""), partition.Prefix(p), e.Company.String(), e.EventID, sub, flag(recordDamaged), flag(damage != nil),
	)}
	if err := script.Run(ctx, s.client, call); err != nil {
		return fmt.Errorf("drop quarantined: %w", err)
	}
	if call.Reply() != int64(1) {
		return quarantine.ErrNotFound
	}
	return nil
}

// cancelReadable cancels a live delivery, or reports that its record cannot be read.
func (s *Store) cancelReadable(ctx context.Context, r delivery.Ref) (unreadable bool, err error) {
	for range dropTries {
		text, err := s.client.HGet(ctx, keys.Deliveries(r.Ref), r.Subscriber.String()).Result()
		if err != nil && !missing(err) {
			return false, fmt.Errorf("read delivery: %w", err)
		}
		rec, err := delivery.Decode(text)
		if err != nil {
			return true, nil //nolint:nilerr // that it cannot be read is the answer
		}
		if !rec.Status.Live() {
			return false, nil
		}
		now := s.opts.Now()
		next := lifecycle.Drop(*rec, now)
		recorded, _, err := s.Record(ctx, now, "", []Write{{
			Event: r.Ref, Changes: []Change{{Ref: r, Base: rec, Next: &next, Guarded: true}},
		}})
		if err == nil {
			err = recorded[0].Err
		}
		if err != nil {
			return false, err
		}
		found := recorded[0].Found[0]
		if found == nil {
			return false, nil
		}
		if found.InFlight {
			return false, delivery.ErrInFlight
		}
	}
	return false, errContended
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
