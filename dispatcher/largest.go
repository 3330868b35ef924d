package dispatcher

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/dispatcher/workqueue/backlog"
)

// largest exports the pending events of the companies that have the most. The series of
// a company ends when the company is no longer one of them.
type largest struct {
	desc *prometheus.Desc
	last atomic.Pointer[[]backlog.Company]
}

func newLargest() *largest {
	return &largest{desc: prometheus.NewDesc("spendhook_company_backlog",
		"Pending events of the companies with the largest backlogs, at most metrics.top_companies in the partitions this replica owns.", []string{"company"}, nil)}
}

func (l *largest) set(companies []backlog.Company) { l.last.Store(&companies) }

// Describe is for the registry.
func (l *largest) Describe(to chan<- *prometheus.Desc) { to <- l.desc }

// Collect is for the registry.
func (l *largest) Collect(to chan<- prometheus.Metric) {
	if last := l.last.Load(); last != nil {
		for _, c := range *last {
			to <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(c.Pending), c.Company.String()) //nolint:promlinter // the name stands above
		}
	}
}
