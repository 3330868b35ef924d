package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is the header with the trace of a request (W3C Trace Context), in lower case as the
// specification requires.
const Header = "traceparent"

// maxHeader bounds a traceparent, in bytes. Version 00 has 55; later versions may have more.
const maxHeader = 128

// Parent is the parent span of an event's work, as stored with the event. The zero Parent means
// that there is none.
type Parent struct {
	TraceID trace.TraceID
	SpanID  trace.SpanID
	Flags   trace.TraceFlags

	// Recorded says that the span belongs to this system and is recorded. Its children are
	// recorded too. The span of a caller never counts as recorded, whatever its flags are.
	Recorded bool
}

// OfRequest is the parent for the work of a request: the request's own span if it is recorded,
// else the span in the caller's header, else none.
func OfRequest(r *http.Request) Parent {
	if own := OfSpan(trace.SpanFromContext(r.Context())); own.Recorded {
		return own
	}
	return ofContext(caller(context.Background(), r.Header)) //nolint:contextcheck // the request's own span is not the caller's
}

// OfSpan returns the span as a Parent, and the zero Parent if the span is not recorded.
func OfSpan(span trace.Span) Parent {
	if !span.IsRecording() {
		return Parent{}
	}
	of := span.SpanContext()
	return Parent{TraceID: of.TraceID(), SpanID: of.SpanID(), Flags: of.TraceFlags(), Recorded: of.IsSampled()}
}

func ofContext(ctx context.Context) Parent {
	of := trace.SpanContextFromContext(ctx)
	return Parent{TraceID: of.TraceID(), SpanID: of.SpanID(), Flags: of.TraceFlags()}
}

// IsZero reports whether there is no parent.
func (p Parent) IsZero() bool { return !p.TraceID.IsValid() }

// Context returns a context with the parent as its span. Spans started in it are recorded if
// the parent is.
func (p Parent) Context(ctx context.Context) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: p.TraceID, SpanID: p.SpanID, TraceFlags: p.Flags,
	}))
}

// Traceparent is the parent as a header; "" for none.
func (p Parent) Traceparent() string {
	if p.IsZero() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", p.TraceID, p.SpanID, p.Flags)
}

// TraceIDOf returns the trace id of a header that Traceparent returned, and "" for "".
func TraceIDOf(traceparent string) string {
	if len(traceparent) < len("00-")+32 {
		return ""
	}
	return traceparent[len("00-"):][:32]
}

// Bytes is the number of bytes that AppendTo appends.
const Bytes = 16 + 8 + 1

// recorded is the bit for Recorded in the stored flags. W3C does not use this bit.
const recorded = 0x80

// AppendTo appends the parent in few bytes.
func (p Parent) AppendTo(b []byte) []byte {
	flags := byte(p.Flags)
	if p.Recorded {
		flags |= recorded
	}
	return append(append(append(b, p.TraceID[:]...), p.SpanID[:]...), flags)
}

var errParent = errors.New("stored trace context is damaged")

// ParseParent reads what AppendTo wrote.
func ParseParent(kept string) (p Parent, err error) {
	if len(kept) != Bytes {
		return p, errParent
	}
	copy(p.TraceID[:], kept)
	copy(p.SpanID[:], kept[16:])
	flags := kept[Bytes-1]
	p.Flags, p.Recorded = trace.TraceFlags(flags&^recorded), flags&recorded != 0
	if !p.TraceID.IsValid() || !p.SpanID.IsValid() {
		return Parent{}, errParent
	}
	return p, nil
}

// caller adds the caller's span to ctx, if the header names one. A caller's tracestate and
// baggage are ignored and not forwarded.
func caller(ctx context.Context, header http.Header) context.Context {
	values := header["Traceparent"]
	if len(values) != 1 || len(values[0]) > maxHeader {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: values[0]})
}
