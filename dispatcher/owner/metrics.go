package owner

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	takenOver prometheus.Counter
	lost      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, o *Owner) *metrics {
	factory := promauto.With(reg)
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_replicas", Help: "Live replicas that this replica sees, itself included.",
	}, func() float64 { return float64(o.replicas()) })
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_partitions_owned", Help: "Partitions that this replica owns. The sum over all replicas is 256, except briefly after a change of replicas.",
	}, func() float64 { return float64(len(o.Owned())) })
	return &metrics{
		takenOver: factory.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_partitions_taken_over_total", Help: "Partitions that this replica took over from replicas that were lost.",
		}),
		lost: factory.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_partitions_lost_total", Help: "Partitions that this replica lost, because another replica had taken them over or Redis had forgotten their owner.",
		}),
	}
}
