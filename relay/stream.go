package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"spendhook/api/client"
	"spendhook/internal/pause"
)

const (
	// maxSent is how many events one request has.
	maxSent = 1000
	// askTime bounds one request, and settleTime the writing of its outcomes.
	askTime    = 20 * time.Second
	settleTime = 10 * time.Second
	// shortPause and longPause bound the wait after a refusal that passes.
	shortPause = 200 * time.Millisecond
	longPause  = 30 * time.Second
	// mostPause bounds how long a refused request is not repeated, whatever the answer asks for: a proxy may ask for an
	// hour, and the daemon be back in a minute.
	mostPause = time.Minute
	// maxAhead is how far the timestamp of a record may be ahead: a clock that goes wrong by less is waited for.
	maxAhead = 24 * time.Hour
	// maxUnsettled bounds the records of a stream, and maxBytes those of all streams of a source. Each stream may have
	// one record beyond.
	maxUnsettled = 4 * maxSent
	maxBytes     = 64 << 20
	// fullPause is how often a source looks whether a stream is still full.
	fullPause = 10 * time.Millisecond
)

// ErrTooOld means that a record is older than the daemon remembers ids. It is never dead, since it may be sent once the
// operator raises events.retention.
var ErrTooOld = errors.New("a record is older than events.retention of the daemon: it may be sent once that is longer, or be removed by hand")

// Stream sends the records of one place in which order matters: a partition, a queue, a table.
type Stream struct {
	sender *Sender
	settle func(context.Context, []Outcome) error
	woken  chan struct{} // of capacity 1: records were added, or the source does not wait any more

	mu     sync.Mutex // guards all below
	window *window
	ended  bool // Run has returned: nothing is added any more
}

// Add appends records, in their order. It never waits: the source stops reading while the stream is full. It is safe for
// concurrent use with Run.
func (s *Stream) Add(ctx context.Context, records ...*Record) {
	for _, r := range records {
		if ctx.Err() != nil { // a mapping may take long
			return
		}
		s.sender.prepare(ctx, r)
	}
	s.mu.Lock()
	if !s.ended {
		for _, r := range records {
			s.sender.bytes.Add(r.size())
			s.window.add(r)
		}
	}
	s.mu.Unlock()
	s.wake()
}

// wake has Run look for what it may send.
func (s *Stream) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Full reports whether the source must stop reading. It is safe for concurrent use.
func (s *Stream) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.window.size >= maxUnsettled || s.window.size > 0 && s.sender.bytes.Load() >= maxBytes
}

// WaitWhileFull waits until the stream is not full; false: ctx ended before. It is safe for concurrent use.
func (s *Stream) WaitWhileFull(ctx context.Context) bool {
	for s.Full() {
		if !pause.For(ctx, fullPause) {
			return false
		}
	}
	return true
}

// Run sends until ctx ends, and returns nil after the outcomes of its last request are settled; or ErrTooOld, or the
// error of settle.
func (s *Stream) Run(ctx context.Context) error {
	defer s.sender.remove(s)
	refusals := 0 // of whole requests in a row
	for {
		if ctx.Err() != nil {
			return nil
		}
		r, next := s.sender.take(s)
		if len(r.lines) == 0 {
			if !s.wait(ctx, next) {
				return nil
			}
			continue
		}
		progress, err := s.send(ctx, r, refusals)
		if err != nil {
			return err
		}
		if progress {
			refusals = 0
		} else {
			refusals++
		}
	}
}

// wait returns when Run was woken or next has come; false when ctx ended.
func (s *Stream) wait(ctx context.Context, next time.Time) bool {
	var due <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(max(next.Sub(s.sender.now()), time.Millisecond))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-s.woken:
	case <-due:
	case <-ctx.Done():
		return false
	}
	return true
}

// request is what a stream sends at a time.
type request struct {
	lines   []*line
	records []*Record // the first ones of lines
	probe   bool      // it finds out whether the daemon, which asked to wait, accepts again
}

// send sends records, and settles those that have an outcome. progress is whether any of them has.
func (s *Stream) send(ctx context.Context, r request, refusals int) (progress bool, err error) {
	begun := s.sender.now()
	// The end of ctx does not cut off a request, and what is answered is settled.
	ctx = context.WithoutCancel(ctx)
	asking, cancel := context.WithTimeout(ctx, askTime)
	answers := s.ask(asking, r)
	cancel()
	ctx, cancel = context.WithTimeout(ctx, settleTime)
	defer cancel()
	var accepted, dead []Outcome
	s.mu.Lock()
	for i, l := range r.lines {
		a := answers[i]
		switch {
		case a.tooOld:
			err = fmt.Errorf("%w: event %s of %s", ErrTooOld, r.records[i].event.ID, r.records[i].event.Timestamp.Format(time.RFC3339))
		case a.wait > 0:
			s.window.delay(l, begun.Add(max(a.wait, backoff(refusals))))
		case a.dead != "":
			dead = append(dead, Outcome{Record: r.records[i], Dead: a.dead, line: l})
		default:
			accepted = append(accepted, Outcome{Record: r.records[i], duplicate: a.duplicate, line: l})
		}
		progress = progress || a.wait == 0
	}
	s.mu.Unlock()
	for _, outcomes := range [][]Outcome{accepted, dead} { // a dead record that cannot be written holds up no accepted one
		if settleErr := s.end(ctx, outcomes); settleErr != nil {
			return progress, settleErr
		}
	}
	return progress, err
}

// end settles records, and removes them.
func (s *Stream) end(ctx context.Context, outcomes []Outcome) error {
	if len(outcomes) == 0 {
		return nil
	}
	if err := s.settle(ctx, outcomes); err != nil {
		return err
	}
	s.sender.count(ctx, outcomes)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		s.sender.bytes.Add(-o.size())
		s.window.end(o.line)
	}
	return nil
}

// backoff doubles from shortPause to longPause.
func backoff(refusals int) time.Duration {
	return min(shortPause<<min(refusals, 10), longPause)
}

// answer is what the daemon said of one event.
type answer struct {
	dead      string        // why it will never be accepted
	wait      time.Duration // until it may be accepted; 0: it has an outcome
	tooOld    bool
	duplicate bool
}

// ask sends records and returns an answer for each.
func (s *Stream) ask(ctx context.Context, r request) []answer {
	answers := make([]answer, len(r.records))
	var list []client.EventInput
	var asked []int // places of the events of list
	for i, record := range r.records {
		if record.dead != "" {
			answers[i].dead = record.dead
		} else {
			list, asked = append(list, record.event), append(asked, i)
		}
	}
	if len(list) == 0 {
		return answers
	}
	results, err := s.sender.emitter.SendAll(ctx, list)
	pause := shortPause
	if refusal, ok := errors.AsType[*client.Error](err); ok {
		pause = max(pause, min(refusal.RetryAfter, mostPause))
	}
	for i, place := range asked {
		a := s.sender.read(&list[i], results[i], pause)
		if refusal := results[i].Error; err == nil && refusal != nil && (a.wait > 0 || a.tooOld) {
			err = &itemError{refusal}
		}
		answers[place] = a
	}
	read := slices.ContainsFunc(results, func(r client.EventItemResult) bool { return r.Status != "" })
	s.sender.answered(ctx, err, r.probe, read)
	return answers
}

// read says what a result means. pause is the wait after a request without results.
func (s *Sender) read(event *client.EventInput, result client.EventItemResult, pause time.Duration) answer {
	switch result.Status {
	case client.EventItemResultStatusACCEPTED:
		return answer{}
	case client.EventItemResultStatusDUPLICATE:
		return answer{duplicate: true}
	case client.EventItemResultStatusCONFLICT, client.EventItemResultStatusREJECTED:
	default:
		return answer{wait: pause}
	}
	refusal := cmp.Or(result.Error, &client.ItemError{Code: string(result.Status), Message: "refused without a reason"})
	if refusal.RetryAfter != nil {
		return answer{wait: max(time.Duration(*refusal.RetryAfter)*time.Second, shortPause)}
	}
	code := func(code string) bool {
		return refusal.Code == code || refusal.Errors != nil &&
			slices.ContainsFunc(*refusal.Errors, func(e client.FieldError) bool { return e.Code == code })
	}
	switch {
	case code("EVENT_TOO_OLD"):
		return answer{tooOld: true}
	case code("COMPANY_MISMATCH"): // the mapping lets only the source's companies pass, so the token is wrong
		return answer{wait: longPause}
	case code("EVENT_IN_FUTURE") && event.Timestamp.Before(s.now().Add(maxAhead)):
		return answer{wait: longPause}
	}
	return answer{dead: reason(refusal)}
}

// itemError is the refusal of one event as an error.
type itemError struct{ *client.ItemError }

// Error is the reason.
func (e *itemError) Error() string { return reason(e.ItemError) }

func reason(refusal *client.ItemError) string {
	parts := []string{refusal.Code + ": " + refusal.Message}
	if refusal.Errors != nil {
		for _, e := range *refusal.Errors {
			if !strings.Contains(refusal.Message, e.Message) {
				parts = append(parts, e.Field+": "+e.Message)
			}
		}
	}
	return strings.Join(parts, "; ")
}
