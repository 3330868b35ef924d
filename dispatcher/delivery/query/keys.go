package query

import (
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key.

// Deliveries is the hash of one event, subscriber -> record. Field '#' counts the live
// deliveries; '!' exists when one is dead, '-' when the event matched a disabled subscriber.
func Deliveries(r events.Ref) string { return partition.Key(r.Company, "d:"+r.String()) }

// heldMark is the field '-' of Deliveries.
const heldMark = "-"

// LiveOfSubscriber is an index of a subscriber's deliveries that are not dead: a zset of
// event ids by creation. The key includes the company, so that a company cannot read the
// deliveries of another company's subscriber.
func LiveOfSubscriber(c, s uuid.UUID) string {
	return partition.Key(c, "dl:"+c.String()+"/"+s.String())
}

// DeadOfSubscriber is the index of a subscriber's dead letters: a zset of event ids by death.
func DeadOfSubscriber(c, s uuid.UUID) string {
	return partition.Key(c, "dd:"+c.String()+"/"+s.String())
}

// LiveOfCompany is the index of a company's deliveries that are not dead: a zset of
// "event id/subscriber" by creation.
func LiveOfCompany(c uuid.UUID) string { return partition.Key(c, "cl:"+c.String()) }

// DeadOfCompany is the index of a company's dead letters: a zset of "event id/subscriber"
// by death.
func DeadOfCompany(c uuid.UUID) string { return partition.Key(c, "cd:"+c.String()) }
