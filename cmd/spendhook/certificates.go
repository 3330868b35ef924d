package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/internal/pause"
)

const (
	certificateNotice = 30 * 24 * time.Hour // how long before its end a certificate is warned of
	certificateEvery  = time.Hour
)

// watchCertificates counts the egress certificates that end soon or have ended,
// and warns of them, once an hour.
func (d *daemon) watchCertificates(ctx context.Context) error {
	var byPartition atomic.Pointer[[]int64]
	d.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_egress_certificates_ending",
		Help: "Egress certificates of companies that expire within 30 days or have expired, in the partitions this replica owns.",
	}, func() float64 {
		counts, ending := byPartition.Load(), int64(0)
		if counts == nil {
			return 0
		}
		for _, p := range d.owned() {
			ending += (*counts)[p]
		}
		return float64(ending)
	}))
	d.background(ctx, "certificate watch", func(ctx context.Context) {
		d.checkCertificates(ctx, &byPartition)
		for pause.For(ctx, certificateEvery) {
			d.checkCertificates(ctx, &byPartition)
		}
	})
	return nil
}

func (d *daemon) checkCertificates(ctx context.Context, byPartition *atomic.Pointer[[]int64]) {
	some, counts, err := d.certificates.ExpiringBefore(ctx, time.Now().Add(certificateNotice))
	if err != nil {
		d.log.Debug("egress certificates not checked", "exception.message", err)
		return
	}
	byPartition.Store(&counts)
	for _, c := range some {
		d.log.Warn("an egress certificate ends soon or has ended", "company_uuid", c.Company, "not_after", c.NotAfter)
	}
}
