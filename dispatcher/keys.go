package dispatcher

import (
	"strconv"

	"github.com/google/uuid"

	"spendhook/events"
)

// docs/redis.md lists type, writer and time to live of each key.

const replicasKey = "sh:replicas"

func tag(p int) string { return "sh:{" + strconv.Itoa(p) + "}:" }

func companyTag(c uuid.UUID) string { return tag(events.Partition(c)) }

// deliveriesKey: hash subscriber -> record, one per event.
func deliveriesKey(r events.Ref) string { return companyTag(r.Company) + "d:" + r.String() }

// delayedKey: zset reference -> unix ms when it is due.
func delayedKey(p int) string { return tag(p) + "delayed" }

// deadKey: zset delivery reference -> unix ms of its death; counts and purges.
func deadKey(p int) string { return tag(p) + "dead" }

// The indexes of a subscriber: zsets of event ids, by creation or death.
// The company is part of them, so that knowing another's subscriber tells nothing.
func allOfSubscriber(c, s uuid.UUID) string {
	return companyTag(c) + "da:" + c.String() + "/" + s.String()
}

func liveOfSubscriber(c, s uuid.UUID) string {
	return companyTag(c) + "dl:" + c.String() + "/" + s.String()
}

func deadOfSubscriber(c, s uuid.UUID) string {
	return companyTag(c) + "dd:" + c.String() + "/" + s.String()
}

// The indexes of a company: zsets of "event id/subscriber", by creation or death.
func liveOfCompany(c uuid.UUID) string { return companyTag(c) + "cl:" + c.String() }
func deadOfCompany(c uuid.UUID) string { return companyTag(c) + "cd:" + c.String() }

// jobKey: string with the job's JSON.
func jobKey(c, job uuid.UUID) string {
	return companyTag(c) + "job:" + c.String() + "/" + job.String()
}

// inFlightKey: hash token -> references of one task in flight in a replica.
func inFlightKey(replica string) string { return "sh:inflight:" + replica }

// takeoverKey: lock of whoever takes over a dead replica's work.
func takeoverKey(replica string) string { return "sh:takeover:" + replica }
