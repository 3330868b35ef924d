package console

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/internal/partition"
	"spendhook/subscribers"
)

// keepFor is the maximum age of a cached value.
const keepFor = 5 * time.Second

// cached is a value that expires. Concurrent readers share one read of a new value.
type cached[T any] struct {
	mu    sync.Mutex
	value T
	at    time.Time
}

func (c *cached[T]) get(now time.Time, read func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && now.Sub(c.at) < keepFor {
		return c.value, nil
	}
	value, err := read()
	if err == nil {
		c.value, c.at = value, now
	}
	return value, err
}

// overviewOfAll has the figures of all companies and of the system.
type overviewOfAll struct {
	Status  Status
	Backlog backlog.Total
	Traffic traffic.Series
	Failing []endpointRow
	Slow    []endpointRow
}

// companySummary has the figures of one company.
type companySummary struct {
	Pending int64
	Stats   store.Stats
	States  subscriberStates
	Worst   []subscriberRow // failing ones first, then the largest backlogs
	Traffic traffic.Series
	Failing []endpointRow
	Slow    []endpointRow
}

type subscriberStates struct{ Total, Healthy, Failing, Disabled, Paused int }

type overviewPage struct {
	All     *overviewOfAll  // nil on the page of one company
	Company *companySummary // nil on the page of all companies
	Recent  []deliveryRow   // the latest dead letters of a company
	Range   chartRange
	Charts  []chart
}

func (s *server) overview(ctx context.Context, v *visit, company *uuid.UUID) error {
	if company == nil {
		all, err := s.system.get(s.opts.Now(), func() (overviewOfAll, error) { return s.readSystem(ctx) })
		if err != nil {
			return err
		}
		over := v.chartRange(all.Traffic)
		v.show("overview", "Overview", overviewPage{All: &all, Range: over, Charts: companyCharts(over)})
		return nil
	}
	summary, err := s.summary(ctx, *company)
	if err != nil {
		return err
	}
	over := v.chartRange(summary.Traffic)
	page := overviewPage{Company: &summary, Range: over, Charts: companyCharts(over)}
	if v.May(readDeliveries) {
		found, err := s.opts.Deliveries.List(ctx, store.Filter{Company: company, Statuses: []delivery.Status{delivery.StatusDead}, Size: 5})
		if err != nil {
			return err
		}
		if page.Recent, err = s.deliveryRows(ctx, found.Items); err != nil {
			return err
		}
	}
	v.show("overview", "Overview", page)
	return nil
}

func (s *server) readSystem(ctx context.Context) (all overviewOfAll, err error) {
	if all.Status, err = s.opts.System.Status(ctx); err != nil {
		return all, err
	}
	if all.Backlog, err = s.opts.Dispatcher.Backlog.Measure(ctx, partition.All(), 10); err != nil {
		return all, err
	}
	if all.Traffic, err = s.opts.Traffic.Read(ctx, nil, nil); err != nil {
		return all, err
	}
	all.Failing, all.Slow, err = s.worstEndpoints(ctx, nil)
	return all, err
}

func (s *server) summary(ctx context.Context, company uuid.UUID) (companySummary, error) {
	entry := &cached[companySummary]{}
	if earlier, ok, _ := s.companies.PeekOrAdd(company, entry); ok {
		entry = earlier
	}
	return entry.get(s.opts.Now(), func() (sum companySummary, err error) {
		if sum.Pending, err = s.opts.Events.Pending(ctx, company); err != nil {
			return sum, err
		}
		if sum.Stats, err = s.opts.Deliveries.CompanyStats(ctx, company); err != nil {
			return sum, err
		}
		subs, states, err := s.states(ctx, company)
		if err != nil {
			return sum, err
		}
		sum.States = countStates(len(subs), states)
		if sum.Worst, err = s.worst(ctx, subs, states); err != nil {
			return sum, err
		}
		if sum.Traffic, err = s.opts.Traffic.Read(ctx, &company, nil); err != nil {
			return sum, err
		}
		sum.Failing, sum.Slow, err = s.worstEndpoints(ctx, &company)
		return sum, err
	})
}

// unhealthyStates returns the states of the unhealthy subscribers.
func unhealthyStates(subs []*subscribers.Subscriber, failing, paused []uuid.UUID) map[uuid.UUID]string {
	named := make(map[uuid.UUID]string, len(failing)+len(paused))
	for _, id := range failing {
		named[id] = "failing"
	}
	for _, id := range paused {
		named[id] = "paused"
	}
	states := map[uuid.UUID]string{}
	for _, sub := range subs {
		state := named[sub.UUID]
		if !sub.Enabled {
			state = "disabled"
		}
		if state != "" {
			states[sub.UUID] = state
		}
	}
	return states
}

func countStates(total int, states map[uuid.UUID]string) subscriberStates {
	n := subscriberStates{Total: total, Healthy: total - len(states)}
	for _, state := range states {
		switch state {
		case "failing":
			n.Failing++
		case "disabled":
			n.Disabled++
		case "paused":
			n.Paused++
		}
	}
	return n
}

// maxCompared bounds the subscribers of each state that worst compares.
const maxCompared = 50

// worst returns at most ten subscribers with problems: unhealthy subscribers, and those with
// the most pending or dead deliveries.
func (s *server) worst(ctx context.Context, subs []*subscribers.Subscriber, states map[uuid.UUID]string) ([]subscriberRow, error) {
	var chosen []subscribers.Subscriber
	seen := map[string]int{}
	for _, sub := range subs {
		state := states[sub.UUID]
		if sub.Locked != nil || seen[state] == maxCompared {
			continue
		}
		seen[state]++
		shown := *sub
		shown.Secrets, shown.Certificate = nil, nil
		chosen = append(chosen, shown)
	}
	rows, err := s.subscriberRows(ctx, chosen)
	return worst(rows), err
}

func worst(rows []subscriberRow) []subscriberRow {
	rows = slices.DeleteFunc(rows, func(r subscriberRow) bool {
		return r.State == "healthy" && r.Stats.Live == 0 && r.Stats.Dead == 0
	})
	weight := map[string]int{"failing": 3, "disabled": 2, "paused": 1}
	slices.SortStableFunc(rows, func(a, b subscriberRow) int {
		if d := weight[b.State] - weight[a.State]; d != 0 {
			return d
		}
		return cmp.Compare(b.Stats.Live+b.Stats.Dead, a.Stats.Live+a.Stats.Dead)
	})
	return rows[:min(len(rows), 10)]
}

type systemPage struct{ overviewOfAll }

// Own reports whether a replica renders this page. The name of a replica is its stored id,
// optionally followed by a dot and a suffix.
func (p systemPage) Own(replica string) bool {
	id, _, _ := strings.Cut(replica, ".")
	return id == p.Status.Replica
}

func (s *server) systemPage(ctx context.Context, v *visit) error {
	if v.Company != nil {
		return errForbidden
	}
	all, err := s.system.get(s.opts.Now(), func() (overviewOfAll, error) { return s.readSystem(ctx) })
	if err != nil {
		return err
	}
	v.show("system", "System", systemPage{all})
	return nil
}
