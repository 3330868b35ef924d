package dispatcher

import (
	"net/url"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/requests"
	"spendhook/events"
	"spendhook/internal/tracing"
	"spendhook/subscribers"
)

// spans starts and ends the spans of an event and of one attempt.
func spans(d *Dispatcher, e *events.Stored, w *work, res *attempt.Result) tracing.Parent {
	dispatch := d.dispatchSpan(e)
	w.trace = partOf(dispatch, e.Trace)
	dispatch.End()
	attempt := d.attemptSpan(w)
	of := partOf(attempt, w.trace)
	endAttempt(attempt, res)
	return of
}

// unrecorded is an event of a trace that is not recorded, with dispatchers that record no
// spans: tracing off, and a tracer that drops all spans.
func unrecorded() (map[string]*Dispatcher, *events.Stored, *work) {
	caller := tracing.Parent{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Flags: trace.FlagsSampled}
	return map[string]*Dispatcher{
		"off": {}, "on": {opts: Options{Tracer: noop.NewTracerProvider().Tracer("")}},
	}, &events.Stored{Event: events.Event{Trace: caller}}, &work{to: &requests.Target{Subscriber: &subscribers.Subscriber{}, URL: &url.URL{}}}
}

// An event without recorded spans allocates nothing for tracing.
func TestUnrecordedSpansAllocateNothing(t *testing.T) {
	dispatchers, e, w := unrecorded()
	for name, d := range dispatchers {
		if n := testing.AllocsPerRun(100, func() { spans(d, e, w, &attempt.Result{}) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if of := spans(d, e, w, &attempt.Result{}); of != e.Trace {
			t.Errorf("%s: the attempt is part of %+v", name, of)
		}
	}
}

func BenchmarkNotRecorded(b *testing.B) {
	dispatchers, e, w := unrecorded()
	for name, d := range dispatchers {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				spans(d, e, w, &attempt.Result{})
			}
		})
	}
}
