package main

import "context"

const pacedRate = 200 // events/s of the latency scenario

// latency sends events at a steady rate that leaves the cores partly idle, and then none.
func latency(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return err
	}
	var p50, p99, idle []float64
	_, err = b.rounds(ctx, "latency", st, func(ctx context.Context) (sustained, error) {
		r, err := st.sustain(ctx, loadSpec{Companies: 1, Batch: 1, Rate: pacedRate, Count: maxAhead, For: b.PacedFor}, 1)
		if err != nil {
			return r, err
		}
		t, err := st.receiver.latency(ctx, 0, 1, 0)
		if err != nil {
			return r, err
		}
		p50, p99 = append(p50, ms(t.P50)), append(p99, ms(t.P99))
		b.note("latency: p50 %.1f ms, p99 %.1f ms", ms(t.P50), ms(t.P99))
		share, err := st.idle(ctx)
		idle = append(idle, 100*share)
		return r, err
	})
	if err != nil {
		return err
	}
	b.add("latency", "sent to received, p50", "ms", less, p50...).goal(2)
	b.add("latency", "sent to received, p99", "ms", less, p99...).goal(5)
	b.add("latency", "idle daemon and redis", "% of a core", less, idle...).goal(3)
	return nil
}

func ms(microseconds int64) float64 { return float64(microseconds) / 1000 }
