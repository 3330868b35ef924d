package main

import (
	"context"
	"fmt"
)

const limitedRate = 50 // attempts/s

// limited measures how much of a subscriber's rate limit a backlog uses: with the default burst,
// which makes up for late attempts, and with a burst of 1.
func limited(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	for company, burst := range []int{limitedRate, 1} {
		list := st.receiver.subscriptions([]int{company}, 1)
		list[0].perSecond, list[0].burst = limitedRate, burst
		if _, err := st.daemons[0].subscribeAll(ctx, list); err != nil {
			return err
		}
		count := int64(limitedRate*b.PacedFor.Seconds()) + int64(burst)
		rounds, err := b.rounds(ctx, "rate", st, func(ctx context.Context) (sustained, error) {
			return st.sustain(ctx, loadSpec{Of: []int{company}, Batch: 1, Count: count, For: b.PacedFor}, 1)
		})
		if err != nil {
			return err
		}
		used := b.add("rate", fmt.Sprintf("used share of the rate, burst %d", burst), "", more, each(rounds, func(r sustained) float64 {
			return float64(r.expected-int64(burst)) / limitedRate / r.took.Seconds()
		})...)
		if burst > 1 {
			used.goal(0.97)
		}
	}
	return nil
}
