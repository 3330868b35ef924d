package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/prometheus/prometheus/promql/parser"
)

const root = "../../../"

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDashboardsAreCurrent(t *testing.T) {
	for _, b := range boards {
		text, err := b.render()
		if err != nil {
			t.Fatal(err)
		}
		if read(t, b.path()) != string(text) {
			t.Errorf("%s differs from boards.go: run make generate", b.path())
		}
	}
}

// Grafana's schema has every field of the dashboards.
func TestDashboardsFitTheSchema(t *testing.T) {
	for _, b := range boards {
		var board dashboard.Dashboard
		if err := board.UnmarshalJSONStrict([]byte(read(t, b.path()))); err != nil {
			t.Errorf("%s: %v", b.path(), err)
		}
	}
}

// leftOut are the metrics that no panel shows, with the reasons.
var leftOut = map[string]string{
	"spendhook_http_requests_total":            "the panels of requests use spendhook_http_request_duration_seconds",
	"spendhook_jwks_fetched_timestamp_seconds": "exists only with other issuers; SpendhookCertificateExpiring",
	"spendhook_jwks_refresh_failures_total":    "exists only with other issuers; the runbook of SpendhookCertificateExpiring",
	"spendhook_quarantined_total":              "the panels show spendhook_quarantined, what is there now",
}

// Prometheus can parse every query, every metric in it exists, and every metric that is not left out is in one.
func TestQueries(t *testing.T) {
	shown := map[string]bool{} // of all known names
	for _, m := range regexp.MustCompile("\n\\| `(spendhook_[a-z0-9_]+)`").FindAllStringSubmatch(read(t, root+"docs/metrics.md"), -1) {
		shown[m[1]] = false
	}
	for name := range leftOut {
		if _, ok := shown[name]; !ok {
			t.Errorf("leftOut names %s, which does not exist", name)
		}
	}
	metrics := slices.Collect(maps.Keys(shown))
	for _, name := range []string{"up", "ALERTS", "process_cpu_seconds_total", "process_resident_memory_bytes"} {
		shown[name] = false
	}
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(read(t, root+"deploy/monitoring/rules.yaml"), -1) {
		shown[m[1]] = false
	}
	for _, b := range boards {
		for _, r := range b.rows {
			for _, p := range r.panels {
				for _, q := range p.queries {
					checkQuery(t, b.file+", "+p.title, q.expr, shown)
				}
			}
		}
	}
	for _, name := range metrics {
		if _, out := leftOut[name]; out == shown[name] {
			t.Errorf("%s is in a panel: %v, in leftOut: %v", name, shown[name], out)
		}
	}
}

// checkQuery marks the names in a query as shown.
func checkQuery(t *testing.T, where, text string, shown map[string]bool) {
	t.Helper()
	expr, err := parser.ParseExpr(strings.ReplaceAll(text, "$__rate_interval", "1m"))
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			name := selector.Name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base := strings.TrimSuffix(name, suffix)
				if _, ok := shown[base]; ok {
					name = base
				}
			}
			if _, ok := shown[name]; !ok {
				t.Errorf("%s names %s, which does not exist", where, selector.Name)
			}
			shown[name] = true
		}
		return nil
	})
}
