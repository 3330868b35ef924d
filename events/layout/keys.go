package layout

import (
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key. Every key of a company carries
// its partition as the hash tag, so one script may touch several of them in Redis Cluster.

// EventKey is the key of an event; lua/lib.lua describes the value.
func EventKey(r events.Ref) string {
	return partition.Key(r.Company, "e:"+r.Company.String()+":"+r.ID)
}

// IndexKey is the sorted set of a company's events, by number and so by time.
func IndexKey(company uuid.UUID) string { return partition.Key(company, "ei:"+company.String()) }

// OfSubscriberKey is the sorted set of the events of a subscriber's deliveries, by time.
func OfSubscriberKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "da:"+company.String()+"/"+subscriber.String())
}

// StateKey is the hash with the counters of a company.
func StateKey(company uuid.UUID) string { return partition.Key(company, "c:"+company.String()) }
