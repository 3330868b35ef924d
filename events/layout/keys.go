package layout

import (
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/partition"
)

// Every key of a company carries its partition as the hash tag, so one script
// may touch several of them in Redis Cluster. Retention below is the time that
// ids are remembered; "+10min" is grace.

// EventKey is the event itself. Type: string, see lua/lib.lua. Writer:
// accept.lua, the dispatcher (state). TTL: none while it is pending, then
// retention+10min after it was accepted, or longer while a delivery is dead.
func EventKey(r events.Ref) string {
	return partition.Key(r.Company, "e:"+r.Company.String()+":"+r.ID)
}

// IndexKey is the events of a company in the order of their numbers, and so of time.
// Type: sorted set, event id by accepted ms and a fraction. Writer: accept.lua, which
// also drops a few ids older than retention each time. TTL: retention+10min after the
// last accept.
func IndexKey(company uuid.UUID) string { return partition.Key(company, "ei:"+company.String()) }

// OfSubscriberKey is the events of a subscriber's deliveries, by time. Type:
// sorted set, event id by accepted ms. Writer: the dispatcher, which also drops old ids.
// TTL: that of deliveries after the last one.
func OfSubscriberKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "da:"+company.String()+"/"+subscriber.String())
}

// StateKey is the counters of a company. Type: hash, see docs/redis.md. Writer:
// append.lua and the scripts of other packages. TTL: none.
func StateKey(company uuid.UUID) string { return partition.Key(company, "c:"+company.String()) }
