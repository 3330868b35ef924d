package schedule

import (
	"bytes"
	"cmp"
	"container/heap"
	"time"

	"github.com/google/uuid"
)

// turns is a heap of companies, the lowest start first.
type turns []*company

func (h turns) Len() int { return len(h) }
func (h turns) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].start, h[j].start), bytes.Compare(h[i].id[:], h[j].id[:])) < 0
}

func (h turns) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *turns) Push(x any) {
	c, _ := x.(*company)
	c.index = len(*h)
	*h = append(*h, c)
}

func (h *turns) Pop() any {
	last := (*h)[len(*h)-1]
	last.index = -1
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}

// timer is something that is to be done at a time.
type timer struct {
	id    uuid.UUID
	at    time.Time
	run   func()
	index int // in timers; -1: it is not set
}

// timers is a heap of timers, the earliest first.
type timers []*timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timers) Push(x any) {
	t, _ := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timers) Pop() any {
	last := (*h)[len(*h)-1]
	last.index = -1
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}

// set has a timer run at a time. An earlier time of it does not count any more.
func (s *Schedule) set(t *timer, at time.Time) {
	s.unset(t)
	t.at = at
	heap.Push(&s.timers, t)
}

func (s *Schedule) unset(t *timer) {
	if t.index >= 0 {
		heap.Remove(&s.timers, t.index)
	}
}
