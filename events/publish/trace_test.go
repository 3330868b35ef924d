package publish_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"spendhook/events"
	"spendhook/events/eventtest"
	"spendhook/internal/partition"
	"spendhook/internal/tracing"
)

// The trace of an event is stored beside it. Its bytes are counted, and it does not matter for
// duplicates.
func TestATraceIsKeptBesideTheEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// Traces that end with the last byte of a body, and with the trace mark.
	traces := []tracing.Parent{
		{TraceID: trace.TraceID{1, '}'}, SpanID: trace.SpanID{7: 'T'}, Flags: 1, Recorded: true},
		{TraceID: trace.TraceID{15: 'T'}, SpanID: trace.SpanID{1}},
	}
	bytes := func() int64 {
		n, err := b.Redis.HGet(t.Context(), partition.Key(newEvent("").CompanyUUID, "c:"+newEvent("").CompanyUUID.String()), "bytes").Int64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b.Accept(t, newEvent("evt_0"))
	without := bytes()
	for i, of := range traces {
		e := newEvent([]string{"evt_1", "evt_2"}[i])
		e.Trace = of
		b.Accept(t, e)
		stored, err := b.Reader.Get(t.Context(), events.Ref{Company: e.CompanyUUID, ID: e.ID})
		if err != nil || stored.Trace != of || string(stored.Body) != eventtest.Body(t, e) {
			t.Errorf("kept %+v, %s, %v", stored.Trace, stored.Body, err)
		}
		if n := bytes(); n != without*int64(i+2)+26*int64(i+1) {
			t.Errorf("%d bytes are counted, after %d of an event without a trace", n, without)
		}
	}
	same, other, first := newEvent("evt_1"), newEvent("evt_0"), newEvent("evt_3")
	other.Trace = traces[0]
	again := first
	again.Trace = traces[1]
	if said := b.Accept(t, same, other, first, again); !cmp.Equal(said, []string{"DUPLICATE", "DUPLICATE", "ACCEPTED", "DUPLICATE"}) {
		t.Errorf("in other traces: %v", said)
	}
	same.ErrorCode = "E"
	same.Trace = traces[0]
	if said := b.Accept(t, same); said[0] != "CONFLICT" {
		t.Errorf("with other content: %v", said)
	}
}
