package tracing_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"spendhook/internal/otlptest"
	"spendhook/internal/tracing"
)

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
	sampled      = "00-" + callersTrace + "-" + callersSpan + "-01"
)

// open exports spans to the collector, with additional environment variables.
func open(t *testing.T, c *otlptest.Collector, environment ...string) *tracing.Tracing {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	for i := 0; i < len(environment); i += 2 {
		t.Setenv(environment[i], environment[i+1])
	}
	tr, err := tracing.Open(t.Context(), tracing.Options{Version: "test", Instance: "one", Logger: slog.New(slog.DiscardHandler)})
	if err != nil || tr == nil {
		t.Fatalf("open: %v, %v", tr, err)
	}
	return tr
}

func request(traceparent ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/things/7", http.NoBody)
	r.Header["Traceparent"] = traceparent
	return r
}

// ask sends one request through a traced route, and returns what an event in it would keep.
func ask(tr *tracing.Tracing, r *http.Request) (kept tracing.Parent) {
	tr.Handler("/things/{id}", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		kept = tracing.OfRequest(r)
	})).ServeHTTP(httptest.NewRecorder(), r)
	return kept
}

func closed(t *testing.T, tr *tracing.Tracing) {
	t.Helper()
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestARequestContinuesTheTraceOfItsCaller(t *testing.T) {
	c := otlptest.Start(t)
	tr := open(t, c)
	r := request(sampled)
	r.Header.Set("Tracestate", "vendor=1")
	r.Header.Set("User-Agent", strings.Repeat("a", 60_000))
	kept := ask(tr, r)
	if !kept.Recorded || kept.TraceID.String() != callersTrace || kept.SpanID.String() == callersSpan {
		t.Errorf("kept %+v", kept)
	}
	closed(t, tr)
	spans := c.Spans("")
	if len(spans) != 1 {
		t.Fatalf("%d spans", len(spans))
	}
	s := spans[0]
	if s.Name != "POST /things/{id}" || s.TraceID != callersTrace || s.ParentID != callersSpan || s.SpanID != kept.SpanID.String() {
		t.Errorf("span %+v", s)
	}
	for name, want := range map[string]string{
		"service.name": "spendhook", "service.version": "test", "service.instance.id": "one",
		"http.route": "/things/{id}", "http.request.method": "POST", "http.response.status_code": "200",
	} {
		if s.Attributes[name] != want {
			t.Errorf("%s is %q, want %q", name, s.Attributes[name], want)
		}
	}
	if n := len(s.Attributes["user_agent.original"]); n != 512 {
		t.Errorf("%d bytes of the user agent are kept", n)
	}
}

// The operator's sampler decides whether a request is recorded, whatever the caller's header
// says.
func TestOperatorDecidesWhatIsRecorded(t *testing.T) {
	for name, environment := range map[string][]string{
		"never":                  {"OTEL_TRACES_SAMPLER", "always_off"},
		"as the parent, or none": {"OTEL_TRACES_SAMPLER", "parentbased_always_off"},
		"a share":                {"OTEL_TRACES_SAMPLER", "traceidratio", "OTEL_TRACES_SAMPLER_ARG", "0.000001"},
		"a share, as the parent": {"OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG", "0.000001"},
	} {
		t.Run(name, func(t *testing.T) {
			c := otlptest.Start(t)
			tr := open(t, c, environment...)
			// This id is within any share that takes ids at their word.
			const chosen = "00-00000000000000000000000000000001-" + callersSpan + "-01"
			for range 20 {
				if kept := ask(tr, request(chosen)); kept.Recorded || kept.Traceparent() != chosen {
					t.Fatalf("kept %+v", kept)
				}
			}
			closed(t, tr)
			if spans := c.Spans(""); len(spans) != 0 {
				t.Errorf("recorded %+v", spans)
			}
		})
	}
	t.Run("always", func(t *testing.T) {
		c := otlptest.Start(t)
		tr := open(t, c, "OTEL_TRACES_SAMPLER", "parentbased_always_on")
		if kept := ask(tr, request("00-"+callersTrace+"-"+callersSpan+"-00")); !kept.Recorded {
			t.Error("a caller kept a request from being recorded")
		}
		closed(t, tr)
	})
}

func TestOnlyAValidTraceparentIsKept(t *testing.T) {
	t.Parallel()
	for name, given := range map[string][]string{
		"none": nil, "empty": {""}, "garbage": {"garbage"}, "two": {sampled, sampled},
		"no trace": {"00-00000000000000000000000000000000-" + callersSpan + "-01"},
		"no span":  {"00-" + callersTrace + "-0000000000000000-01"},
		"capitals": {strings.ToUpper(sampled)}, "version ff": {"ff" + sampled[2:]}, "more": {sampled + "-00"},
		"long": {"01" + sampled[2:] + "-" + strings.Repeat("a", 50_000)},
	} {
		if kept := tracing.OfRequest(request(given...)); !kept.IsZero() || kept.Traceparent() != "" {
			t.Errorf("%s: kept %+v", name, kept)
		}
	}
	if kept := tracing.OfRequest(request(sampled)); kept.Traceparent() != sampled || kept.Recorded {
		t.Errorf("kept %+v", kept)
	}
}

func TestAStoredParentIsReadBack(t *testing.T) {
	t.Parallel()
	own := tracing.OfRequest(request(sampled))
	for _, recorded := range []bool{false, true} {
		own.Recorded = recorded
		kept := own.AppendTo(nil)
		read, err := tracing.ParseParent(string(kept))
		if err != nil || read != own || len(kept) != tracing.Bytes {
			t.Errorf("read %+v, %v", read, err)
		}
	}
	for _, damaged := range []string{"", strings.Repeat("\x00", tracing.Bytes), strings.Repeat("a", tracing.Bytes+1)} {
		if _, err := tracing.ParseParent(damaged); err == nil {
			t.Errorf("read %q", damaged)
		}
	}
	if tracing.TraceIDOf(own.Traceparent()) != callersTrace || tracing.TraceIDOf("") != "" {
		t.Error("another trace")
	}
}

// A collector that does not answer delays neither spans nor the shutdown.
func TestAHangingCollectorDelaysNothing(t *testing.T) {
	c := otlptest.Start(t)
	c.Hang()
	tr := open(t, c, "OTEL_BSP_SCHEDULE_DELAY", "1")
	for range 10_000 { // several times what is queued
		_, span := tr.Tracer().Start(t.Context(), "work")
		span.End()
	}
	for c.Waiting() == 0 {
		select {
		case <-t.Context().Done():
		case <-time.After(time.Millisecond):
		}
	}
	began := time.Now()
	closed(t, tr)
	if took := time.Since(began); took > 9*time.Second { // of the 10 s that an export may take
		t.Errorf("the stop took %s", took)
	}
}

func TestUnsupportedSettingsAreRefused(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json", "OTEL_TRACES_EXPORTER": "zipkin",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			_, err := tracing.Open(t.Context(), tracing.Options{Logger: slog.New(slog.DiscardHandler)})
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Without the variables, tracing costs nothing.
func TestTracingThatIsOffCostsNothing(t *testing.T) {
	for _, environment := range [][2]string{{}, {"OTEL_TRACES_EXPORTER", "none"}, {"OTEL_SDK_DISABLED", "true"}} {
		if environment[0] != "" {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(environment[0], environment[1])
		}
		tr, err := tracing.Open(t.Context(), tracing.Options{})
		if tr != nil || err != nil || tracing.Enabled() {
			t.Errorf("%v: open: %v, %v", environment, tr, err)
		}
		if environment[0] != "" {
			t.Setenv(environment[0], "")
		}
	}
	var off *tracing.Tracing
	next := &http.ServeMux{}
	if off.Handler("/", next) != http.Handler(next) || off.Tracer() != nil || off.Close(t.Context()) != nil {
		t.Error("Handler does not return next while tracing is off")
	}
	r := request()
	if n := testing.AllocsPerRun(100, func() { _ = tracing.OfRequest(r) }); n != 0 {
		t.Errorf("a request without a trace costs %v allocations", n)
	}
}

func TestLogLinesNameTheirTrace(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := slog.New(tracing.LogHandler(slog.NewTextHandler(&out, nil))).With("step", "one")
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
	}))
	log.InfoContext(ctx, "inside")
	log.Info("outside")
	inside, outside, _ := strings.Cut(out.String(), "\n")
	if !strings.Contains(inside, "step=one trace_id=01000000000000000000000000000000 span_id=0200000000000000") || strings.Contains(outside, "trace_id") {
		t.Errorf("%s", out.String())
	}
}

func BenchmarkOff(b *testing.B) {
	r := request()
	b.ReportAllocs()
	for b.Loop() {
		_ = tracing.OfRequest(r)
	}
}
