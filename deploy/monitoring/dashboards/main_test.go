package main

import (
	"os"
	"regexp"
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

// Prometheus can parse every query, and every metric in it exists.
func TestQueries(t *testing.T) {
	known := map[string]bool{"up": true, "ALERTS": true, "process_cpu_seconds_total": true, "process_resident_memory_bytes": true}
	for _, m := range regexp.MustCompile("\n\\| `(spendhook_[a-z0-9_]+)`").FindAllStringSubmatch(read(t, root+"docs/metrics.md"), -1) {
		known[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(read(t, root+"deploy/monitoring/rules.yaml"), -1) {
		known[m[1]] = true
	}
	for _, b := range boards {
		for _, r := range b.rows {
			for _, p := range r.panels {
				for _, q := range p.queries {
					checkQuery(t, b.file+", "+p.title, q.expr, known)
				}
			}
		}
	}
}

func checkQuery(t *testing.T, where, text string, known map[string]bool) {
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
				if base := strings.TrimSuffix(name, suffix); known[base] {
					name = base
				}
			}
			if !known[name] {
				t.Errorf("%s names %s, which does not exist", where, selector.Name)
			}
		}
		return nil
	})
}
