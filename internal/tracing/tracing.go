// Package tracing exports spans by OTLP when the standard OTEL_* variables enable it. It
// continues the traces of callers, but does not let callers decide what is recorded.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"spendhook/internal/pacedlog"
)

// Options configure Open.
type Options struct {
	Version  string // of the program
	Instance string // id of this replica
	Logger   *slog.Logger
}

// Tracing exports the spans of one process. A nil one is off. It is safe for concurrent
// use; Close it.
type Tracing struct {
	exporter sdktrace.SpanExporter
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  trace.Tracer // decides in records which requests are recorded
}

// Enabled reports whether the environment enables the export of spans.
func Enabled() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	switch strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")) {
	case "none":
		return false
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	}
	return true
}

// check refuses settings of the environment that this program does not support.
func check() error {
	if exporter := strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")); exporter != "" && exporter != "otlp" {
		return fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not supported, only otlp and none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol != "" && protocol != "http/protobuf" {
			return fmt.Errorf("%s: %q is not supported, only http/protobuf", name, protocol)
		}
	}
	return nil
}

// maxValue bounds a text that a span holds, such as a caller's User-Agent, in bytes.
const maxValue = 512

// Open returns nil when the environment does not enable tracing. The collector need not be
// reachable: spans that it does not accept are dropped.
func Open(ctx context.Context, o Options) (*Tracing, error) {
	if !Enabled() {
		return nil, nil
	}
	if err := check(); err != nil {
		return nil, err
	}
	report(o.Logger) //nolint:contextcheck // problems outlive the call
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	of, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("spendhook"), semconv.ServiceVersion(o.Version), semconv.ServiceInstanceID(o.Instance)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = maxValue
	}
	t := &Tracing{exporter: exporter, sampler: sdktrace.NewTracerProvider().Tracer("")}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithResource(of), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // Handler decides which requests are recorded
	)
	t.tracer = t.provider.Tracer("spendhook", trace.WithInstrumentationVersion(o.Version))
	return t, nil
}

// report logs the errors of the library at a limited pace, because each batch fails while the
// collector is unreachable. It drops the library's own log lines.
func report(log *slog.Logger) {
	problems := pacedlog.OfLibrary(log, "opentelemetry")
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { problems.Log(context.Background(), slog.String("message", err.Error())) }))
	otel.SetLogger(logr.Discard())
}

// flushTimeout bounds how long Close waits for the collector to accept the last spans.
const flushTimeout = 2 * time.Second

// Close exports the remaining spans.
func (t *Tracing) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	err := t.provider.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // lost spans must not make the shutdown fail
	}
	_ = t.exporter.Shutdown(context.WithoutCancel(ctx)) // ends the request under way
	return err
}

// Tracer begins spans; nil while tracing is off.
func (t *Tracing) Tracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.tracer
}

// Handler makes a span for every request to a route. It returns next itself while tracing is
// off.
func (t *Tracing) Handler(route string, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	traced := otelhttp.NewHandler(next, route,
		otelhttp.WithTracerProvider(t.provider), otelhttp.WithMeterProvider(noop.NewMeterProvider()), otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator()), // withCaller does it
		otelhttp.WithSpanNameFormatter(func(route string, r *http.Request) string { return r.Method + " " + route }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = withCaller(r)
		if !t.records() {
			next.ServeHTTP(w, r)
			return
		}
		r.Pattern = route // http.route
		traced.ServeHTTP(w, r)
	})
}

// withCaller adds the trace of the caller's header to the request, for the log and for the
// span of the request.
func withCaller(r *http.Request) *http.Request {
	if r.Header["Traceparent"] == nil {
		return r
	}
	return r.WithContext(caller(r.Context(), r.Header))
}

// records decides whether to record a request, as for a new trace, by OTEL_TRACES_SAMPLER. It
// ignores the sampled flag and the trace id of the caller; otherwise a company could force the
// recording of all its requests. It decides before a span is made, so that requests that are
// not recorded cost almost nothing. It uses a provider with the environment's sampler.
func (t *Tracing) records() bool {
	_, span := t.sampler.Start(context.Background(), "")
	return span.SpanContext().IsSampled()
}

// LogHandler adds the ids of the trace and of the span to each line of the log.
func LogHandler(h slog.Handler) slog.Handler { return logHandler{h} }

type logHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if of := trace.SpanContextFromContext(ctx); of.IsValid() {
		r.AddAttrs(slog.String("trace_id", of.TraceID().String()), slog.String("span_id", of.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.Handler.WithGroup(name)} }
