package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	eventType = "PAYMENT_PAID"
	bodySize  = 512 // bytes of every event, which are signed and sent
)

// eventID contains the run, the number n of the event, and its send time. From the id alone the
// receiver derives which event it received, how late, and how often.
type eventID struct {
	run, n int64
	sent   time.Time // to the microsecond
}

func (id eventID) String() string {
	return fmt.Sprintf("bench-%d-%d-%d", id.run, id.n, id.sent.UnixMicro())
}

// parseEventID reads an id that String made.
func parseEventID(text string) (id eventID, ok bool) {
	rest, ok := strings.CutPrefix(text, "bench-")
	run, rest, ok2 := strings.Cut(rest, "-")
	n, sent, ok3 := strings.Cut(rest, "-")
	if !ok || !ok2 || !ok3 {
		return eventID{}, false
	}
	numbers := [3]int64{}
	for i, s := range [...]string{run, n, sent} {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil || v < 0 {
			return eventID{}, false
		}
		numbers[i] = v
	}
	return eventID{run: numbers[0], n: numbers[1], sent: time.UnixMicro(numbers[2])}, true
}

const (
	companyPrefix = "be9c0000-0000-4000-8000-"
	companyDigits = 12
)

// company returns the UUID of the i-th company.
func company(i int) string { return fmt.Sprintf("%s%0*d", companyPrefix, companyDigits, i) }

// firstOf returns the numbers of the first n companies.
func firstOf(n int) []int { return between(0, n) }

// between returns the numbers of companies from from up to, not including, to.
func between(from, to int) []int {
	list := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

// numberedType returns the i-th of many event types.
func numberedType(i int) string { return fmt.Sprintf("BENCH_%d", i) }

// appendEvent appends the event's record, bodySize bytes long, in the canonical form that the
// daemon sends.
func appendEvent(to []byte, id eventID, company, kind string, at time.Time) []byte {
	start := len(to)
	to = fmt.Appendf(to, `{"id":"%s","companyUuid":"%s","event":"%s","timestamp":"%s","metadata":{"pad":"`,
		id, company, kind, at.UTC().Format("2006-01-02T15:04:05.000Z"))
	const tail = `"}}`
	for len(to)-start+len(tail) < bodySize {
		to = append(to, 'x')
	}
	return append(to, tail...)
}

// sign returns the signature of Standard Webhooks.
func sign(key []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
