package tracing

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampler has each request that comes in decided on as a trace of its own: by what the
// operator says in OTEL_TRACES_SAMPLER, and not by the flag or the id of the trace that
// its caller names, with which a company could have all that it does recorded. What
// follows within this system does as was decided.
func sampler() sdktrace.Sampler {
	own := alone{sdktrace.NewTracerProvider().Tracer("")}
	return sdktrace.ParentBased(own, sdktrace.WithRemoteParentSampled(own), sdktrace.WithRemoteParentNotSampled(own))
}

// alone decides as a provider does that has only the environment's sampler, for a new
// trace.
type alone struct{ tracer trace.Tracer }

// ShouldSample implements sdktrace.Sampler.
func (a alone) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	_, span := a.tracer.Start(context.Background(), p.Name, trace.WithSpanKind(p.Kind))
	decision := sdktrace.Drop
	if span.SpanContext().IsSampled() {
		decision = sdktrace.RecordAndSample
	}
	return sdktrace.SamplingResult{Decision: decision}
}

// Description implements sdktrace.Sampler.
func (alone) Description() string { return "EnvironmentOfNewTraces" }
