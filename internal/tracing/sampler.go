package tracing

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampler decides whether to record a request, as for a new trace, by OTEL_TRACES_SAMPLER. It
// ignores the sampled flag and the trace id of the caller; otherwise a company could force the
// recording of all its requests. It decides before a span is made, so that requests that are
// not recorded cost almost nothing. It uses a provider with the environment's sampler.
type sampler struct{ tracer trace.Tracer }

func newSampler() sampler { return sampler{sdktrace.NewTracerProvider().Tracer("")} }

// records reports whether one more request is recorded.
func (s sampler) records() bool {
	_, span := s.tracer.Start(context.Background(), "")
	return span.SpanContext().IsSampled()
}
