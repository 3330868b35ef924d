package main

import "context"

// always compares appendfsync always with everysec, in turn on the same Redis.
func always(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return err
	}
	var ratios, rates []float64
	for range b.Rounds {
		lazy, err := st.syncing(ctx, b, "everysec")
		if err != nil {
			return err
		}
		strict, err := st.syncing(ctx, b, "always")
		if err != nil {
			return err
		}
		b.note("always: %.0f deliveries/s, everysec %.0f", strict, lazy)
		ratios, rates = append(ratios, strict/lazy), append(rates, strict)
	}
	b.add("always", "deliveries/s, of everysec", "", more, ratios...).goal(0.6)
	b.add("always", rateName, "1/s", more, rates...)
	return nil
}

func (s *stack) syncing(ctx context.Context, b *bench, policy string) (float64, error) {
	if _, err := s.redis.ask(ctx, "CONFIG", "SET", "appendfsync", policy); err != nil {
		return 0, err
	}
	r, err := s.sustain(ctx, loadSpec{Companies: 1, Batch: 1, Count: maxAhead, For: b.LoadFor}, 1)
	return r.rate(), err
}
