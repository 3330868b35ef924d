// Package layout defines how events are stored in Redis: the keys, the value of an event, and
// the Lua code with which scripts of other packages read and write them.
package layout

import (
	"bytes"
	_ "embed" // the Lua
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"spendhook/events"
	"spendhook/internal/syntax"
	"spendhook/internal/tracing"
)

var (
	//go:embed lua/lib.lua
	libLua string
	//go:embed lua/append.lua
	appendLua string
	//go:embed lua/stub.lua
	stubLua string
)

// overhead is the memory of Redis for an event besides the result of Encode, in bytes: keys,
// indexes and one DELIVERED delivery.
const overhead = 900

// compactedBytes is the memory of Redis for a compacted event, in bytes.
const compactedBytes = 280

// The memory of Redis for a delivery, in bytes: each delivery of an event but the first has
// deliveryBytes, a live one openBytes more, a live one with an order key orderBytes more, and a record what it is longer
// than shortRecord.
const (
	deliveryBytes = 360
	openBytes     = 400
	orderBytes    = 400
	shortRecord   = 200
)

// Bytes is the memory of Redis that counts for an event, in bytes. kept is the length of the result of Encode, and records
// are the lengths of the records of its deliveries, if these have ended.
func Bytes(kept int, records ...int) int {
	bytes := overhead + kept + max(0, len(records)-1)*deliveryBytes
	for _, n := range records {
		bytes += max(0, n-shortRecord)
	}
	return bytes
}

// Lua is code for scripts that read an event: functions for the parts of its value, the states, and
// the bytes that count for an event.
func Lua() string {
	return fmt.Sprintf("local OVERHEAD, COMPACTED_BYTES, GRACE = %d, %d, %d\n", overhead, compactedBytes, Grace.Milliseconds()) +
		fmt.Sprintf("local DELIVERY_BYTES, OPEN_BYTES, ORDER_BYTES, SHORT_RECORD = %d, %d, %d, %d\n", deliveryBytes, openBytes, orderBytes, shortRecord) + libLua
}

// AppendLua is Lua plus code that adds events to a company.
func AppendLua() string { return Lua() + appendLua }

// StubLua is code that stores stubs of compacted events; it needs Lua.
func StubLua() string { return stubLua }

// Grace is how much longer than retention a key is kept. An event may be sent again until its
// timestamp is past retention. The timestamp may be 5 minutes ahead of the acceptance. The rest of
// Grace allows for clocks that differ.
const Grace = 10 * time.Minute

// headerLen is the length of the header, which precedes the body; see lua/lib.lua.
const headerLen = 1 + 13 + 8 + 10

var errStored = errors.New("stored event has no header")

// Parse reads the value at the EventKey of ref.
func Parse(ref events.Ref, raw string) (*events.Stored, error) {
	stored, err := parseHeader(raw)
	if err != nil {
		return nil, err
	}
	if stored.State == events.Compacted {
		stored.ID, stored.CompanyUUID = ref.ID, ref.Company
		return stored, nil
	}
	body, trace, err := cutTrace(withoutRecords(raw)[headerLen:])
	if err != nil {
		return nil, err
	}
	stored.Body = Body(ref, body)
	if stored.Event, err = events.ParseBody(stored.Body); err != nil {
		return nil, err
	}
	stored.Trace = trace
	return stored, nil
}

// recordsMark is the last byte of the value of a settled event with the records of its deliveries.
const recordsMark = 'P'

// withoutRecords returns the value at an EventKey without the records of deliveries that a settled event may have
// (package delivery/store).
func withoutRecords(raw string) string {
	end := len(raw) - len("00000000P")
	if end < headerLen || events.State(raw[0]) != events.Settled || raw[len(raw)-1] != recordsMark {
		return raw
	}
	n, err := strconv.ParseUint(raw[end:len(raw)-1], 16, 32)
	if err != nil || int(n) > end-headerLen {
		return raw
	}
	return raw[:end-int(n)]
}

// traceMark is the last byte of a stored event with a trace. An event without a trace ends with }.
const traceMark = 'T'

func cutTrace(kept string) (body string, trace tracing.Parent, err error) {
	n := len(kept) - tracing.Bytes - 1
	if n < 0 || kept[len(kept)-1] != traceMark {
		return kept, trace, nil
	}
	trace, err = tracing.ParseParent(kept[n : len(kept)-1])
	return kept[:n], trace, err
}

// HeadLength is the number of bytes of a value that ParseHead needs to read the type.
const HeadLength = headerLen + len(typeHead+`",`) + syntax.MaxEventType

const typeHead = `"event":"`

// ParseHead reads the beginning of the value at the EventKey of ref: state, time, number and,
// if raw is long enough, type.
func ParseHead(ref events.Ref, raw string) (*events.Stored, error) {
	stored, err := parseHeader(raw)
	if err != nil {
		return nil, err
	}
	stored.ID, stored.CompanyUUID = ref.ID, ref.Company
	if rest, begins := strings.CutPrefix(raw[headerLen:], typeHead); begins && stored.State != events.Compacted {
		if name, _, ends := strings.Cut(rest, `"`); ends {
			stored.Type = name
		}
	}
	return stored, nil
}

func parseHeader(raw string) (*events.Stored, error) {
	if len(raw) < headerLen {
		return nil, errStored
	}
	stored := &events.Stored{State: events.State(raw[0])}
	ms, err := strconv.ParseUint(raw[1:14], 10, 63)
	if err != nil {
		return nil, errStored
	}
	if stored.Sequence, err = strconv.ParseInt(raw[22:headerLen], 16, 64); err != nil {
		return nil, errStored
	}
	stored.AcceptedAt = time.UnixMilli(int64(ms)).UTC()
	switch stored.State {
	case events.Ready, events.Matched, events.Settled, events.Compacted:
		return stored, nil
	}
	return nil, errStored
}

// bodyHead is the start of each body. Id and company are part of the key, so the stored value
// leaves the head out.
func bodyHead(ref events.Ref) string {
	return `{"id":"` + ref.ID + `","companyUuid":"` + ref.Company.String() + `",`
}

// placeStep is the difference between the places of two events of a company that are accepted in the same call, as in
// lua/append.lua.
const placeStep = 1.0 / 1024

// Value returns the place and the stored value of event i of those of a company that were just accepted in one call.
// first is the place of event 0, number that of the event in its company, nonce that of its commit, and kept the result
// of Encode.
func Value(first float64, i int, nonce uint32, number int64, kept []byte) (place float64, value string) {
	place = first + float64(i)*placeStep
	head := fmt.Appendf(make([]byte, 0, headerLen+len(kept)), "%c%013.0f%08x%010x", events.Ready, math.Floor(place), nonce, number)
	return place, string(append(head, kept...))
}

// Encode encodes an event for its stored value, without the header.
func Encode(s *events.Stored) []byte {
	body := bytes.TrimPrefix(s.Body, []byte(bodyHead(s.Ref())))
	if s.Trace.IsZero() {
		return body
	}
	return append(s.Trace.AppendTo(append(make([]byte, 0, len(body)+tracing.Bytes+1), body...)), traceMark)
}

// Body returns the body of an event, from the result of Encode without a trace.
func Body(ref events.Ref, kept string) []byte { return []byte(bodyHead(ref) + kept) }
