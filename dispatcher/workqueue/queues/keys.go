package queues

import (
	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key. The scripts
// build the others from a partition's prefix. Of them n:<replica> is a hash of
// what the replica has in flight -> the number of the call that claimed it; its
// field "" is the highest number of a claim, "-" that of a claim whose answer was lost.

// DueKey is the wake-up, endpoint queues and jobs of a partition that need service. Type:
// sorted set, by unix ms. Writer: the scripts that move work. TTL: none, a member goes when
// it is served.
func DueKey(p int) string { return partition.Prefix(p) + "due" }

// AbsentKey never exists. A script that declares it beside a key that does is
// refused while its slot is being moved, before it runs.
func AbsentKey(p int) string { return partition.Prefix(p) + "absent" }

// InOrder is the score from which deliveries of an endpoint queue are in the order of
// their events, as lua/lib.lua has it.
const InOrder = "10000000000000"

// EndpointQueueKey is the deliveries that wait for one endpoint. Type: sorted set,
// event id by the unix ms it is due or, for an ordered subscriber, by InOrder and the
// event's number in its company. Writer: the scripts that move work. TTL: none, it empties.
func EndpointQueueKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "eq:"+company.String()+"/"+subscriber.String())
}

// EndpointKey is how an endpoint queue is served; lua/lib.lua lists the fields. Type:
// hash. Writer: the scripts that move work. TTL: none, fields are removed.
func EndpointKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "es:"+company.String()+"/"+subscriber.String())
}

// ManagedKey is the subscribers of a company whose deliveries all go through their endpoint
// queue. Type: set; a paused one is in it a second time, after PausedMark. Writer: the
// scripts that move work. TTL: none, members are removed.
func ManagedKey(company uuid.UUID) string { return partition.Key(company, "bl:"+company.String()) }

// PausedMark stands before a paused subscriber in ManagedKey, as in lua/lib.lua.
const PausedMark = "!"

// ChangesKey is the last changes of a subscriber's state: paused, resumed, disabled,
// enabled, failing or recovered, each after its unix ms and a space, the latest first.
// Type: list, 50 at most. Writer: the scripts of packages subscribers and
// subscribers/health, and scripts that pause a subscriber. TTL: 8 days after the last change.
func ChangesKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "hs:"+company.String()+"/"+subscriber.String())
}

// InFlightKey is the deliveries of an endpoint queue whose attempt is under way.
// Type: hash, event id to the replica that claimed it and the version its record
// had then. Writer: the scripts of packages workqueue and delivery/store. TTL: an
// hour after the last claim.
func InFlightKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "ef:"+company.String()+"/"+subscriber.String())
}
