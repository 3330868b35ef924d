package audit

import "time"

// Within sets how long Record waits for Redis.
func Within(d time.Duration) func(*Options) {
	return func(o *Options) { o.within = d }
}
