// Package keys names the Redis keys of deliveries that more than one package reads.
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

// LiveOfSubscriber is an index of a subscriber's deliveries that are not dead: a zset of
// event ids by creation. The company is part of the key, so that knowing another company's
// subscriber tells nothing.
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
