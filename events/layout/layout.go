// Package layout is how events are kept in Redis: the keys, the value of an event, and
// the Lua by which scripts of other packages read and write them.
package layout

import (
	"bytes"
	_ "embed" // the Lua
	"errors"
	"fmt"
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

// Overhead is what Redis needs for an event besides what Encode keeps, in bytes: keys,
// indexes and a delivery that was delivered.
const Overhead = 900

// compactedBytes is what Redis needs for a compacted event in all.
const compactedBytes = 280

// Lua is how scripts find an event's state: names of its parts and of the states, and
// what is counted for it.
func Lua() string {
	return fmt.Sprintf("local OVERHEAD, COMPACTED_BYTES = %d, %d\n", Overhead, compactedBytes) + libLua
}

// AppendLua is Lua, and how scripts add events to a company.
func AppendLua() string { return Lua() + appendLua }

// StubLua is how scripts keep stubs of the events that they compact; it needs Lua.
func StubLua() string { return stubLua }

// A company's events are accepted in the order of time, so after one that was accepted
// too late by a wrong clock the others are too, until that time. maxLead bounds it.
const (
	maxLead     = 24 * time.Hour
	endlessLead = 100 * 365 * 24 * time.Hour
)

// Clock is the clock for accepted events, and how far it may be ahead of Redis's: now,
// without a bound, or with nil the real one.
func Clock(now func() time.Time) (clock func() time.Time, lead time.Duration) {
	if now == nil {
		return time.Now, maxLead //nolint:forbidigo // the nil default
	}
	return now, endlessLead
}

// Grace is how much longer than retention a key lives. An id may be sent again until its
// timestamp, which may be a few minutes ahead of the accept, is older than retention; the
// rest is for clocks that disagree.
const Grace = 10 * time.Minute

// headerLen is the length of what stands before the body; see lua/lib.lua.
const headerLen = 1 + 13 + 8 + 10

var errStored = errors.New("stored event has no header")

// Parse reads the value at the EventKey of ref.
func Parse(ref events.Ref, raw string) (*events.Stored, error) {
	stored, err := parse(ref, raw)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", ref, err)
	}
	return stored, nil
}

func parse(ref events.Ref, raw string) (*events.Stored, error) {
	stored, err := parseHeader(raw)
	if err != nil {
		return nil, err
	}
	if stored.State == events.Compacted {
		stored.ID, stored.CompanyUUID = ref.ID, ref.Company
		return stored, nil
	}
	body, trace, err := cutTrace(raw[headerLen:])
	if err != nil {
		return nil, err
	}
	stored.Body = Body(ref, body)
	stored.Event, err = events.ParseBody(stored.Body)
	stored.Trace = trace
	return stored, err
}

// traceMark ends what is kept of an event that was sent in a trace; a body ends with }.
const traceMark = 'T'

// cutTrace takes the trace off what is kept behind the header.
func cutTrace(kept string) (body string, trace tracing.Parent, err error) {
	n := len(kept) - tracing.Bytes - 1
	if n < 0 || kept[len(kept)-1] != traceMark {
		return kept, trace, nil
	}
	trace, err = tracing.ParseParent(kept[n : len(kept)-1])
	return kept[:n], trace, err
}

// HeadLength is how much of a value ParseHead needs for the type.
const HeadLength = headerLen + len(typeHead+`",`) + syntax.MaxEventType

const typeHead = `"event":"`

// ParseHead reads how the value at the EventKey of ref begins: state, time and number,
// and the type if raw goes so far.
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

// parseHeader reads what stands before the body.
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

// Every body begins with what its key says already: the id and the company are
// not kept twice.
func bodyHead(ref events.Ref) string {
	return `{"id":"` + ref.ID + `","companyUuid":"` + ref.Company.String() + `",`
}

// Encode is what is kept of an event behind the header.
func Encode(s *events.Stored) []byte {
	body := bytes.TrimPrefix(s.Body, []byte(bodyHead(s.Ref())))
	if s.Trace.IsZero() {
		return body
	}
	return append(s.Trace.AppendTo(append(make([]byte, 0, len(body)+tracing.Bytes+1), body...)), traceMark)
}

// Body is the body of an event of which Encode kept the rest, without a trace.
func Body(ref events.Ref, kept string) []byte { return []byte(bodyHead(ref) + kept) }
