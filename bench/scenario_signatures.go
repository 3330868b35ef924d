package main

import (
	"context"
	"net/http"
)

// signatures compares the ways in which deliveries are signed, in turn on one stack.
func signatures(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	ids, err := st.subscribe(ctx, 1, 1)
	if err != nil {
		return err
	}
	signed := func(algorithm string, by ...string) (sustained, error) {
		in := map[string]any{"signatures": by, "signatureAlgorithm": algorithm}
		if err := st.daemons[0].call(ctx, http.MethodPatch, "/api/v1/subscribers/"+ids[0]+"?companyUuid="+company(0), in, &struct{}{}); err != nil {
			return sustained{}, err
		}
		return st.sustain(ctx, loadSpec{Companies: 1, Batch: 1, Count: maxAhead, For: b.LoadFor}, 1)
	}
	algorithms := []string{"ed25519", "ecdsa-p256-sha256"}
	ratios, cpu := map[string][]float64{}, map[string][]float64{}
	for range b.Rounds {
		standard, err := signed("ed25519", "standard")
		if err != nil {
			return err
		}
		for _, algorithm := range algorithms {
			r, err := signed(algorithm, "http-message")
			if err != nil {
				return err
			}
			b.note("signatures: %s %.0f deliveries/s, standard %.0f", algorithm, r.rate(), standard.rate())
			ratios[algorithm] = append(ratios[algorithm], r.rate()/standard.rate())
			cpu[algorithm] = append(cpu[algorithm], r.per(r.cpu.daemon)-standard.per(standard.cpu.daemon))
		}
	}
	for _, algorithm := range algorithms {
		list := ratios[algorithm]
		figure := b.add("signatures", algorithm+", deliveries/s of Standard Webhooks", "", more, list...)
		if algorithm == "ed25519" {
			figure.goal(0.85)
		}
		b.add("signatures", algorithm+", additional daemon CPU a delivery", "µs", less, cpu[algorithm]...)
	}
	return nil
}
