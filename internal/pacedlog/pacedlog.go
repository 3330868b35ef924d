// Package pacedlog limits the log lines about problems that come by the hundred during an outage.
// The first problem is logged at once, then one line a minute with the number of problems.
package pacedlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// every is how often problems of one kind are logged at most.
const every = time.Minute

// Problems logs problems of one kind: the first of each minute, with the number of problems since
// the last such line, and the others at debug level. Safe for concurrent use.
type Problems struct {
	log     *slog.Logger
	level   slog.Level
	message string

	mu    sync.Mutex
	next  time.Time // when one is logged again
	since int       // left out since the last one
}

// New returns Problems that log lines with a level and a message to l.
func New(l *slog.Logger, level slog.Level, message string) *Problems {
	return &Problems{log: l, level: level, message: message}
}

// OfLibrary returns Problems that a library reports. The field "message" has its text.
func OfLibrary(l *slog.Logger, library string) *Problems {
	return New(l.With(slog.String("library", library)), slog.LevelWarn, "a library reports a problem")
}

// Log logs a problem with fields.
func (p *Problems) Log(ctx context.Context, fields ...any) {
	level, left := p.level, 0
	p.mu.Lock()
	if now := time.Now(); now.Before(p.next) { //nolint:forbidigo // paces lines
		level = slog.LevelDebug
		p.since++
	} else {
		left = p.since
		p.next, p.since = now.Add(every), 0
	}
	p.mu.Unlock()
	p.log.Log(ctx, level, p.message, append(fields, slog.Int("left_out", left))...) //nolint:sloglint // a constant of the caller
}
