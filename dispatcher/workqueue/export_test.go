package workqueue

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Look looks at all owned partitions.
func (q *Queue) Look() { q.lookAt(q.owner.Owned()) }

// Quiet reports whether nothing is being looked at or served, and nothing waits for a turn that it may have.
func (q *Queue) Quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.shards {
		if s.running || s.looking || len(s.wanted) > 0 || s.schedule.Waiting() && !q.full.Load() {
			return false
		}
	}
	return true
}

// Loaded counts the loaded partitions.
func (q *Queue) Loaded() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.owned)
}

// Stopping reports whether nothing begins any more.
func (q *Queue) Stopping() bool { return q.ctx.Err() != nil }

// Full reports whether work waits for places.
func (q *Queue) Full() bool { return q.full.Load() }

// Wakeups counts the wake-ups that this replica enqueued, or could not enqueue.
func (q *Queue) Wakeups() float64 {
	return valueOf(q.metrics.enqueued) + valueOf(q.metrics.wakeupsFailed)
}

func valueOf(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

// AwaitWakeups waits until no partition is to be woken.
func (q *Queue) AwaitWakeups() { q.enqueuing.Wait() }

// Lag is the metric.
func (q *Queue) Lag() time.Duration { return q.lag(q.now()) }
