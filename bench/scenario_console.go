package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	consoleEvents      = 1_000_000 // of one company
	consoleSubscribers = 10_000    // each gets the same number of events
	failingEndpoints   = 26        // of 256, so that a tenth of the deliveries is dead
	pageViews          = 20        // at each page
	uncachedViews      = 5         // at each page that is kept for some seconds
	consoleCacheLife   = 5200 * time.Millisecond
	consoleJobs        = 20
)

// consolePages measures the pages of the web console about a company that has many
// subscribers, events and dead letters.
func consolePages(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{
		delivery: "jitter: 0, schedule: [100ms]", environment: []string{"SPENDHOOK_SUBSCRIBERS_MAX_PER_COMPANY=10000"},
	})
	if err != nil {
		return err
	}
	defer st.stop()
	pages, err := b.fillConsole(ctx, st)
	if err != nil {
		return err
	}
	d := st.daemons[0]
	for _, p := range pages {
		owner := company(0)
		if p.all {
			owner = ""
		}
		v, err := d.openConsole(ctx, owner)
		if err != nil {
			return err
		}
		times, every := pageViews, time.Duration(0)
		if p.cached {
			times, every = uncachedViews, consoleCacheLife
		}
		l, err := st.measurePage(ctx, v, p.path, times, every)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		b.note("console: %-22s p50 %6.1f ms, p95 %6.1f ms, CPU %5.1f ms, %6.1f kB", p.name, ms(l.p50.Microseconds()), ms(l.p95.Microseconds()), ms(l.cpu.Microseconds()), float64(l.size)/1e3)
		b.add("console", p.name+", p50", "ms", less, ms(l.p50.Microseconds()))
		b.add("console", p.name+", p95", "ms", less, ms(l.p95.Microseconds())).goal(150)
		b.add("console", p.name+", CPU of a refresh", "ms", less, ms(l.cpu.Microseconds())).goal(50)
	}
	return nil
}

// consolePage is a page, and whether it is about all companies. A page that is cached for
// some seconds is also timed when its cache has expired.
type consolePage struct {
	name, path  string
	all, cached bool
}

// fillConsole creates the company's data and returns the pages to measure.
func (b *bench) fillConsole(ctx context.Context, st *stack) ([]consolePage, error) {
	d := st.daemons[0]
	n := b.scaled(consoleSubscribers, 256)
	list := make([]subscription, n)
	for i := range list {
		endpoint := st.receiver.Endpoints[i%len(st.receiver.Endpoints)]
		list[i] = subscription{name: "bench " + strconv.Itoa(i), url: endpoint + "/" + strconv.Itoa(i), event: numberedType(i)}
	}
	start := time.Now()
	ids, err := d.subscribeAll(ctx, list)
	if err != nil {
		return nil, err
	}
	b.note("console: %d subscribers in %.0f s", n, time.Since(start).Seconds())
	if err := st.receiver.set(ctx, failingEndpoints, mode{Fail: 1}); err != nil {
		return nil, err
	}
	run, err := st.newRun(ctx)
	if err != nil {
		return nil, err
	}
	start = time.Now()
	load, err := st.postArrays(ctx, loadSpec{Run: run, Companies: 1, Types: n, Count: int64(b.scaled(consoleEvents, 10_000)), For: drainTime})
	if err != nil {
		return nil, err
	}
	accepted := time.Since(start)
	if err := st.awaitSettled(ctx, drainTime); err != nil {
		return nil, err
	}
	b.note("console: %d events, accepted in %.0f s and settled after %.0f s", load.Accepted, accepted.Seconds(), time.Since(start).Seconds())
	for _, id := range ids[:consoleJobs] {
		in := map[string]any{"since": start.UTC().Format(time.RFC3339), "dryRun": true}
		var job struct{}
		if err := d.call(ctx, http.MethodPost, "/api/v1/subscribers/"+id+"/recover?companyUuid="+company(0), in, &job); err != nil {
			return nil, err
		}
	}
	if err := st.awaitTraffic(ctx); err != nil {
		return nil, err
	}
	return d.consolePages(ctx, ids[0])
}

// awaitTraffic waits until the daemon has written the counters of the charts, which it does every
// 10 s.
func (s *stack) awaitTraffic(ctx context.Context) error {
	return await(ctx, startTime, func() (bool, error) {
		n, err := s.redis.ask(ctx, "EVAL", `return #redis.call('KEYS', 'sh:{*}:tm:*')`, "0")
		return n != "0", err
	})
}

// consolePages returns all pages. The pages about one object show the first one of its list.
func (d *daemon) consolePages(ctx context.Context, subscriber string) ([]consolePage, error) {
	event, err := d.first(ctx, "/api/v1/events?size=1&companyUuid="+company(0))
	if err != nil {
		return nil, err
	}
	dead, err := d.first(ctx, "/api/v1/deliveries?status=DEAD&size=1&companyUuid="+company(0))
	if err != nil {
		return nil, err
	}
	return []consolePage{
		{name: "overview", path: "/console/"},
		{name: "overview, not cached", path: "/console/", cached: true},
		{name: "subscribers", path: "/console/subscribers"},
		{name: "failing subscribers", path: "/console/subscribers?state=failing"},
		{name: "one subscriber", path: "/console/subscribers/" + subscriber},
		{name: "events", path: "/console/events"},
		{name: "one event", path: "/console/events/" + company(0) + "/" + event},
		{name: "deliveries", path: "/console/deliveries"},
		{name: "dead letters", path: "/console/dead"},
		{name: "one delivery", path: "/console/deliveries/" + dead},
		{name: "jobs", path: "/console/jobs"},
		{name: "audit", path: "/console/audit"},
		{name: "event types", path: "/console/event-types"},
		{name: "quarantine", path: "/console/quarantine"},
		{name: "overview of all", path: "/console/", all: true, cached: true},
		{name: "system", path: "/console/system", all: true},
	}, nil
}

// first returns the id of the first item of a list.
func (d *daemon) first(ctx context.Context, path string) (string, error) {
	var list struct {
		Content []struct {
			ID string `json:"id"`
		} `json:"content"`
	}
	if err := d.call(ctx, http.MethodGet, path, nil, &list); err != nil {
		return "", err
	}
	if len(list.Content) == 0 {
		return "", fmt.Errorf("%s: the list is empty", path)
	}
	return list.Content[0].ID, nil
}
