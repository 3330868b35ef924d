package attempt

import "time"

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
// handshake, the wait for the first byte of the answer, and the rest of the answer. The rest
// of the attempt's duration is the wait for a connection.
type Timing [5]int64

// NewTiming makes a Timing of the durations of the parts.
func NewTiming(dns, connect, tls, firstByte, body time.Duration) Timing {
	return Timing{dns.Microseconds(), connect.Microseconds(), tls.Microseconds(), firstByte.Microseconds(), body.Microseconds()}
}

// WaitForConnection is how long the attempt waited for a connection beyond what is in its
// Timing, in µs.
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
