package console

import (
	"maps"
	"slices"
	"time"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/subscribers"
)

// attemptRow is an attempt with its headers, its waiting times and its parts.
type attemptRow struct {
	attempt.Attempt

	URL     string // without its query; "" when it is not known any more
	Address string // "" when none was reached
	Headers []header
	Waits   []wait
	Parts   []part
	Total   int64 // µs of all parts; 1 at least
}

type header struct{ Name, Value string }

// wait is a reason for which a delivery waited before an attempt.
type wait struct {
	For  string
	Time time.Duration
}

// part is a part of an attempt, such as the TLS handshake.
type part struct {
	Name, Class string
	From, Took  int64 // µs
}

// Time returns the duration of the part.
func (p part) Time() time.Duration { return time.Duration(p.Took) * time.Microsecond }

var partNames = []struct{ name, class string }{
	{"Waiting for a connection", "p-wait"}, {"Name resolution", "p-dns"}, {"TCP", "p-tcp"}, {"TLS", "p-tls"}, {"Waiting for the answer", "p-first"}, {"Reading the answer", "p-body"},
}

var waitNames = map[string]string{
	"queue": "its turn in the queue", "endpoint_limit": "the limit or the order of the endpoint", "host_limit": "the limit of the host", "rate_limit": "the rate limit or Retry-After",
	"paused": "the end of a pause", "breaker": "the circuit breaker", "schedule": "the retry schedule",
}

// newAttemptRow shows an attempt. sub is nil when it was deleted.
func newAttemptRow(eventID string, a attempt.Attempt, sub *subscribers.Subscriber) attemptRow {
	version, address := a.Destination()
	row, headers := attemptRow{Attempt: a, URL: sub.URLAt(version)}, a.Headers(eventID)
	if address.IsValid() {
		row.Address = address.String()
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		row.Headers = append(row.Headers, header{name, headers[name]})
	}
	for _, reason := range slices.Sorted(maps.Keys(a.Waited)) {
		name := waitNames[reason]
		if name == "" {
			name = reason
		}
		row.Waits = append(row.Waits, wait{name, time.Duration(a.Waited[reason]) * time.Millisecond})
	}
	for i, took := range append([]int64{a.WaitForConnection()}, a.Timing[:]...) {
		if took > 0 {
			row.Parts = append(row.Parts, part{partNames[i].name, partNames[i].class, row.Total, took})
			row.Total += took
		}
	}
	row.Total = max(1, row.Total)
	return row
}
