package dispatcher

import (
	"testing"
	"time"

	"spendhook/events/operational"
	"spendhook/internal/redistest"
)

// A job step that panics has failed: the replica continues.
func TestAPanicInAJobIsContained(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	h.opts.Operational = nil // forward panics
	h.runJob(t.Context(), "replica", h.company, operational.ForwardJob)
}

// A company's jobs rest three times as long as a step took, at most a second.
func TestJobsRestAfterAStep(t *testing.T) {
	t.Parallel()
	for step, want := range map[time.Duration]time.Duration{0: 0, 10 * time.Millisecond: 30 * time.Millisecond, time.Minute: time.Second} {
		if got := restAfter(step); got != want {
			t.Errorf("after %v they rest %v, want %v", step, got, want)
		}
	}
}
