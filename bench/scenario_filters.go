package main

import (
	"context"
	"fmt"
	"strings"
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

const (
	hostileFilters = 50
	// hostileRate is how many events/s the company with hostile filters sends. Its filters need more than
	// all cores for that.
	hostileRate = 50
)

// costliest is a filter that takes all steps that one evaluation may take, on any event.
func costliest() string {
	list := "[" + strings.Repeat("1,", 24) + "1]"
	return list + ".all(a, " + list + ".all(b, " + list + ".all(c, a + b + c == 3)))"
}

// hostileFiltersResult is one round of hostilefilters.
type hostileFiltersResult struct {
	quiet, other bystanderResult
	attack       loadResult
	resident     float64 // the daemon's largest resident memory, in bytes
}

// filtersHostile measures a company that sends 10 events/s while another one has costly filters.
func filtersHostile(ctx context.Context, b *bench) error {
	var rounds []hostileFiltersResult
	for range b.Rounds {
		r, err := b.hostileFiltersRound(ctx)
		if err != nil {
			return err
		}
		b.note("hostilefilters: the other's p50 %.1f, p99 %.1f, max %.1f ms (quiet %.1f, %.1f), %d lost; %d events of the attacker accepted, %d refused; %.0f MB resident",
			ms(r.other.P50), ms(r.other.P99), ms(r.other.Max), ms(r.quiet.P50), ms(r.quiet.P99), r.other.lost, r.attack.Accepted, r.attack.Refused, r.resident/1e6)
		rounds = append(rounds, r)
	}
	addOf(b, "hostilefilters", "the other's p99, of quiet", "", less, rounds, func(r hostileFiltersResult) float64 { return float64(r.other.P99) / float64(r.quiet.P99) }).goal(3)
	addOf(b, "hostilefilters", "the other's p99", "ms", less, rounds, func(r hostileFiltersResult) float64 { return ms(r.other.P99) })
	addOf(b, "hostilefilters", "quiet p99", "ms", less, rounds, func(r hostileFiltersResult) float64 { return ms(r.quiet.P99) })
	addMustBeZero(b, "hostilefilters", "the other's events lost", rounds, func(r hostileFiltersResult) float64 { return float64(r.other.lost + r.quiet.lost) })
	addOf(b, "hostilefilters", "daemon, most resident", "MB", less, rounds, func(r hostileFiltersResult) float64 { return r.resident / 1e6 })
	return nil
}

func (b *bench) hostileFiltersRound(ctx context.Context) (r hostileFiltersResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{other: true})
	if err != nil {
		return r, err
	}
	defer st.stop()
	other, err := st.newBystander(ctx, []int{otherCompany}, otherCompanyRate)
	if err != nil {
		return r, err
	}
	hostile := st.receiver.subscriptions([]int{floodingCompany}, hostileFilters)
	for i := range hostile {
		hostile[i].filter = costliest()
	}
	if _, err := st.daemons[0].subscribeAll(ctx, hostile); err != nil {
		return r, err
	}
	if r.quiet, err = other.alone(ctx, b.PacedFor); err != nil {
		return r, err
	}
	r.other, err = other.sendDuring(ctx, b.PacedFor, func(run int64) error {
		load, err := startLoad(loadSpec{
			Targets: st.targets(), Clients: bareClients, Run: run, Of: []int{floodingCompany}, Batch: 1,
			Rate: hostileRate, Count: maxEvents, For: b.PacedFor,
		})
		if err != nil {
			return err
		}
		if err := pause(ctx, b.PacedFor); err != nil {
			return err
		}
		r.attack, err = load.stop(ctx)
		return err
	})
	if err != nil {
		return r, err
	}
	peak, err := peakMemory(st.daemons[0].Pid())
	r.resident = float64(peak)
	return r, err
}
