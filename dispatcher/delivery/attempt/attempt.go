// Package attempt describes one POST of a delivery: its result, and its entry in the
// delivery's log.
package attempt

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/tracing"
)

// maxLog bounds the attempts kept with a delivery: two full runs of the
// default schedule.
const maxLog = 20

// maxTransform bounds what is kept of the error of a transform, in characters.
const maxTransform = 300

// Attempt is one POST of a delivery.
type Attempt struct {
	Number       int    `json:"n"` // 1 for the first attempt of the delivery; replays continue the count
	StartedAt    int64  `json:"t"` // unix ms
	DurationMs   int64  `json:"d"`
	StatusCode   int    `json:"c,omitzero"`  // 0 when no response came
	Error        string `json:"e,omitempty"` // the class of the failure; empty: none
	ResponseBody []byte `json:"b,omitempty"` // at most the first 1 KiB, of the last attempt only
	Transform    string `json:"f,omitempty"` // why the transform failed, of the last attempt only; else empty
	Sent         string `json:"h,omitempty"` // sentOf(headers of the request); empty: no request was sent
	Signed       int64  `json:"s,omitzero"`  // webhook-timestamp, if it is not the second of StartedAt
	Waited       Waited `json:"w,omitempty"`
	Timing       Timing `json:"p,omitzero"`
	Trace        string `json:"x,omitempty"` // the traceparent of the request; empty: none
	To           []byte `json:"u,omitempty"` // packTo(version of the URL, reached address)

	Unknown jsontext.Value `json:",embed"` // what a newer release wrote
}

// New makes the log entry of an attempt. It keeps the answer of a failure only.
func New(number int, res Result) Attempt {
	a := Attempt{
		Number: number, StartedAt: res.StartedAt.UnixMilli(), DurationMs: res.Duration.Milliseconds(),
		StatusCode: res.StatusCode, Error: string(res.Class), Sent: sentOf(res.Sent), Waited: res.Waited, Timing: res.Timing,
		To: packTo(res.URLVersion, res.Address),
	}
	if trace := res.Sent[headerTrace]; len(trace) == 1 { //nolint:staticcheck // it is sent in lower case
		a.Trace = trace[0]
	}
	if signed := res.Sent[headerTimestamp]; len(signed) == 1 && signed[0] != a.timestamp() { //nolint:staticcheck // it is sent in lower case
		a.Signed, _ = strconv.ParseInt(signed[0], 10, 64) // the Sender made it
	}
	if !res.Success() {
		a.ResponseBody = res.ResponseBody
	}
	if res.Class == ClassTransform {
		a.Transform = strings.ToValidUTF8(fmt.Sprintf("%.*s", maxTransform, res.Err), "")
	}
	return a
}

// timestamp is the webhook-timestamp of the attempt.
func (a *Attempt) timestamp() string {
	return strconv.FormatInt(cmp.Or(a.Signed, time.UnixMilli(a.StartedAt).Unix()), 10)
}

// Append returns a log with one more attempt. The log has the latest maxLog attempts, and
// only the last one keeps its answer.
func Append(log []Attempt, number int, res Result) []Attempt {
	log = slices.Clone(log)
	for i := range log {
		log[i].ResponseBody, log[i].Transform = nil, ""
	}
	log = append(log, New(number, res))
	return log[max(0, len(log)-maxLog):]
}

// packTo packs the version of a URL and the address that was reached into at most 20 bytes; nil for version
// 0 without an address.
func packTo(version int, address netip.Addr) []byte {
	if version == 0 && !address.IsValid() {
		return nil
	}
	packed := binary.AppendUvarint(nil, uint64(min(version, math.MaxUint16))) //nolint:gosec // not negative
	return append(packed, address.Unmap().AsSlice()...)
}

// Destination returns the version of the subscriber's URL and the address that was reached; the zero
// address when there was none, or a proxy made the connection.
func (a *Attempt) Destination() (urlVersion int, address netip.Addr) {
	version, n := binary.Uvarint(a.To)
	address, _ = netip.AddrFromSlice(a.To[max(n, 0):])
	return int(version), address //nolint:gosec // see packTo
}

// TraceID is the id of the attempt's trace; "" without a trace.
func (a *Attempt) TraceID() string { return tracing.TraceIDOf(a.Trace) }

// Waited is how long a delivery waited before an attempt, in ms, by what it waited for.
// Waits of less than a millisecond are left out.
type Waited map[string]int64

// Add adds a wait.
func (w *Waited) Add(reason string, d time.Duration) {
	if d < time.Millisecond {
		return
	}
	if *w == nil {
		*w = make(Waited, 1)
	}
	(*w)[reason] += d.Milliseconds()
}

// Timing is the duration of each part of an attempt, in µs: name resolution, TCP, the TLS
// handshake, the wait for the first byte of the answer, and the rest of the answer.
type Timing [5]int64

// NewTiming makes a Timing of the durations of the parts.
func NewTiming(dns, connect, tls, firstByte, body time.Duration) Timing {
	return Timing{dns.Microseconds(), connect.Microseconds(), tls.Microseconds(), firstByte.Microseconds(), body.Microseconds()}
}

// WaitForConnection is the part of the attempt's duration that Timing does not have, in µs: the
// wait for a connection.
func (a *Attempt) WaitForConnection() int64 {
	rest := a.DurationMs * 1000
	for _, part := range a.Timing {
		rest -= part
	}
	if rest < 1000 { // within the rounding of the duration
		return 0
	}
	return rest
}
