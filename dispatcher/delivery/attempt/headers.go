package attempt

import (
	"net/http"
	"slices"
	"strings"

	"spendhook/internal/httpsig"
	"spendhook/internal/tracing"
)

// Headers that Spendhook sets. The values of all others are not shown: the subscriber set them, but for webhook.HeaderOrigin.
const (
	headerAgent     = "User-Agent"
	headerType      = "Content-Type"
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
	headerSequence  = "webhook-sequence"
	headerPrevious  = "webhook-previous"
	headerTrace     = tracing.Header
	// Those of an HTTP message signature.
	headerDigest  = httpsig.HeaderDigest
	headerInput   = httpsig.HeaderInput
	headerMessage = httpsig.HeaderSignature
)

const (
	usualType = "application/json"
	redacted  = "[redacted]"
	// messageAlone stands for headerMessage without headerSignature. It is no name of a header.
	messageAlone = headerMessage + " only"
)

// sentOf encodes the headers of an attempt for the log, one per line: user agent, sequence with the previous one
// behind it, content type unless it is usualType, and the names of the subscriber's headers; with an HTTP message signature
// also headerMessage, or messageAlone. The trace has its own field, as has the timestamp unless it is the time of
// the start. Headers derives the other headers from the event.
func sentOf(header http.Header) string {
	if header == nil {
		return ""
	}
	lines := make([]string, 3, len(header))
	for name, values := range header {
		if len(values) == 0 { // a hint for net/http, which does not send it
			continue
		}
		switch name {
		case headerAgent:
			lines[0] = values[0]
		case headerSequence:
			lines[1] = values[0] + lines[1]
		case headerPrevious:
			lines[1] += " " + values[0]
		case headerType:
			if values[0] != usualType {
				lines[2] = values[0]
			}
		case headerID, headerTimestamp, headerSignature, headerTrace, headerDigest, headerInput:
		case headerMessage:
			if _, both := map[string][]string(header)[headerSignature]; !both { // not in canonical form
				name = messageAlone
			}
			lines = append(lines, name)
		default:
			lines = append(lines, name)
		}
	}
	slices.Sort(lines[3:])
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// Headers returns the headers that the attempt of an event sent, by name, with secrets
// redacted. It is empty when no request was sent.
func (a *Attempt) Headers(eventID string) map[string]string {
	if a.Sent == "" {
		return map[string]string{}
	}
	lines := append(strings.Split(a.Sent, "\n"), "", "")
	shown := map[string]string{
		headerAgent: lines[0], headerType: usualType, headerID: eventID, headerSignature: redacted,
		headerTimestamp: a.timestamp(),
	}
	sequence, previous, linked := strings.Cut(lines[1], " ")
	if sequence != "" {
		shown[headerSequence] = sequence
	}
	if linked {
		shown[headerPrevious] = previous
	}
	if lines[2] != "" {
		shown[headerType] = lines[2]
	}
	if a.Trace != "" {
		shown[headerTrace] = a.Trace
	}
	for _, name := range lines[3:] {
		switch name {
		case "":
		case headerMessage, messageAlone:
			shown[headerDigest], shown[headerInput], shown[headerMessage] = redacted, redacted, redacted
			if name == messageAlone {
				delete(shown, headerSignature)
			}
		default:
			shown[name] = redacted
		}
	}
	return shown
}
