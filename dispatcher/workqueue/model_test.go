package workqueue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
)

const (
	modelCompanies   = 3
	modelSubscribers = 2 // of each company
)

// model is what the work of one partition should look like. One replica owns it at a time; others may still finish what
// they have begun.
type model struct {
	*bench

	t         *rapid.T
	companies []uuid.UUID
	owner     *process
	former    []*process
	runs      int

	matched  map[string]bool // events, <company>/<id>: whether they are matched
	accepted []string        // events in the order in which they were accepted
	live     map[string]bool // deliveries that wait or are in flight
	paused   map[string]bool // endpoints, <company>/<subscriber>
	ordered  map[string]bool
	byKey    map[string]bool // new deliveries of the endpoint have order keys
}

// TestWorkIsBegunOnce takes the work of a partition through random steps: accepted by the owner or by another replica,
// matched, attempted, requeued, paused, ordered, handed over, and lost with its owner. After each step, all that may be
// begun is begun, once, and nothing else.
func TestWorkIsBegunOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rapid.Check(t, func(rt *rapid.T) {
		if err := b.client.FlushDB(b.ctx).Err(); err != nil {
			rt.Fatalf("flush: %v", err)
		}
		copied := *b
		copied.tb, copied.orderKeys = rt, map[string]string{}
		m := &model{
			bench: &copied, t: rt, companies: companies(testPartition, modelCompanies),
			matched: map[string]bool{}, live: map[string]bool{}, paused: map[string]bool{}, ordered: map[string]bool{}, byKey: map[string]bool{},
		}
		m.launch()
		defer m.end()
		rt.Repeat(map[string]func(*rapid.T){
			"":             func(*rapid.T) { m.check() },
			"accept":       func(*rapid.T) { m.accepts() },
			"match":        func(*rapid.T) { m.matches() },
			"attempt":      func(*rapid.T) { m.attempts() },
			"requeue":      func(*rapid.T) { m.requeues() },
			"pause":        func(*rapid.T) { m.pauses() },
			"order":        func(*rapid.T) { m.orders() },
			"order by key": func(*rapid.T) { m.ordersByKey() },
			"hand over":    func(*rapid.T) { m.handsOver() },
			"release":      func(*rapid.T) { m.releases() },
			"kill":         func(*rapid.T) { m.kills() },
			"match again":  func(*rapid.T) { m.matches() },
			"accept again": func(*rapid.T) { m.accepts() },
		})
	})
}

// patient loses no replica, however slow the machine is.
func patient(o *workqueue.Options) { o.HeartbeatEvery, o.AttemptTimeout = time.Hour, time.Millisecond }

// launch starts the next owner.
func (m *model) launch() {
	m.runs++
	m.owner = m.bench.launch(fmt.Sprint("r", m.runs), patient)
	eventually(m.t, "it owns all", func() bool { return m.owner.Loaded() == partition.Count })
}

func (m *model) end() {
	m.owner.stop()
	for _, p := range m.former {
		p.stop()
	}
}

func (m *model) company() uuid.UUID {
	return rapid.SampledFrom(m.companies).Draw(m.t, "company")
}

func (m *model) accepts() {
	company := m.company()
	var all []string
	for range rapid.IntRange(1, 5).Draw(m.t, "events") {
		all = append(all, fmt.Sprintf("e%04d", len(m.accepted)))
		m.accepted = append(m.accepted, event(company, all[len(all)-1]))
		m.matched[m.accepted[len(m.accepted)-1]] = false
	}
	if rapid.Bool().Draw(m.t, "by the owner") {
		m.owner.accept(company, all...)
	} else {
		m.accept(company, all...)
	}
}

// draw is a task of any process, of an event or of a delivery; the step is skipped when there is none.
func (m *model) draw(events bool) (*process, task) {
	type held struct {
		p *process
		t task
	}
	var all []held
	for _, p := range append([]*process{m.owner}, m.former...) {
		p.mu.Lock()
		for _, t := range p.tasks {
			if (t.sub == uuid.Nil) == events {
				all = append(all, held{p, t})
			}
		}
		p.mu.Unlock()
	}
	if len(all) == 0 {
		m.t.Skip("nothing is begun")
	}
	slices.SortFunc(all, func(a, b held) int { return strings.Compare(a.t.String()+a.p.name, b.t.String()+b.p.name) })
	one := rapid.SampledFrom(all).Draw(m.t, "task")
	return one.p, one.t
}

func (m *model) matches() {
	p, t := m.draw(true)
	outcomes := make([]outcome, modelSubscribers)
	for n := range outcomes {
		sub := subscriber(t.company, n)
		e, name := t.company.String()+"/"+sub.String(), t.String()+"/"+sub.String()
		if m.byKey[e] && !m.ordered[e] {
			m.orderKeys[name] = fmt.Sprint("k", rapid.IntRange(0, 1).Draw(m.t, "key"))
		}
		waiting := m.paused[e] || m.ordered[e] || m.orderKeys[name] != "" || slices.Contains(t.waits, sub)
		switch what := rapid.IntRange(0, 2).Draw(m.t, "outcome"); {
		case waiting || what == 0:
			outcomes[n] = waits
			m.live[name] = true
		case what == 1:
			outcomes[n] = fails
			m.live[name] = true
		default:
			outcomes[n] = succeeds
		}
	}
	m.matched[t.String()] = true
	p.match(t.String(), outcomes...)
}

func (m *model) attempts() {
	p, t := m.draw(false)
	if rapid.Bool().Draw(m.t, "succeeds") {
		delete(m.live, t.String())
		p.end(t.String(), succeeds)
	} else {
		p.end(t.String(), fails)
	}
}

// requeues requeues a task that could not be started.
func (m *model) requeues() {
	p, t := m.draw(rapid.Bool().Draw(m.t, "event"))
	p.remove(t)
	if err := p.Requeue(m.ctx, t.batch()); err != nil {
		m.t.Fatalf("requeue: %v", err)
	}
}

func (m *model) pauses() {
	company, n := m.company(), rapid.IntRange(0, modelSubscribers-1).Draw(m.t, "subscriber")
	e := company.String() + "/" + subscriber(company, n).String()
	if m.paused[e] = !m.paused[e]; m.paused[e] {
		m.setting(company, n, "paused", 1)
	} else {
		m.do("HDEL", "es:"+e, "paused")
		m.do("SADD", "told", "e:"+e)
	}
}

func (m *model) orders() {
	company, n := m.company(), rapid.IntRange(0, modelSubscribers-1).Draw(m.t, "subscriber")
	e := company.String() + "/" + subscriber(company, n).String()
	if m.ordered[e] || len(m.keys("eq:"+e)) > 0 {
		m.t.Skip("it has deliveries that are not in order")
	}
	m.ordered[e] = true
	m.setting(company, n, "ordered", 1)
}

func (m *model) ordersByKey() {
	company, n := m.company(), rapid.IntRange(0, modelSubscribers-1).Draw(m.t, "subscriber")
	e := company.String() + "/" + subscriber(company, n).String()
	m.byKey[e] = !m.byKey[e]
}

// handsOver has another replica own the partition. The former owner still works.
func (m *model) handsOver() {
	if len(m.former) == 2 {
		m.t.Skip("enough former owners")
	}
	m.owner.Leave(m.ctx)
	m.former = append(m.former, m.owner)
	m.launch()
}

// releases ends a former owner.
func (m *model) releases() {
	if len(m.former) == 0 {
		m.t.Skip("no former owner")
	}
	p := m.former[0]
	m.former = m.former[1:]
	p.stop()
}

// kills ends the owner. A new run of the same process starts.
func (m *model) kills() {
	name := m.owner.name
	m.owner.kill()
	for _, run := range m.client.ZRange(m.ctx, "sh:{0}:replicas", 0, -1).Val() { // no replica lives long enough to find it lost
		if strings.HasPrefix(run, name+".") {
			m.client.ZRem(m.ctx, "sh:{0}:replicas", run)
		}
	}
	m.owner = m.bench.launch(name, patient)
	eventually(m.t, "it owns all", func() bool { return m.owner.Loaded() == partition.Count })
}

// check compares what is begun with what may be begun.
func (m *model) check() {
	m.owner.settle()
	var wrong string
	for deadline := time.Now().Add(soon / 6); time.Now().Before(deadline); <-time.NewTimer(time.Millisecond).C {
		if wrong = m.wrong(); wrong == "" {
			return
		}
	}
	m.t.Fatalf("%s", wrong)
}

// wrong returns what is wrong; "" when nothing is.
func (m *model) wrong() string {
	begun := map[string][]string{} // by which processes
	for _, p := range append([]*process{m.owner}, m.former...) {
		for _, name := range p.has() {
			begun[name] = append(begun[name], p.name)
		}
	}
	for name, by := range begun {
		switch sub := strings.Count(name, "/") == 2; {
		case len(by) > 1:
			return fmt.Sprintf("%s is begun by %v", name, by)
		case !sub && m.matched[name]:
			return name + " is begun, and is matched"
		case sub && !m.live[name]:
			return name + " is begun, and has ended"
		}
	}
	for _, name := range m.accepted {
		if !m.matched[name] && len(begun[name]) == 0 {
			return name + " is not begun"
		}
	}
	return m.checkEndpoints(begun)
}

// checkEndpoints returns what is wrong with the deliveries in flight; "" when nothing is.
func (m *model) checkEndpoints(begun map[string][]string) string {
	waiting, inFlight := map[string][]string{}, map[string][]string{}
	for name := range m.live {
		parts := strings.Split(name, "/")
		e := parts[0] + "/" + parts[2]
		if len(begun[name]) > 0 {
			inFlight[e] = append(inFlight[e], name)
		} else {
			waiting[e] = append(waiting[e], name)
		}
	}
	for e, names := range inFlight {
		if wrong := m.overtaken(names, waiting[e]); wrong != "" {
			return wrong
		}
		most := testLimit * (1 + len(m.former))
		if m.ordered[e] {
			most = 1 + len(m.former)
		}
		if len(names) > most {
			return fmt.Sprintf("of %s, %v are in flight", e, names)
		}
	}
	for e, names := range waiting {
		most := testLimit
		if m.ordered[e] {
			most = 1
			if m.unmatchedBefore(names) || len(inFlight[e]) > 0 {
				continue
			}
		}
		if !m.ordered[e] && !slices.ContainsFunc(names, func(name string) bool { return m.mayBegin(name, names, inFlight[e]) }) {
			continue
		}
		if !m.paused[e] && len(inFlight[e]) < most {
			return fmt.Sprintf("of %s, %v wait and %v are in flight", e, names, inFlight[e])
		}
	}
	return ""
}

// overtaken returns which of an endpoint's deliveries in flight has overtaken one with its order key; "" for none.
func (m *model) overtaken(inFlight, waiting []string) string {
	for i, name := range inFlight {
		for _, other := range slices.Concat(inFlight[:i], waiting) {
			if m.orderKeys[name] != "" && m.orderKeys[name] == m.orderKeys[other] && (other < name || slices.Contains(inFlight, other)) {
				return fmt.Sprintf("%s is begun before %s has ended", name, other)
			}
		}
	}
	return ""
}

// mayBegin reports whether a waiting delivery of an endpoint need not wait for others. None does while two wait for an
// earlier event to be matched: these may be all that the owner looks at.
func (m *model) mayBegin(name string, waiting, inFlight []string) bool {
	blocked := 0
	for _, other := range slices.Concat(waiting, inFlight) {
		early := m.orderKeys[other] != "" && m.unmatchedBefore([]string{other})
		if early {
			blocked++
		}
		same := m.orderKeys[name] != "" && m.orderKeys[name] == m.orderKeys[other]
		if early && other == name || same && (other < name || slices.Contains(inFlight, other)) {
			return false
		}
	}
	return blocked < 2
}

// unmatchedBefore reports whether an event before the first of these deliveries is not matched.
func (m *model) unmatchedBefore(names []string) bool {
	first := slices.Min(names)
	company, _, _ := strings.Cut(first, "/")
	for _, e := range m.accepted {
		if strings.HasPrefix(e, company) && !m.matched[e] && e < first {
			return true
		}
	}
	return false
}
