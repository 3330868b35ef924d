package publish

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestRefusalsCountForAMinute(t *testing.T) {
	t.Parallel()
	var r refusals
	acme, began := uuid.New(), time.Unix(1795000000, 0)
	for _, err := range []error{nil, ErrConflict, errMemoryFull, fmt.Errorf("wrapped: %w", errMemoryFull)} {
		r.note(acme, Result{Err: err}, began)
	}
	if n := r.count(began); n != 0 {
		t.Errorf("%d companies without a refusal at their share", n)
	}
	r.note(acme, Result{Err: ErrBacklogFull}, began)
	r.note(uuid.New(), Result{Err: ErrStorageFull}, began)
	r.note(acme, Result{Err: ErrBacklogFull}, began.Add(30*time.Second))
	if n := r.count(began.Add(time.Minute)); n != 2 {
		t.Errorf("%d companies after a minute, want 2", n)
	}
	if n := r.count(began.Add(61 * time.Second)); n != 1 {
		t.Errorf("%d companies, want the one that was refused again", n)
	}
	if n := r.count(began.Add(2 * time.Minute)); n != 0 {
		t.Errorf("%d companies after two minutes", n)
	}
}
