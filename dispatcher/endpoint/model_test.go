package endpoint

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

const modelEndpoints, modelCompanies = 12, 4 // company 0 has one endpoint

// modelCompany is the company of an endpoint.
func modelCompany(endpoint int) int {
	if endpoint == 0 {
		return 0
	}
	return 1 + endpoint%(modelCompanies-1)
}

// modelHost is where that endpoint is, with others of its company: two hosts, and one
// that is not known.
func modelHost(endpoint int) string { return []string{"a:443", "b:443", ""}[endpoint/3%3] }

// modelDelivery is a delivery and the last decision on it.
type modelDelivery struct {
	*Delivery
	endpoint int
	decision Decision
}

// model follows an Admission by simple means.
type model struct {
	*Admission
	places  int
	now     time.Time
	stopped bool

	started  []*modelDelivery
	waiting  [modelEndpoints][]*modelDelivery // in their order
	parked   []*modelDelivery                 // queued ones, for their host, in their order
	outcomes [modelCompanies]int
	extra    [modelCompanies]int // of the outcomes, those without a place
	failing  [modelEndpoints]bool
	last     [modelCompanies]bool // the company's last outcome was unreachable
	unnamed  map[uuid.UUID]bool   // companies that were skipped
}

func newModel(t *rapid.T) *model {
	m := &model{
		places:  rapid.SampledFrom([]int{2, 3, 8, 20, 64, 200}).Draw(t, "places"),
		now:     time.Unix(1_000_000, 0),
		unnamed: map[uuid.UUID]bool{},
	}
	m.Admission = New(Options{
		Places:          m.places,
		PerEndpoint:     rapid.IntRange(1, 4).Draw(t, "per endpoint"),
		PerHost:         rapid.IntRange(1, 6).Draw(t, "per host"),
		BreakerFailures: rapid.IntRange(1, 3).Draw(t, "breaker failures"),
		BreakerPause:    10 * time.Second,
		Now:             func() time.Time { return m.now },
	})
	return m
}

// count is the number of deliveries in memory that match.
func (m *model) count(match func(*modelDelivery) bool) (inFlight, waiting int) {
	for _, d := range m.started {
		if match(d) {
			inFlight++
		}
	}
	for _, queue := range append(m.waiting[:], m.parked) {
		for _, d := range queue {
			if match(d) {
				waiting++
			}
		}
	}
	return inFlight, waiting
}

func (m *model) held(match func(*modelDelivery) bool) int {
	inFlight, waiting := m.count(match)
	return inFlight + waiting
}

func all(*modelDelivery) bool { return true }

// placesOf is how many places the companies hold.
func (m *model) placesOf(companies ...int) (n int) {
	for _, c := range companies {
		n += m.held(of(c)) + m.outcomes[c]
	}
	return n
}

// used is how many places are taken.
func (m *model) used() int {
	used := m.placesOf(0, 1, 2, 3)
	for _, n := range m.extra {
		used -= n
	}
	return used
}

func of(company int) func(*modelDelivery) bool {
	return func(d *modelDelivery) bool { return modelCompany(d.endpoint) == company }
}

func to(endpoint int) func(*modelDelivery) bool {
	return func(d *modelDelivery) bool { return d.endpoint == endpoint }
}

// at are the deliveries that go to the same host for the same company.
func at(endpoint int) func(*modelDelivery) bool {
	return func(d *modelDelivery) bool {
		return modelHost(endpoint) != "" && modelHost(d.endpoint) == modelHost(endpoint) && modelCompany(d.endpoint) == modelCompany(endpoint)
	}
}

// lastEighth reports whether no more than an eighth of the places is free.
func (m *model) lastEighth(used int) bool { return 8*(m.places-used) < m.places+8 }

// enter lets one delivery in and checks the decision.
func (m *model) enter(t *rapid.T, endpoint int, queued bool) Decision {
	d := &modelDelivery{endpoint: endpoint}
	d.Delivery = &Delivery{
		Company: id(modelCompany(endpoint)), Endpoint: id(endpoint), Host: modelHost(endpoint), Queued: queued,
		Alone:   modelCompany(endpoint) == 0,
		Decided: func(decision Decision) { m.decided(t, d, decision) },
	}
	used, _ := m.count(all)
	own, waiting := m.count(to(endpoint))
	atHost, _ := m.count(at(endpoint))
	direct := m.held(func(d *modelDelivery) bool { return !d.Queued })
	decision := m.Enter(d.Delivery)
	d.decision = decision
	switch {
	case m.stopped != (decision == Stopped):
		t.Fatalf("decision %d, stopped %v", decision, m.stopped)
	case queued && decision != Start && decision != Wait && !m.stopped:
		t.Fatalf("a queued delivery: decision %d", decision)
	case decision == OverflowBreaker && m.endpoints[id(d.endpoint)].openUntil.IsZero():
		t.Fatal("the breaker is not open")
	}
	if !queued && (decision == Start || decision == Wait) && direct >= m.places {
		t.Fatalf("%d direct deliveries in %d places", direct+1, m.places)
	}
	if full := atHost >= m.o.PerHost; decision == Start && full || (decision == OverflowHost || queued && decision == Wait) && !full {
		t.Fatalf("decision %d beside %d at the host", decision, atHost)
	}
	switch decision {
	case Start:
		m.started = append(m.started, d)
		switch {
		case queued:
		case waiting > 0 || own >= max(m.o.PerEndpoint, minPerEndpoint):
			t.Fatalf("starts before %d, beside %d", waiting, own)
		case m.endpoints[id(endpoint)].ramp > 0 && own >= m.endpoints[id(endpoint)].ramp:
			t.Fatalf("starts beside %d, although the load is limited to %d", own, m.endpoints[id(endpoint)].ramp)
		case m.lastEighth(used) && (own > 0 || m.failing[endpoint]):
			t.Fatalf("takes of the last eighth, beside %d, failing: %v", own, m.failing[endpoint])
		}
	case Wait:
		if queued {
			m.parked = append(m.parked, d)
			break
		}
		m.waiting[endpoint] = append(m.waiting[endpoint], d)
	default:
	}
	return decision
}

// decided checks the decision on a delivery that waited.
func (m *model) decided(t *rapid.T, d *modelDelivery, decision Decision) {
	queue := m.waiting[d.endpoint]
	if d.Queued {
		m.unparked(t, d, decision)
		return
	}
	switch {
	case d.decision != Wait || decision == Wait:
		t.Fatalf("decided %d after %d", decision, d.decision)
	case queue[0] != d:
		t.Fatal("decided out of order")
	case decision == OverflowBreaker && m.endpoints[id(d.endpoint)].openUntil.IsZero():
		t.Fatal("the breaker is not open")
	}
	d.decision = decision
	m.waiting[d.endpoint] = queue[1:]
	if decision == Start {
		m.started = append(m.started, d)
	}
}

// unparked checks the decision on a queued delivery that waited for its host.
func (m *model) unparked(t *rapid.T, d *modelDelivery, decision Decision) {
	first := m.parked[slices.IndexFunc(m.parked, at(d.endpoint))]
	if d.decision != Wait || decision != Start || first != d {
		t.Fatalf("decided %d after %d, the first: %v", decision, d.decision, first == d)
	}
	d.decision = decision
	m.parked = slices.DeleteFunc(m.parked, func(p *modelDelivery) bool { return p == d })
	if decision == Start {
		m.started = append(m.started, d)
	}
}

// take admits as many deliveries as may be started.
func (m *model) take(t *rapid.T) {
	company := rapid.IntRange(0, modelCompanies-1).Draw(t, "company")
	free, was := m.Free(id(company)), m.used()
	switch {
	case free < 0 || m.stopped && free > 0:
		t.Fatalf("%d may be started", free)
	case m.lastEighth(was) && (free > 1 || free == 1 && m.last[company]):
		t.Fatalf("%d of the last eighth may be started, failing: %v", free, m.last[company])
	}
	n := rapid.IntRange(0, free).Draw(t, "taken")
	for range n {
		if held, left := m.placesOf(company), m.places-m.used(); held >= left {
			t.Fatalf("one more for a company that holds %d beside %d free", held, left)
		}
		endpoint := rapid.IntRange(0, modelEndpoints-1).Filter(func(e int) bool { return modelCompany(e) == company }).Draw(t, "endpoint")
		used, _ := m.count(all)
		kept := m.failing[endpoint] && m.lastEighth(used) // the last eighth, from one that fails
		if m.enter(t, endpoint, false) == OverflowShare && company == 0 && !kept {
			t.Fatal("the only endpoint of a company overflows by its share")
		}
	}
	if held, left := m.placesOf(company), m.places-m.used(); n > 1 && (held > left || left < m.reserve()) {
		t.Fatalf("%d taken: now it holds %d beside %d free", n, held, left)
	}
}

func (m *model) leave(t *rapid.T) {
	if len(m.started) == 0 {
		t.Skip("none is in flight")
	}
	i := rapid.IntRange(0, len(m.started)-1).Draw(t, "which")
	r := rapid.SampledFrom([]Result{answered, unreachable, unreachable, aborted, {Latency: time.Millisecond, TooMany: true}}).Draw(t, "result")
	m.leaveAt(t, i, r)
}

func (m *model) leaveAt(t *rapid.T, i int, r Result) {
	d := m.started[i]
	m.started = slices.Delete(m.started, i, i+1)
	if !r.NotCounted {
		m.failing[d.endpoint] = r.Unreachable
		m.last[modelCompany(d.endpoint)] = r.Unreachable
	}
	m.Learn(d.Delivery, r)
	m.named(t, m.Leave(d.Delivery, r))
}

// named checks the companies that may start more.
func (m *model) named(t *rapid.T, again []uuid.UUID) {
	for _, company := range again {
		if !m.unnamed[company] || m.Free(company) == 0 {
			t.Fatalf("named: company %v, skipped %v, %d free", company, m.unnamed[company], m.Free(company))
		}
		delete(m.unnamed, company)
	}
}

func (m *model) hold(t *rapid.T) {
	company := rapid.IntRange(0, modelCompanies-1).Draw(t, "company")
	if m.places-m.used() <= m.reserve() {
		m.extra[company]++
	}
	m.Hold(id(company))
	m.outcomes[company]++
}

func (m *model) release(t *rapid.T) {
	company := rapid.IntRange(0, modelCompanies-1).Draw(t, "company")
	if m.outcomes[company] == 0 {
		t.Skip("it has no outcome")
	}
	m.recorded(company)
	m.named(t, m.Release(id(company)))
}

func (m *model) recorded(company int) {
	m.outcomes[company]--
	m.extra[company] = max(m.extra[company]-1, 0)
}

func (m *model) pass(t *rapid.T) {
	company := id(rapid.IntRange(0, modelCompanies-1).Draw(t, "company"))
	switch may := m.Skipped(company); {
	case may && m.Free(company) == 0:
		t.Fatal("a company may start nothing")
	case !may:
		m.unnamed[company] = true
	}
}

// backlogged enters a delivery whose turn found a retry set of the endpoint.
func (m *model) backlogged(t *rapid.T) {
	endpoint := rapid.IntRange(0, modelEndpoints-1).Draw(t, "endpoint")
	d := &Delivery{Company: id(modelCompany(endpoint)), Endpoint: id(endpoint), Host: modelHost(endpoint), Backlogged: true}
	if got := m.Enter(d); got != OverflowQueue && !m.stopped {
		t.Fatalf("decision %d", got)
	}
	if waiting := m.waiting[endpoint]; len(waiting) > 0 && !m.stopped {
		t.Fatalf("%d still wait", len(waiting))
	}
}

// check compares the states of the Admission and the model.
func (m *model) check(t *rapid.T) {
	inFlight, _ := m.count(all)
	c := m.Counts()
	if c.InFlight != inFlight || c.Held-m.Admission.extra != m.used() {
		t.Fatalf("counts %+v, want %d in flight, %d held", c, inFlight, m.used())
	}
	if c.Closed+c.Open != len(m.endpoints) {
		t.Fatalf("counts %+v of %d endpoints", c, len(m.endpoints))
	}
	slowed := 0
	for _, e := range m.endpoints {
		if e.ramp > 0 {
			slowed++
		}
		if e.ramp > 0 && m.isOpen(e) {
			t.Fatalf("a load of %d although the breaker is open", e.ramp)
		}
	}
	if c.Slowed != slowed {
		t.Fatalf("counts %+v, %d are slowed", c, slowed)
	}
	for e := range modelEndpoints {
		if inFlight, _ := m.count(at(e)); inFlight > m.o.PerHost {
			t.Fatalf("%d in flight at the host of endpoint %d", inFlight, e)
		}
	}
	if m.stopped { // what waits is not decided any more
		return
	}
	for _, d := range m.parked {
		if inFlight, _ := m.count(at(d.endpoint)); inFlight != m.o.PerHost {
			t.Fatalf("a delivery waits for a host with %d in flight", inFlight)
		}
	}
	for e, queue := range m.waiting {
		own, _ := m.count(to(e))
		atHost, _ := m.count(at(e))
		if len(queue) > 0 && own == 0 && atHost < m.o.PerHost {
			t.Fatalf("%d wait for endpoint %d, and nothing is in flight there, beside %d at its host", len(queue), e, atHost)
		}
		if len(queue) > 0 && m.isOpen(m.endpoints[id(e)]) {
			t.Fatalf("%d wait for endpoint %d, whose breaker is open", len(queue), e)
		}
	}
	shares, others := m.Holding()
	for company := range modelCompanies {
		want, ok := shares[id(company)]
		if !ok {
			want = others
		}
		if got := m.Free(id(company)); got != want {
			t.Fatalf("company %d: free %d, the turn gets %d", company, got, want)
		}
	}
}

// drain ends all attempts and checks that no delivery waits and no company stays skipped.
func (m *model) drain(t *rapid.T) {
	for len(m.started) > 0 {
		m.leaveAt(t, 0, answered)
		m.check(t)
	}
	for company := range m.outcomes {
		for m.outcomes[company] > 0 {
			m.recorded(company)
			again := m.Release(id(company))
			if !m.stopped {
				m.named(t, again)
			}
		}
	}
	if m.stopped {
		return
	}
	if _, waiting := m.count(all); waiting > 0 {
		t.Fatalf("%d wait for ever", waiting)
	}
	if len(m.unnamed) > 0 {
		t.Fatalf("skipped and never named: %v", m.unnamed)
	}
	if len(m.holding) != 0 || m.skipped.Len() != 0 || len(m.hosts) != 0 {
		t.Fatalf("%d companies hold, %d are skipped", len(m.holding), m.skipped.Len())
	}
}

func TestAdmissionFollowsTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		endpoint := rapid.IntRange(0, modelEndpoints-1)
		t.Repeat(map[string]func(*rapid.T){
			"":       m.check,
			"take":   m.take,
			"take2":  m.take,
			"direct": func(t *rapid.T) { m.enter(t, endpoint.Draw(t, "endpoint"), false) },
			"burst": func(t *rapid.T) {
				e := endpoint.Draw(t, "endpoint")
				for range 10 {
					m.enter(t, e, false)
				}
			},
			"queued":     func(t *rapid.T) { m.enter(t, endpoint.Draw(t, "endpoint"), true) },
			"leave":      m.leave,
			"leave2":     m.leave,
			"hold":       m.hold,
			"release":    m.release,
			"pass":       m.pass,
			"backlogged": m.backlogged,
			"time":       func(*rapid.T) { m.now = m.now.Add(m.o.BreakerPause / 2) },
			"stop": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "stop") > 0 {
					t.Skip("not yet")
				}
				m.stopped = true
				m.Stop()
			},
		})
		m.drain(t)
	})
}
