// Package pacedlog limits the log lines about problems that come by the hundred during an outage,
// to one line a minute for each kind of problem.
package pacedlog

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
)

// Problems logs problems of one kind: the first of each minute. Safe for concurrent use.
type Problems struct {
	log     *slog.Logger
	level   slog.Level
	message string
	pace    rate.Sometimes
}

// New returns Problems that log lines with a level and a message to l.
func New(l *slog.Logger, level slog.Level, message string) *Problems {
	return &Problems{log: l, level: level, message: message, pace: rate.Sometimes{Interval: time.Minute}}
}

// OfLibrary returns Problems that a library reports. The field "message" has its text.
func OfLibrary(l *slog.Logger, library string) *Problems {
	return New(l.With(slog.String("library", library)), slog.LevelWarn, "a library reports a problem")
}

// Log logs a problem with fields.
func (p *Problems) Log(ctx context.Context, fields ...any) {
	p.pace.Do(func() { p.log.Log(ctx, p.level, p.message, fields...) }) //nolint:sloglint // a constant of the caller
}
