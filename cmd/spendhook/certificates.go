package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/internal/pause"
)

const (
	certificateNotice = 30 * 24 * time.Hour // how long before its end a certificate is spoken of
	certificateEvery  = time.Hour
)

// watchCertificates counts the egress certificates that end soon or have ended,
// and warns of them, once an hour.
func (d *daemon) watchCertificates(ctx context.Context) error {
	ending := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_egress_certificates_ending", Help: "Egress certificates of companies that end within 30 days, or have ended.",
	})
	d.registry.MustRegister(ending)
	d.background(ctx, "certificate watch", func(ctx context.Context) {
		d.checkCertificates(ctx, ending)
		for pause.For(ctx, certificateEvery) {
			d.checkCertificates(ctx, ending)
		}
	})
	return nil
}

func (d *daemon) checkCertificates(ctx context.Context, ending prometheus.Gauge) {
	some, count, err := d.subscribers.ExpiringCertificates(ctx, time.Now().Add(certificateNotice))
	if err != nil {
		d.log.Debug("egress certificates not checked", "exception.message", err)
		return
	}
	ending.Set(float64(count))
	for _, c := range some {
		d.log.Warn("an egress certificate ends soon or has ended", "company_uuid", c.Company, "not_after", c.NotAfter)
	}
}
