package main

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"spendhook/relay"
)

const metricsFile = "../../docs/metrics.md"

// shownMetric is what a daemon shows of a metric.
type shownMetric struct {
	kind, help string
	labels     map[string]bool
}

// allMetrics are the settings of a daemon that shows every metric that there is.
const allMetrics = canarySettings + `
auth:
  issuers: [{issuer: other, audience: us, jwks_url: 'http://127.0.0.1:9/jwks.json', scopes: [events:write]}]
console: {login: {issuer: 'http://127.0.0.1:9', client_id: us, client_secret: s, roles: [{group: g, role: operator}]}}
`

// metricsOf are the metrics of the project that a daemon shows, by name.
func metricsOf(text string) map[string]*shownMetric {
	metrics := map[string]*shownMetric{}
	label := regexp.MustCompile(`([a-z_]+)="`)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if help, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(help, " ")
			metrics[name] = &shownMetric{help: help, labels: map[string]bool{}}
		} else if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(kind, " ")
			metrics[name].kind = kind
		} else if name, labels, ok := strings.Cut(line, "{"); ok {
			m := metrics[metricOf(name, metrics)]
			for _, l := range label.FindAllStringSubmatch(labels, -1) {
				if m != nil && l[1] != "le" {
					m.labels[l[1]] = true
				}
			}
		}
	}
	maps.DeleteFunc(metrics, func(name string, _ *shownMetric) bool { return !strings.HasPrefix(name, "spendhook_") })
	return metrics
}

// metricOf is the name of the metric that a series belongs to.
func metricOf(series string, metrics map[string]*shownMetric) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && metrics[base] != nil {
			return base
		}
	}
	return series
}

// metricsText is docs/metrics.md.
func metricsText(metrics map[string]*shownMetric) string {
	var b strings.Builder
	b.WriteString(`# Metrics

This page lists what ` + "`/metrics`" + ` of the admin listener exports, of the daemon and of [the relay](relay.md) (` + "`spendhook_relay_*`" + `), except the usual ` + "`go_*` and `process_*`" + `. It is written by
` + "`make generate`" + `. [deploy/monitoring](../deploy/monitoring) has rules, alerts and dashboards on these metrics.

- A histogram has the series ` + "`_bucket`, `_sum` and `_count`" + `.
- A value that all replicas share is exported only by the owner of its partition, so ` + "`sum()`" + ` over the replicas is right. For
  a moment after the owner has changed, the value may be counted twice or not at all.
- While a shard of a Cluster is unavailable, ` + "`spendhook_redis_up`" + ` is 0. Pending events, oldest due work, quarantine, dead letters
  and company backlogs then include the last figures of this shard and current figures of the others. A replica that was
  started since then does not count the shard.
- For Redis's memory take ` + "`max()`" + ` over the replicas.
- Only ` + "`spendhook_company_backlog`" + ` has companies as label values, at most ` + "`metrics.top_companies`" + ` for each replica.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		m := metrics[name]
		labels := slices.Sorted(maps.Keys(m.labels))
		for i := range labels {
			labels[i] = "`" + labels[i] + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, m.kind, strings.Join(labels, ", "), m.help)
	}
	return b.String()
}

// relayMetrics are those that a relay shows.
func relayMetrics() map[string]*shownMetric {
	registry := prometheus.NewRegistry()
	sender := relay.New(relay.Options{Name: "payments", Metrics: relay.NewMetrics(registry)})
	behind, cancel := context.WithCancel(context.Background())
	sender.Serve(behind, onePartition(cancel))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return metricsOf(answer.Body.String())
}

// onePartition is a source that ends once its lag was asked for.
type onePartition context.CancelFunc

func (onePartition) Run(ctx context.Context, _ *relay.Sender) error {
	<-ctx.Done()
	return nil
}

func (p onePartition) Behind(context.Context) (map[string]int64, error) {
	p()
	return map[string]int64{"payments/0": 0}, nil
}

// TestMetricsAreDocumented writes docs/metrics.md when GENERATE is set, as
// make generate does.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), allMetrics).start(t)
	newEndpoint(t, func(string) int { return http.StatusServiceUnavailable }).subscribe(t, d, "PAYMENT_PAID")
	d.cli(t, eventLines(0, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	var metrics map[string]*shownMetric
	eventually(t, deliveryPatience, "the backlog is shown", func() bool {
		_, text := get(t, d.admin+"/metrics")
		metrics = metricsOf(text)
		return metrics["spendhook_company_backlog"] != nil
	})
	maps.Copy(metrics, relayMetrics())
	if os.Getenv("GENERATE") != "" {
		if err := os.WriteFile(metricsFile, []byte(metricsText(metrics)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(metricsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != metricsText(metrics) {
		t.Error("docs/metrics.md is not what the daemon shows: run make generate")
	}
	for _, name := range metricsInSource(t) {
		if metrics[name] == nil {
			t.Errorf("%s is not shown at the start: give its labels their values, or allMetrics what it needs", name)
		}
	}
	for name, m := range metrics {
		if m.labels["company"] && name != "spendhook_company_backlog" {
			t.Errorf("%s names companies", name)
		}
	}
}

// metricsInSource are the names that the code registers.
func metricsInSource(t *testing.T) (names []string) {
	t.Helper()
	name := regexp.MustCompile(`"(spendhook_[a-z0-9_]+)"`)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bench" || entry.Name() == "deploy" || strings.HasPrefix(entry.Name(), ".") && len(entry.Name()) > 2):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range name.FindAllStringSubmatch(string(text), -1) {
				if m[1] != "spendhook_outbox" { // a table
					names = append(names, m[1])
				}
			}
		}
		return nil
	})
	if err != nil || len(names) == 0 {
		t.Fatal(err, len(names))
	}
	return names
}
