package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/internal/tracing"
)

// logAttempt logs one attempt: at level debug when it succeeded or was not counted, at level warn when it
// is the first failure of its delivery or the delivery is dead, else at level info.
func (d *Dispatcher) logAttempt(ctx context.Context, o *outcome) {
	level := attemptLevel(o)
	if o.result == nil || !d.opts.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("company_uuid", o.ref.Company.String()),
		slog.String("event_id", o.ref.ID),
		slog.String("event", o.next.EventType),
		slog.String("subscriber_uuid", o.ref.Subscriber.String()),
		slog.Int("attempt", o.next.Count),
		slog.Float64("duration_ms", float64(o.result.Duration.Microseconds())/1000),
		slog.String("status", string(o.next.Status)),
	}
	if o.to.URL != nil {
		attrs = append(attrs, slog.String("server.address", o.to.URL.Hostname()), slog.String("server.port", o.to.Port()))
	}
	if sent := o.result.Sent[tracing.Header]; len(sent) == 1 { //nolint:staticcheck // it is sent in lower case
		attrs = append(attrs, slog.String("trace_id", tracing.TraceIDOf(sent[0])))
	}
	if o.result.StatusCode != 0 {
		attrs = append(attrs, slog.Int("http.response.status_code", o.result.StatusCode))
	}
	if o.result.Class != attempt.ClassNone {
		attrs = append(attrs, slog.String("error.type", string(o.result.Class)))
	}
	if o.next.Reason != "" {
		attrs = append(attrs, slog.String("reason", o.next.Reason))
	}
	if o.next.Due > 0 {
		attrs = append(attrs, slog.Time("next_attempt_at", time.UnixMilli(o.next.Due).UTC()))
	}
	if o.result.Err != nil && o.result.Class != attempt.ClassTransform { // that one may quote the event
		attrs = append(attrs, slog.String("exception.message", o.result.Err.Error()))
	}
	d.opts.Logger.LogAttrs(ctx, level, "delivery attempt", attrs...)
}

func attemptLevel(o *outcome) slog.Level {
	switch {
	case o.result == nil || o.result.Success() || o.result.Aborted():
		return slog.LevelDebug
	case o.next.Step == 1 || o.next.Status == delivery.StatusDead:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}
