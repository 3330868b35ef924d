package dispatcher

import (
	"testing"
	"time"
)

// A company's jobs rest three times as long as a step took, at most a second.
func TestJobsRestAfterAStep(t *testing.T) {
	t.Parallel()
	for step, want := range map[time.Duration]time.Duration{0: 0, 10 * time.Millisecond: 30 * time.Millisecond, time.Minute: time.Second} {
		if got := restAfter(step); got != want {
			t.Errorf("after %v they rest %v, want %v", step, got, want)
		}
	}
}
