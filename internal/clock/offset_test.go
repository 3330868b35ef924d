package clock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"spendhook/internal/clock"
)

func TestOffset(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		there, back, ahead time.Duration // how long request and answer take
		want               time.Duration
	}{
		{time.Millisecond, time.Millisecond, 0, 0},
		{time.Millisecond, time.Millisecond, 3 * time.Second, 2999 * time.Millisecond},
		{time.Millisecond, time.Millisecond, -time.Hour, -time.Hour + time.Millisecond},
		{0, 4 * time.Second, 0, 0}, // a slow answer proves nothing
		{4 * time.Second, 0, 0, 0},
		{0, 4 * time.Second, -time.Second, -time.Second},
	} {
		at := time.Unix(1795000000, 0)
		now := func() time.Time { return at }
		calls := 0
		read := func(context.Context) (time.Time, error) {
			if calls++; calls == 1 { // a slower one does not count
				at = at.Add(time.Minute)
			}
			at = at.Add(tc.there)
			other := at.Add(tc.ahead)
			at = at.Add(tc.back)
			return other, nil
		}
		ahead, fastest, err := clock.Offset(t.Context(), now, read)
		if err != nil || ahead != tc.want || fastest != tc.there+tc.back {
			t.Errorf("%+v: %v, %v, %v", tc, ahead, fastest, err)
		}
	}
	lost := errors.New("lost")
	if _, _, err := clock.Offset(t.Context(), time.Now, func(context.Context) (time.Time, error) { return time.Time{}, lost }); !errors.Is(err, lost) {
		t.Errorf("%v, want %v", err, lost)
	}
}
