// Package keys is the keys of deliveries that more than one package reads.
package keys

import (
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key.

// Deliveries is the hash of one event, subscriber -> record; '#' counts the live
// ones, '!' is there when one died, '-' when a disabled subscriber was to have one.
func Deliveries(r events.Ref) string { return partition.Key(r.Company, "d:"+r.String()) }

// HeldMark is the '-' of a Deliveries.
const HeldMark = "-"

// The indexes of a subscriber beside layout.OfSubscriberKey: zsets of event ids, by
// creation or death. The company is part of them, so that knowing another's subscriber
// tells nothing.
func LiveOfSubscriber(c, s uuid.UUID) string {
	return partition.Key(c, "dl:"+c.String()+"/"+s.String())
}

func DeadOfSubscriber(c, s uuid.UUID) string {
	return partition.Key(c, "dd:"+c.String()+"/"+s.String())
}

// The indexes of a company: zsets of "event id/subscriber", by creation or death.
func LiveOfCompany(c uuid.UUID) string { return partition.Key(c, "cl:"+c.String()) }
func DeadOfCompany(c uuid.UUID) string { return partition.Key(c, "cd:"+c.String()) }
