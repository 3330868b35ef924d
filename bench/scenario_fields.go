package main

import (
	"context"
	"maps"
	"net/http"
)

// variant is settings of the one subscriber.
type variant struct {
	name     string
	settings map[string]any
	goal     float64 // deliveries/s of those of the plain subscriber; 0: none
}

// signatures compares the ways in which deliveries are signed.
func signatures(ctx context.Context, b *bench) error {
	plain := map[string]any{"signatures": []string{"standard"}, "signatureAlgorithm": "ed25519"}
	message := func(algorithm string) map[string]any {
		return map[string]any{"signatures": []string{"http-message"}, "signatureAlgorithm": algorithm}
	}
	return inTurn(ctx, b, "signatures", "Standard Webhooks", plain, []variant{
		{"ed25519", message("ed25519"), 0.85},
		{"ecdsa-p256-sha256", message("ecdsa-p256-sha256"), 0},
	})
}

// fields measures what the fields of a subscriber cost that change how it is delivered to. Each event has an order key of
// its own, so that nothing waits for another event.
func fields(ctx context.Context, b *bench) error {
	plain := map[string]any{"transform": "", "orderedBy": "", "stopOn": []int{}, "retrySchedule": []int{}, "contacts": []string{}}
	return inTurn(ctx, b, "fields", "a plain subscriber", plain, []variant{
		{"transform", map[string]any{"transform": `{"text": "Paid " + id, "pad": metadata.pad}`}, 0},
		{"orderedBy", map[string]any{"orderedBy": "id"}, 0},
		{"stopOn, retrySchedule, contacts", map[string]any{
			"stopOn": []int{422}, "retrySchedule": []int{60, 3600}, "contacts": []string{"https://127.0.0.1:1/chat"},
		}, 0},
	})
}

// inTurn compares variants of one subscriber with a plain one, before and after each of them, on one stack.
func inTurn(ctx context.Context, b *bench, scenario, of string, plain map[string]any, variants []variant) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	ids, err := st.subscribe(ctx, 1, 1)
	if err != nil {
		return err
	}
	measure := func(settings map[string]any) (sustained, error) {
		all := maps.Clone(plain)
		maps.Copy(all, settings)
		if err := st.daemons[0].call(ctx, http.MethodPatch, "/api/v1/subscribers/"+ids[0]+"?companyUuid="+company(0), all, &struct{}{}); err != nil {
			return sustained{}, err
		}
		return st.sustain(ctx, loadSpec{Companies: 1, Batch: 1, Count: maxAhead, For: b.LoadFor}, 1)
	}
	ratios, cpu := make([][]float64, len(variants)), make([][]float64, len(variants))
	for range b.Rounds {
		before, err := measure(nil)
		if err != nil {
			return err
		}
		for i, v := range variants {
			r, err := measure(v.settings)
			if err != nil {
				return err
			}
			after, err := measure(nil)
			if err != nil {
				return err
			}
			b.note("%s: %s %.0f deliveries/s, %s %.0f before and %.0f after", scenario, v.name, r.rate(), of, before.rate(), after.rate())
			ratios[i] = append(ratios[i], 2*r.rate()/(before.rate()+after.rate()))
			cpu[i] = append(cpu[i], r.per(r.cpu.daemon)-(before.per(before.cpu.daemon)+after.per(after.cpu.daemon))/2)
			before = after
		}
	}
	for i, v := range variants {
		figure := b.add(scenario, v.name+", deliveries/s of "+of, "", more, ratios[i]...)
		if v.goal > 0 {
			figure.goal(v.goal)
		}
		b.add(scenario, v.name+", additional daemon CPU a delivery", "µs", less, cpu[i]...)
	}
	return nil
}
