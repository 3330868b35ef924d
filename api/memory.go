package api

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// answerMemory bounds the bytes of the answers under way in this process. The bytes of an
// answer are reserved before its content is read, and released after it is written. A company
// that holds more than is left free gets no more. So one company may use half of the memory,
// and some is always left for others. It is safe for concurrent use.
type answerMemory struct {
	mu      sync.Mutex
	free    int64
	held    map[string]int64 // by account
	waiting []*reservation   // in the order of their requests
}

// reservation is the memory that one answer has, or waits for. A nil reservation has none.
type reservation struct {
	memory  *answerMemory
	account string
	bytes   int64
	ready   chan struct{} // closed when the bytes are reserved
}

func newAnswerMemory(bytes int64) *answerMemory {
	return &answerMemory{free: bytes, held: map[string]int64{}}
}

// reserve waits for the bytes, no longer than patience. The error is a 503.
func (m *answerMemory) reserve(ctx context.Context, account string, bytes int64, patience time.Duration) (*reservation, error) {
	r := &reservation{m, account, bytes, make(chan struct{})}
	m.mu.Lock()
	m.waiting = append(m.waiting, r)
	m.grant()
	m.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-r.ready:
	case <-timer.C:
		return r, m.withdraw(r)
	case <-ctx.Done():
		return r, m.withdraw(r)
	}
	return r, nil
}

// withdraw removes a reservation whose caller has stopped waiting.
func (m *answerMemory) withdraw(r *reservation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.waiting, r)
	if i < 0 {
		return nil // it was granted just now
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.grant()
	return newProblem(http.StatusServiceUnavailable, "OVERLOADED", "The memory for answers is used up, by the company or in total; try again.").
		with("Retry-After", "1")
}

// shrinkTo releases all but that many bytes.
func (r *reservation) shrinkTo(bytes int64) {
	if r == nil {
		return
	}
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	less := r.bytes - bytes
	if less <= 0 {
		return
	}
	r.bytes = bytes
	m.free += less
	if m.held[r.account] -= less; m.held[r.account] == 0 {
		delete(m.held, r.account)
	}
	m.grant()
}

// grant reserves free memory in the order of the requests. It skips companies that hold more
// than would be left free, but not a company that holds nothing: small answers of others would
// take the memory for its large one again and again.
func (m *answerMemory) grant() {
	next := false // a company that holds nothing is next
	m.waiting = slices.DeleteFunc(m.waiting, func(r *reservation) bool {
		if next || m.held[r.account] > m.free-r.bytes {
			next = next || m.held[r.account] == 0
			return false
		}
		m.free -= r.bytes
		m.held[r.account] += r.bytes
		close(r.ready)
		return true
	})
}
