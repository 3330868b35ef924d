package store

import (
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key.

// deliveriesKey is the hash of one event, subscriber -> record. Field '#' counts the live
// deliveries; '!' exists when one is dead, '-' when the event matched a disabled subscriber. Without the hash,
// the value of a settled event may have the records: lua/lib.lua.
func deliveriesKey(r events.Ref) string { return partition.Key(r.Company, "d:"+r.String()) }

// heldMark is the field '-' of deliveriesKey.
const heldMark = "-"

// Kinds of indexKey.
const (
	liveIndex = "l" // by creation
	deadIndex = "d" // by death
)

// indexKey is the index of the live or dead deliveries of a subscriber, a zset of event ids; for a nil
// subscriber, the index of the company, a zset of "event id/subscriber". The key of a subscriber's index
// contains the company, so that a company cannot read the deliveries of another company's subscriber.
func indexKey(kind string, company uuid.UUID, sub *uuid.UUID) string {
	if sub == nil {
		return partition.Key(company, "c"+kind+":"+company.String())
	}
	return partition.Key(company, "d"+kind+":"+company.String()+"/"+sub.String())
}
