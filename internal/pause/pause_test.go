package pause

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestUntil(t *testing.T) {
	t.Parallel()
	tries, heard := 0, 0
	wrong := errors.New("not yet")
	try := func() error {
		if tries++; tries < 3 {
			return wrong
		}
		return nil
	}
	if err := Until(t.Context(), time.Nanosecond, try, func(error) { heard++ }); err != nil || tries != 3 || heard != 2 {
		t.Errorf("%d tries, %d heard of, %v", tries, heard, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := Until(ctx, time.Hour, func() error { return wrong }, func(error) { cancel() })
	if !errors.Is(err, wrong) {
		t.Errorf("ended: %v", err)
	}
}
