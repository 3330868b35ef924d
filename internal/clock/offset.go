package clock

import (
	"context"
	"time"
)

// reads is how often Offset reads the other clock. The fastest read is the most exact.
const reads = 5

// Offset returns by how much another clock is at least ahead of now; negative when it is behind. It may
// differ by up to the time of the fastest read more, which is also returned. An error is the one of read.
func Offset(ctx context.Context, now func() time.Time, read func(context.Context) (time.Time, error)) (ahead, fastest time.Duration, err error) {
	for i := range reads {
		began := now()
		other, err := read(ctx)
		if err != nil {
			return 0, 0, err
		}
		took := now().Sub(began)
		if i > 0 && took >= fastest {
			continue
		}
		ahead, fastest = other.Sub(began.Add(took/2)), took
	}
	// The other clock was read at some time between the request and the answer.
	return ahead - min(max(ahead, -fastest/2), fastest/2), fastest, nil
}
