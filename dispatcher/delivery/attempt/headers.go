package attempt

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"spendhook/internal/tracing"
)

// Headers of an attempt whose values are shown as they were sent. Those of all others,
// which a subscriber set, are secrets.
const (
	headerAgent     = "User-Agent"
	headerType      = "Content-Type"
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
	headerSequence  = "webhook-sequence"
	headerTrace     = tracing.Header
)

const (
	usualType = "application/json"
	redacted  = "[redacted]"
	// nothingSent is kept of an attempt that had no headers, before one that had some.
	nothingSent = "-"
)

// sentOf is what is kept of the headers of an attempt: user agent, sequence, content
// type unless it is the usual one, and the names of those that the subscriber set, a
// line each. The trace is kept beside; the other headers follow from the event and the time.
func sentOf(header http.Header) string {
	if header == nil {
		return ""
	}
	lines := make([]string, 3, len(header))
	for name, values := range header {
		if len(values) == 0 { // for net/http alone
			continue
		}
		switch name {
		case headerAgent:
			lines[0] = values[0]
		case headerSequence:
			lines[1] = values[0]
		case headerType:
			if values[0] != usualType {
				lines[2] = values[0]
			}
		case headerID, headerTimestamp, headerSignature, headerTrace:
		default:
			lines = append(lines, name)
		}
	}
	slices.Sort(lines[3:])
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// keepSent drops what the attempt before the latest sent, if that was the same: a log of
// many holds it once.
func keepSent(attempts []Attempt) {
	last := len(attempts) - 1
	if last == 0 {
		return
	}
	switch before := &attempts[last-1].Sent; *before {
	case attempts[last].Sent:
		*before = ""
	case "":
		*before = nothingSent
	}
}

// Headers are those that attempt i of a delivery's log was made with, by name;
// secrets are redacted. It is empty when nothing could be sent.
func Headers(eventID string, attempts []Attempt, i int) map[string]string {
	sent := ""
	for _, a := range attempts[i:] {
		if sent = a.Sent; sent != "" {
			break
		}
	}
	if sent == "" || sent == nothingSent {
		return map[string]string{}
	}
	lines := append(strings.Split(sent, "\n"), "", "")
	shown := map[string]string{
		headerAgent: lines[0], headerType: usualType, headerID: eventID, headerSignature: redacted,
		headerTimestamp: strconv.FormatInt(time.UnixMilli(attempts[i].StartedAt).Unix(), 10),
	}
	if lines[1] != "" {
		shown[headerSequence] = lines[1]
	}
	if lines[2] != "" {
		shown[headerType] = lines[2]
	}
	if trace := attempts[i].Trace; trace != "" {
		shown[headerTrace] = trace
	}
	for _, name := range lines[3:] {
		if name != "" {
			shown[name] = redacted
		}
	}
	return shown
}
