package main

import (
	"context"
	"fmt"
)

const (
	unfilteredFanOut = 5
	filteredFanOut   = 10 // every second one matches
)

// filters compares ten subscribers with filters, of which five match, with five that
// have none. The difference is the cost of a filter that does not match.
func filters(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	without := st.receiver.subscriptions([]int{0}, unfilteredFanOut)
	with := st.receiver.subscriptions([]int{1}, filteredFanOut)
	for i := range with {
		with[i].filter = fmt.Sprintf(`metadata.pad.startsWith("%c")`, "xy"[i%2]) // the pad begins with x
	}
	if _, err := st.daemons[0].subscribeAll(ctx, append(without, with...)); err != nil {
		return err
	}
	var lists [2][]sustained
	for company, name := range []string{"filters-without", "filters-with"} {
		lists[company], err = b.rounds(ctx, name, st, func(ctx context.Context) (sustained, error) {
			return st.sustain(ctx, loadSpec{Of: []int{company}, Batch: 1, Count: maxAhead, For: b.LoadFor}, unfilteredFanOut)
		})
		if err != nil {
			return err
		}
		b.add("filters", name+", "+rateName, "1/s", more, each(lists[company], sustained.rate)...)
		b.addCPU(name, lists[company])
	}
	var ratios []float64
	for i, r := range lists[1] {
		ratios = append(ratios, r.ratio()/lists[0][i].ratio())
	}
	b.add("filters", "with ten filters, of five without any", "", more, ratios...).goal(0.8)
	return nil
}
