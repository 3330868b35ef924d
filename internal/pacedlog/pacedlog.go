// Package pacedlog limits the log lines about problems that come by the hundred during an outage.
// The first problem is logged at once, then one line a minute with the number of problems.
package pacedlog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"spendhook/internal/clock"
)

// every is how often problems of one kind are logged at most.
const every = time.Minute

// Problems logs the problems of one library: the first of each minute at warn level, with the
// number of problems since the last such line, and the others at debug level. Safe for
// concurrent use.
type Problems struct {
	log     *slog.Logger
	library string
	now     func() time.Time

	mu    sync.Mutex
	next  time.Time // when one is logged again
	since int       // left out since the last one
}

// New returns Problems that log to l; a nil now means time.Now.
func New(l *slog.Logger, library string, now func() time.Time) *Problems {
	return &Problems{log: l, library: library, now: clock.Or(now)}
}

// Debug logs what is no problem, at debug level.
func (p *Problems) Debug(ctx context.Context, message string) {
	p.log.DebugContext(ctx, "a library says", "library", p.library, "message", message)
}

// Log logs a problem.
func (p *Problems) Log(ctx context.Context, message string) {
	level, left := p.Level(slog.LevelWarn)
	p.log.Log(ctx, level, "a library reports a problem", "library", p.library, "message", message, "left_out", left)
}

// Level is for a problem that the caller logs: it returns the level of the line, which is first
// for the first problem of each minute and debug for the others, and the number of problems left
// out since the last first one.
func (p *Problems) Level(first slog.Level) (level slog.Level, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if now.Before(p.next) {
		p.since++
		return slog.LevelDebug, 0
	}
	left = p.since
	p.next, p.since = now.Add(every), 0
	return first, left
}
