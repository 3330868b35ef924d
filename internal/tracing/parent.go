package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is where a request says which trace it is part of (W3C Trace Context), in lower
// case as that wants it sent.
const Header = "traceparent"

// maxHeader is the most that is read of a traceparent, in bytes: one has 55, and a
// later version of it may have more.
const maxHeader = 128

// Parent is a span of which something else is a part, as it is kept with an event. The
// zero Parent is none.
type Parent struct {
	TraceID trace.TraceID
	SpanID  trace.SpanID
	Flags   trace.TraceFlags

	// Recorded says that the span is one of this system, and is recorded: what follows
	// from it is recorded too. The span of a caller never is, whatever its flags say.
	Recorded bool
}

// OfRequest is the span that what a request asks for is part of: the request's own when
// that is recorded, else the one that the caller names, else none.
func OfRequest(r *http.Request) Parent {
	if own := OfSpan(trace.SpanFromContext(r.Context())); own.Recorded {
		return own
	}
	return ofContext(caller(context.Background(), r.Header)) //nolint:contextcheck // the request's own span is not the caller's
}

// OfSpan is the zero Parent unless the span is recorded.
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

// IsZero reports whether there is none.
func (p Parent) IsZero() bool { return !p.TraceID.IsValid() }

// Context has the parent as its span, so that spans begun in it are recorded if that is.
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

// TraceIDOf is the trace of a traceparent that Traceparent returned; "" of "".
func TraceIDOf(traceparent string) string {
	if len(traceparent) < len("00-")+32 {
		return ""
	}
	return traceparent[len("00-"):][:32]
}

// Bytes is the length of a Parent as AppendTo writes it.
const Bytes = 16 + 8 + 1

// recorded is the bit of the flags, which W3C has no use for, that says Recorded.
const recorded = 0x80

// AppendTo appends the parent in few bytes.
func (p Parent) AppendTo(b []byte) []byte {
	flags := byte(p.Flags)
	if p.Recorded {
		flags |= recorded
	}
	return append(append(append(b, p.TraceID[:]...), p.SpanID[:]...), flags)
}

var errParent = errors.New("kept trace is damaged")

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

// traceparent reads that header alone: what a caller's tracestate or baggage says is
// neither read nor passed on.
type traceparent struct{}

// Extract adds the caller's span to ctx, if it names one.
func (traceparent) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	given, ok := carrier.(propagation.HeaderCarrier)
	if !ok {
		return ctx
	}
	return caller(ctx, http.Header(given))
}

// Inject does nothing: an answer names no trace.
func (traceparent) Inject(context.Context, propagation.TextMapCarrier) {}

// Fields are the headers that are read.
func (traceparent) Fields() []string { return []string{Header} }

func caller(ctx context.Context, header http.Header) context.Context {
	values := header["Traceparent"]
	if len(values) != 1 || len(values[0]) > maxHeader {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{Header: values[0]})
}
