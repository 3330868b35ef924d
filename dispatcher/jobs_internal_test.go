package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/redistest"
)

// A job step that panics has failed: the replica repeats the step later, and works on.
func TestAPanicInAJobIsContained(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	step := func(context.Context, uuid.UUID, uuid.UUID) (time.Duration, error) { panic("an error in our code") }
	if _, err := h.runStep(t.Context(), step, h.company, uuid.New()); err == nil {
		t.Error("the panic is no error")
	}
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
