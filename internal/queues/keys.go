package queues

import (
	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// docs/redis.md lists type, content, writer and time to live of every key. The scripts build the
// keys that have no function here from a partition's prefix.

// DueKey is the sorted set of the retry sets, the jobs, and the events to be matched again of a partition, by due time.
func DueKey(p int) string { return partition.Prefix(p) + "due" }

// ClockKey is the hash with the time of a partition's work, see work_time in lua/lib.lua: the ms by which it was
// ahead of Redis's time when it was last noted, and that time.
func ClockKey(p int) string { return partition.Prefix(p) + "clock" }

// AbsentKey never exists. While Redis moves the slot of a partition, it refuses a script that declares
// this key and an existing one, before the script runs.
func AbsentKey(p int) string { return partition.Prefix(p) + "absent" }

// InOrder is IN_ORDER of lua/lib.lua: from this score on, a retry set has deliveries in
// the order of their events.
const InOrder = "10000000000000"

// RetrySetKey is the sorted set of the deliveries that wait for one endpoint, by due time or from InOrder on. From twice
// InOrder on, deliveries wait for others with their order key.
func RetrySetKey(company, subscriber uuid.UUID) string { return key("eq:", company, subscriber) }

// OrderKeySet is the sorted set of an endpoint's waiting deliveries with one order key, the first with the score -1, the
// others by number.
func OrderKeySet(company, subscriber uuid.UUID, orderKey string) string {
	return key("ok:", company, subscriber) + "/" + orderKey
}

// EndpointKey is the hash with the state of an endpoint; docs/redis.md lists the fields.
func EndpointKey(company, subscriber uuid.UUID) string { return key("es:", company, subscriber) }

// InFlightKey is the hash of the deliveries of a retry set that are in flight: event id to the owner's token and the
// number of the call that began it.
func InFlightKey(company, subscriber uuid.UUID) string { return key("ef:", company, subscriber) }

// ChangesKey is the list of the last changes of a subscriber's state, latest first: the unix ms, a
// space, and paused, resumed, disabled, enabled, failing or recovered.
func ChangesKey(company, subscriber uuid.UUID) string { return key("hs:", company, subscriber) }

// ManagedKey is the subscribers of a company whose deliveries all go through their
// retry set. A paused one is in it a second time, after PausedMark.
func ManagedKey(company uuid.UUID) string { return partition.Key(company, "bl:"+company.String()) }

// PausedMark stands before a paused subscriber in ManagedKey, as in lua/lib.lua.
const PausedMark = "!"

func key(kind string, company, subscriber uuid.UUID) string {
	return partition.Key(company, kind+company.String()+"/"+subscriber.String())
}
