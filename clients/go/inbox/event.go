package inbox

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Event is an event as a delivery or the feed has it. Fields that the body does not have are empty: the formats "thin"
// and "cloudevents" have no Metadata, and a body that is not JSON has an ID, perhaps a Sequence, and the Body.
type Event struct {
	// ID is unique in the company. It is that of the header webhook-id.
	ID          string
	Type        string // such as PAYMENT_PAID
	CompanyUUID string // the subject of CloudEvents
	Timestamp   time.Time
	// Metadata is a JSON object, byte for byte, so that decimals keep all of their digits. Decode numbers with
	// json.Decoder.UseNumber or into types of their own, not into float64.
	Metadata json.RawMessage
	// Sequence is the number of the event in its company; 0: unknown.
	Sequence int64
	// Body is the body of the delivery.
	Body []byte
}

const challengeType = "SUBSCRIBER_CHALLENGE"

// newEvent reads what it can of the body.
func newEvent(id string, sequence int64, body []byte) *Event {
	e := &Event{ID: id, Sequence: sequence, Body: body}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return e
	}
	e.Type, e.CompanyUUID = text(members["event"]), text(members["companyUuid"])
	e.Timestamp, _ = time.Parse(time.RFC3339, text(members["timestamp"])) // the zero time if it is none
	if metadata := members["metadata"]; len(metadata) > 0 && metadata[0] == '{' {
		e.Metadata = metadata
	}
	if _, ok := members["specversion"]; ok { // CloudEvents
		e.Type, e.CompanyUUID = text(members["type"]), text(members["subject"])
		e.Timestamp, _ = time.Parse(time.RFC3339, text(members["time"]))
	}
	return e
}

// text returns a JSON string; "" for anything else.
func text(value json.RawMessage) (s string) {
	_ = json.Unmarshal(value, &s)
	return s
}

// challenge returns the text that the answer to a challenge repeats; "" for any other event.
func (e *Event) challenge() string {
	var metadata map[string]json.RawMessage
	if e.Type != challengeType || json.Unmarshal(e.Metadata, &metadata) != nil {
		return ""
	}
	return text(metadata["challenge"])
}

// numberOf returns the number in a header; 0 if it is missing or not a number.
func numberOf(header http.Header, name string) int64 {
	value := header.Get(name)
	number, err := strconv.ParseInt(value, 10, 64)
	if err != nil || strings.ContainsFunc(value, notDigit) {
		return 0
	}
	return number
}
