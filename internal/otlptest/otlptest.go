// Package otlptest has a collector for tests. It receives spans by OTLP over HTTP, or hangs.
package otlptest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a received span. Its ids are in hex. Attributes has those of the resource too, as texts.
type Span struct {
	Name, TraceID, SpanID, ParentID string
	Attributes                      map[string]string
}

// Collector receives spans. It is safe for concurrent use.
type Collector struct {
	URL string

	hangs   atomic.Bool
	waiting atomic.Int64
	ended   chan struct{}

	mu    sync.Mutex
	spans []Span
}

// Start starts a collector that ends with the test.
func Start(tb testing.TB) *Collector {
	tb.Helper()
	c := &Collector{ended: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(c.take))
	tb.Cleanup(func() {
		close(c.ended)
		server.Close()
	})
	c.URL = server.URL
	return c
}

// Hang makes the collector stop answering.
func (c *Collector) Hang() { c.hangs.Store(true) }

// Waiting returns how many requests have come since Hang.
func (c *Collector) Waiting() int64 { return c.waiting.Load() }

// Spans returns the received spans of a trace, or of all traces for "".
func (c *Collector) Spans(traceID string) (list []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if traceID == "" || s.TraceID == traceID {
			list = append(list, s)
		}
	}
	return list
}

func (c *Collector) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if c.hangs.Load() {
		c.waiting.Add(1)
		select {
		case <-c.ended:
		case <-r.Context().Done():
		}
		return
	}
	var in collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &in)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.add(&in)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *Collector) add(in *collector.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range in.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{
					Name: s.GetName(), TraceID: hex.EncodeToString(s.GetTraceId()), SpanID: hex.EncodeToString(s.GetSpanId()),
					ParentID: hex.EncodeToString(s.GetParentSpanId()), Attributes: map[string]string{},
				}
				for _, a := range append(of.GetResource().GetAttributes(), s.GetAttributes()...) {
					span.Attributes[a.GetKey()] = text(a.GetValue())
				}
				c.spans = append(c.spans, span)
			}
		}
	}
}

func text(v *common.AnyValue) string {
	if _, ok := v.GetValue().(*common.AnyValue_StringValue); ok {
		return v.GetStringValue()
	}
	_, value, _ := strings.Cut(v.String(), ":")
	return value
}
