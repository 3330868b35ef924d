package dispatcher

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/internal/tracing"
)

var noSpan = trace.SpanFromContext(context.Background())

// span starts a span under parent if parent is recorded. Otherwise it returns noSpan and
// allocates nothing.
func (d *Dispatcher) span(parent tracing.Parent, name string, kind trace.SpanKind) trace.Span {
	if d.opts.Tracer == nil || !parent.Recorded {
		return noSpan
	}
	_, span := d.opts.Tracer.Start(parent.Context(context.Background()), name, trace.WithSpanKind(kind))
	return span
}

// partOf returns the parent of the next span: span if it is recorded, else parent.
func partOf(span trace.Span, parent tracing.Parent) tracing.Parent {
	if own := tracing.OfSpan(span); own.Recorded {
		return own
	}
	return parent
}

func (d *Dispatcher) dispatchSpan(e *events.Stored) trace.Span {
	span := d.span(e.Trace, "dispatch event", trace.SpanKindConsumer)
	if span.IsRecording() {
		span.SetAttributes(
			semconv.MessagingSystemKey.String("spendhook"), semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("dispatch"),
			semconv.MessagingDestinationName("event"), semconv.MessagingMessageID(e.ID), semconv.MessagingMessageBodySize(len(e.Body)),
			attribute.String("spendhook.company_uuid", e.CompanyUUID.String()), attribute.String("spendhook.event", e.Type),
		)
	}
	return span
}

// attemptSpan starts the span of one POST to a receiver. The span leaves out path and query of
// the URL: they may contain secrets of the receiver.
func (d *Dispatcher) attemptSpan(w *work) trace.Span {
	span := d.span(w.trace, "POST", trace.SpanKindClient)
	if !span.IsRecording() {
		return span
	}
	span.SetAttributes(
		semconv.HTTPRequestMethodPost, semconv.HTTPRequestResendCount(w.base.Count),
		semconv.MessagingMessageID(w.ref.ID), attribute.String("spendhook.company_uuid", w.ref.Company.String()),
		attribute.String("spendhook.subscriber_uuid", w.ref.Subscriber.String()),
	)
	if to := w.to.URL; to != nil {
		port, _ := strconv.Atoi(w.to.Port()) // of a URL that was checked
		span.SetAttributes(semconv.ServerAddress(to.Hostname()), semconv.ServerPort(port), semconv.URLFull(to.Scheme+"://"+to.Host+"/REDACTED"))
	}
	return span
}

func endAttempt(span trace.Span, res *attempt.Result) {
	if span.IsRecording() {
		if res.StatusCode != 0 {
			span.SetAttributes(semconv.HTTPResponseStatusCode(res.StatusCode))
		}
		if res.Class != attempt.ClassNone {
			span.SetAttributes(semconv.ErrorTypeKey.String(string(res.Class)))
		}
		if !res.Success() {
			span.SetStatus(codes.Error, "")
		}
	}
	span.End()
}
