// Command dashboards writes the Grafana dashboards into the directory in its argument.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	for _, b := range boards {
		text, err := b.render()
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], b.path()), text, 0o644) //nolint:gosec // all users may read dashboards
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func (b board) path() string { return "spendhook-" + b.file + ".json" }

// source is the data source that the user selects in the dashboard.
var source = common.DataSourceRef{Type: new("prometheus"), Uid: new("${source}")}

// render returns the JSON that Grafana imports.
func (b board) render() ([]byte, error) {
	builder := dashboard.NewDashboardBuilder(b.title).
		Uid("spendhook-"+b.file).Tags([]string{"spendhook"}).
		Time("now-3h", "now").Refresh("30s").Timezone("utc").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("source").Label("Prometheus").Type("prometheus"))
	for _, r := range b.rows {
		builder.WithRow(dashboard.NewRowBuilder(r.title))
		for _, p := range r.panels {
			p.addTo(builder)
		}
	}
	built, err := builder.Build()
	if err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", b.file, err)
	}
	text, err := json.MarshalIndent(built, "", "  ")
	return append(text, '\n'), err
}

func (p panel) addTo(b *dashboard.DashboardBuilder) {
	if p.number {
		one := stat.NewPanelBuilder().Title(p.title).Unit(p.unit).Datasource(source).Height(4).Span(4)
		for _, q := range p.queries {
			one.WithTarget(prometheus.NewDataqueryBuilder().Expr(q.expr).Instant())
		}
		b.WithPanel(one)
		return
	}
	over := timeseries.NewPanelBuilder().Title(p.title).Unit(p.unit).Datasource(source).Height(8).Span(8).Min(0)
	for i, q := range p.queries {
		over.WithTarget(prometheus.NewDataqueryBuilder().Expr(q.expr).LegendFormat(q.legend).Range().RefId(strings.ToUpper(string(rune('a' + i)))))
	}
	b.WithPanel(over)
}
