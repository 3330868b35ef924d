package events

import (
	"strconv"

	"github.com/google/uuid"
)

// Every key of a company carries its partition as the hash tag, so one script
// may touch several of them in Redis Cluster. Retention below is the time that
// ids are remembered; "+10min" is grace.

// EventKey is the event itself. Type: string, 13-digit accepted unix ms + 8 hex
// digits of commit nonce + body without its id and company, which the key has. Writer: accept.lua. TTL: retention+10min,
// extended by the dispatcher for events with dead or held deliveries.
func EventKey(r Ref) string {
	return partitionKey(Partition(r.Company), "e:") + r.Company.String() + ":" + r.ID
}

// IndexKey is the events of a company by time. Type: sorted set, event id by
// accepted ms. Writer: accept.lua, which also drops a few ids older than
// retention each time. TTL: retention+10min after the last accept.
func IndexKey(company uuid.UUID) string {
	return partitionKey(Partition(company), "ei:") + company.String()
}

// OpenKey is the work of partition p handed to a queue or in flight. Type:
// sorted set, reference by the ms at which its task was last enqueued. Writer:
// accept.lua adds; the dispatcher adds, removes and sweeps. TTL: none, the
// dispatcher empties it.
func OpenKey(p int) string { return partitionKey(p, "open") }

// CompaniesKey is the companies of partition p that have events. Type: sorted
// set, company by the ms of its last accepted event. Writer: accept.lua, which
// also drops those without an event within retention. TTL: retention+10min
// after the partition's last accept.
func CompaniesKey(p int) string { return partitionKey(p, "companies") }

func partitionKey(p int, rest string) string {
	return "sh:{" + strconv.Itoa(p) + "}:" + rest
}
