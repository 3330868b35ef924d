package workqueue

import (
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// maxPassed is how many of the companies that claims passed by are remembered.
const maxPassed = 1 << 16

// notePassed notes that a claim passed companies by because they hold their share of this
// replica's memory: their receivers hold up their work.
func (q *Queue) notePassed(companies []uuid.UUID) {
	q.metrics.passed.Add(float64(len(companies)))
	now := time.Now() //nolint:forbidigo // for metrics
	for _, c := range companies {
		q.passed.Add(c, now)
		if q.opts.Admission.Passed(c) {
			q.Kick(partition.Of(c))
		}
	}
}

// PassedSince reports whether a claim passed the company by, at the time or later, because
// its deliveries held its share of this replica's memory.
func (q *Queue) PassedSince(company uuid.UUID, at time.Time) bool {
	last, ok := q.passed.Peek(company)
	return ok && !last.Before(at)
}
