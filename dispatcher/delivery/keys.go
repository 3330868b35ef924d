package delivery

import (
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key.

// deliveriesKey: hash of one event, subscriber -> record; '#' counts the live
// ones, '!' is there when one died, '-' when a disabled subscriber was to have one.
func deliveriesKey(r events.Ref) string { return partition.Key(r.Company, "d:"+r.String()) }

// heldMark is the '-' of a deliveriesKey.
const heldMark = "-"

// deadKey: zset delivery reference -> unix ms of its death; counts and purges.
func deadKey(p int) string { return partition.Prefix(p) + "dead" }

// compactKey: zset company -> unix ms at which the first of the settled events was
// settled that compact.lua has not looked at.
func compactKey(p int) string { return partition.Prefix(p) + "compact" }

// The indexes of a subscriber beside layout.OfSubscriberKey: zsets of event ids, by
// creation or death. The company is part of them, so that knowing another's subscriber
// tells nothing.
func liveOfSubscriber(c, s uuid.UUID) string {
	return partition.Key(c, "dl:"+c.String()+"/"+s.String())
}

func deadOfSubscriber(c, s uuid.UUID) string {
	return partition.Key(c, "dd:"+c.String()+"/"+s.String())
}

// The indexes of a company: zsets of "event id/subscriber", by creation or death.
func liveOfCompany(c uuid.UUID) string { return partition.Key(c, "cl:"+c.String()) }
func deadOfCompany(c uuid.UUID) string { return partition.Key(c, "cd:"+c.String()) }
