package workqueue_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/events"
	"spendhook/internal/partition"
)

const (
	modelCompanies   = 3
	modelReplicas    = 3
	modelSubscribers = 2 // of each company
)

// model tracks the work of one partition.
type model struct {
	*bench
	t         *rapid.T
	companies []uuid.UUID
	replicas  []*replica
	ended     []string        // replica ids whose process has ended and was not taken over yet
	stale     map[string]bool // tokens of which the partition was taken over
	accepted  []events.Ref
	seen      map[delivery.Ref]map[delivery.Status]bool // the statuses written for each delivery
	jobs      map[uuid.UUID]bool                        // not done
	tries     []*try                                    // writes whose answer was lost
	v         float64

	ordered map[uuid.UUID]map[uuid.UUID]int // by company and subscriber: events accepted when the subscriber became ordered
}

// replica is a process and what it has claimed.
type replica struct {
	*workqueue.Queue
	work []*item
}

// item is an event, a delivery of an endpoint queue, or a job, that was claimed.
type item struct {
	replica string
	ref     events.Ref
	todo    []uuid.UUID      // subscribers without an outcome, of an event
	queued  []uuid.UUID      // those whose deliveries go by their queue
	sub     uuid.UUID        // of a delivery
	base    *delivery.Record // of a delivery
	job     uuid.UUID
}

// try is a write that may be sent again, as the recorder sends it.
type try struct {
	replica string
	write   store.Write
	results []*attempt.Result // nil: nothing was sent
	applies []apply
}

type apply func(delivery.Record) delivery.Record

func TestWorkIsInOnePlace(t *testing.T) {
	for name, value := range map[string]string{"rapid.checks": "25", "rapid.steps": "50", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	b := newBench(t, redisOf(t))
	rapid.Check(t, func(rt *rapid.T) {
		if err := b.client.FlushDB(b.ctx).Err(); err != nil {
			rt.Fatalf("flush: %v", err)
		}
		m := newModel(rt, b)
		rt.Repeat(map[string]func(*rapid.T){
			"":             m.check,
			"accept":       m.accepts,
			"claim":        m.claims,
			"claim again":  m.claims,
			"finish":       m.finishes,
			"finish again": m.finishes,
			"answer":       m.answers,
			"give up":      m.givesUp,
			"end":          m.ends,
			"take over":    m.takesOver,
			"change":       m.changes,
			"add job":      m.addsJob,
			"configure":    m.configures,
			"pause":        m.pauses,
			"promote":      func(t *rapid.T) { m.t = t; m.promote(m.draw().Queue) },
			"claim all":    m.claimsAll,
		})
		m.drain()
	})
}

func newModel(t *rapid.T, b *bench) *model {
	copied := *b
	copied.tb = t
	m := &model{
		bench: &copied, t: t, companies: companies(testPartition, modelCompanies),
		stale: map[string]bool{}, seen: map[delivery.Ref]map[delivery.Status]bool{}, jobs: map[uuid.UUID]bool{},
		ordered: map[uuid.UUID]map[uuid.UUID]int{},
	}
	for i := range modelReplicas {
		m.replicas = append(m.replicas, &replica{Queue: m.queue(fmt.Sprint("r", i))})
	}
	return m
}

func (m *model) draw() *replica {
	return m.replicas[rapid.IntRange(0, modelReplicas-1).Draw(m.t, "replica")]
}

func (m *model) check(t *rapid.T) {
	m.t = t
	s := m.read()
	if err := s.check(); err != nil {
		t.Fatalf("%v\n%v", err, s)
	}
	for _, e := range s.under("ef:") {
		if n := len(s.pairs("ef:" + e)); n > testLimit {
			t.Fatalf("%d deliveries of %s are in flight", n, e)
		}
	}
	if v := s.number("v"); v < m.v {
		t.Fatalf("virtual time fell from %v to %v", m.v, v)
	} else {
		m.v = v
	}
	places := s.places()
	for job := range m.jobs {
		if !slices.ContainsFunc(m.companies, func(c uuid.UUID) bool {
			return len(places["j:"+c.String()+"/"+job.String()]) == 1
		}) {
			t.Fatalf("job %s is lost", job)
		}
	}
}

func (m *model) accepts(t *rapid.T) {
	m.t = t
	company := m.companies[rapid.IntRange(0, modelCompanies-1).Draw(t, "company")]
	var batch []string
	for range rapid.IntRange(1, 6).Draw(t, "events") {
		ref := events.Ref{Company: company, ID: fmt.Sprint("e", len(m.accepted))}
		m.accepted = append(m.accepted, ref)
		batch = append(batch, ref.ID)
	}
	if rapid.Bool().Draw(t, "waits") {
		m.accept(company, batch...)
		return
	}
	r := m.draw()
	claimed := m.acceptFor(r.Queue, rapid.IntRange(0, 12).Draw(t, "free"), company, batch...)
	if len(claimed) > 0 && m.stale[r.Name()] {
		t.Fatalf("%s does not own the partition, and claimed %+v", r.Name(), claimed)
	}
	m.keep(r, claimed)
}

func (m *model) claims(t *rapid.T) {
	m.t = t
	r := m.draw()
	shares := make(map[uuid.UUID]int)
	for _, c := range m.companies {
		if rapid.Bool().Draw(t, "holds") {
			shares[c] = rapid.IntRange(0, 6).Draw(t, "share")
		}
	}
	m.claimed(r, r.ClaimOnce(m.ctx, testPartition, rapid.IntRange(1, 12).Draw(t, "most"), shares, rapid.IntRange(0, 8).Draw(t, "others")))
}

// claimsAll claims as much as there is.
func (m *model) claimsAll(t *rapid.T) {
	m.t = t
	r := m.draw()
	m.claimed(r, r.ClaimOnce(m.ctx, testPartition, 400, nil, 400))
}

func (m *model) claimed(r *replica, c workqueue.Claimed) {
	name := r.Name()
	if c.NotOwner != m.stale[name] {
		m.t.Fatalf("claim of %s, taken over %v, answered %+v", name, m.stale[name], c)
	}
	if c.NotOwner {
		r.Rename()
		return
	}
	if c.Err != nil {
		m.t.Fatalf("claim: %v", c.Err)
	}
	m.keep(r, c.Batches)
}

// keep keeps claimed work until it is finished.
func (m *model) keep(r *replica, batches []workqueue.Batch) {
	name := r.Name()
	for _, b := range batches {
		for _, e := range b.Events {
			it := &item{replica: name, ref: events.Ref{Company: b.Company, ID: e.ID}, queued: b.Backlogged}
			for i := range modelSubscribers {
				if sub := subscriber(b.Company, i); !slices.Contains(e.Known, sub) {
					it.todo = append(it.todo, sub)
				}
			}
			r.work = append(r.work, it)
		}
		for _, d := range b.Deliveries {
			rec, err := delivery.Decode(d.Record)
			if err != nil {
				m.t.Fatalf("claimed %q: %v", d.Record, err)
			}
			m.checkOrder(b.Company, d)
			r.work = append(r.work, &item{replica: name, ref: events.Ref{Company: b.Company, ID: d.EventID}, sub: d.Subscriber, base: rec})
		}
		for _, j := range b.Jobs {
			r.work = append(r.work, &item{replica: name, ref: events.Ref{Company: b.Company}, job: j})
		}
	}
}

// configures changes how an endpoint queue is served.
func (m *model) configures(t *rapid.T) {
	m.t = t
	company, sub := m.drawSubscriber()
	s := rapid.SampledFrom([]settings{plain, ordered, {1, 2, "", ""}, {1, 1, "1", ""}, {"", "", "1", "1"}}).Draw(t, "settings")
	m.configure(sub, company, s)
	of := m.ordered[company]
	if of == nil {
		of = map[uuid.UUID]int{}
		m.ordered[company] = of
	}
	if _, was := of[sub]; s.ordered == "" {
		delete(of, sub)
	} else if !was {
		of[sub] = len(m.accepted)
	}
}

// pauses pauses an endpoint queue or resumes it.
func (m *model) pauses(t *rapid.T) {
	m.t = t
	company, sub := m.drawSubscriber()
	if rapid.Bool().Draw(t, "resume") {
		m.resumeEndpoint(company, sub)
	} else {
		m.pauseEndpoint(company, sub)
	}
}

func (m *model) drawSubscriber() (company, sub uuid.UUID) {
	company = m.companies[rapid.IntRange(0, modelCompanies-1).Draw(m.t, "company")]
	return company, subscriber(company, rapid.IntRange(0, modelSubscribers-1).Draw(m.t, "subscriber"))
}

// checkOrder checks that a claimed delivery of an ordered subscriber is the only one in
// flight, and that the deliveries of all earlier events since the subscriber became ordered
// have ended.
func (m *model) checkOrder(company uuid.UUID, d workqueue.Delivery) {
	since, ok := m.ordered[company][d.Subscriber]
	if !ok {
		return
	}
	s := m.read()
	at := slices.Index(m.accepted, events.Ref{Company: company, ID: d.EventID})
	for _, ref := range m.accepted[min(since, at):at] {
		if ref.Company != company {
			continue
		}
		record := s.pairs("d:" + company.String() + "/" + ref.ID)[d.Subscriber.String()]
		if record == "" || record[0] == 'P' || record[0] == 'R' {
			m.t.Fatalf("%s was claimed for an ordered subscriber before %s: %q", d.EventID, ref.ID, record)
		}
	}
}

// finishes writes outcomes of something that was claimed.
func (m *model) finishes(t *rapid.T) {
	m.t = t
	r := m.draw()
	if len(r.work) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.work)-1).Draw(t, "item")
	it := r.work[i]
	if it.job != uuid.Nil {
		r.work = slices.Delete(r.work, i, i+1)
		m.endsJob(r, it, time.Duration(rapid.IntRange(-1, 2).Draw(t, "again"))*time.Millisecond)
		return
	}
	n := 0
	if it.sub == uuid.Nil && len(it.todo) > 0 {
		n = rapid.IntRange(1, len(it.todo)).Draw(t, "outcomes")
	}
	w := m.outcomes(it, n)
	if it.sub != uuid.Nil || len(it.todo) == 0 {
		r.work = slices.Delete(r.work, i, i+1)
	}
	m.write(w, rapid.IntRange(0, 3).Draw(t, "lost") == 0)
}

func (m *model) endsJob(r *replica, it *item, again time.Duration) {
	places := m.read()
	ours := slices.Contains(places.places()["j:"+it.ref.Company.String()+"/"+it.job.String()], "note of "+it.replica)
	if err := r.EndJob(m.ctx, it.replica, it.ref.Company, it.job, again); err != nil {
		m.t.Fatalf("end job: %v", err)
	}
	if again < 0 && ours {
		delete(m.jobs, it.job)
	}
}

// outcomes makes a write of a claimed delivery, or of the next n deliveries of
// a claimed event.
func (m *model) outcomes(it *item, n int) *try {
	w := &try{replica: it.replica, write: store.Write{Event: it.ref}}
	if it.sub != uuid.Nil {
		kinds := []string{"delivered", "delivered", "failed", "unreachable", "interrupted", "put back", "cancel"}
		m.outcome(w, rapid.SampledFrom(kinds).Draw(m.t, "outcome"), store.Change{
			Ref: delivery.Ref{Ref: it.ref, Subscriber: it.sub}, Base: it.base, Claimed: true,
		})
		return w
	}
	for _, sub := range it.todo[:n] {
		kinds := []string{"delivered", "delivered", "failed", "overflow", "breaker"}
		if slices.Contains(it.queued, sub) {
			kinds = kinds[3:]
		}
		m.outcome(w, rapid.SampledFrom(kinds).Draw(m.t, "outcome"), store.Change{
			Ref: delivery.Ref{Ref: it.ref, Subscriber: sub}, Base: &delivery.Record{Status: delivery.StatusPending, Created: time.Now().UnixMilli()},
		})
	}
	it.todo = it.todo[n:]
	w.write.Matched = len(it.todo) == 0
	return w
}

// outcome adds one change to a write.
func (m *model) outcome(w *try, kind string, c store.Change) {
	now := time.Now()
	res := &attempt.Result{Class: attempt.ClassHTTP5xx, StartedAt: now, Duration: time.Duration(len(m.accepted)) * time.Millisecond}
	decide := func(r delivery.Record) delivery.Record {
		return delivery.Decide(r, *res, testPolicy, now, func() float64 { return 0 })
	}
	var do apply
	switch kind {
	case "delivered":
		res.Class, do = attempt.ClassNone, decide
		c.Reach = store.Reached
	case "failed":
		do, c.Reach = decide, store.Reached
	case "unreachable":
		do, c.Reach = decide, store.Unreachable
	case "interrupted":
		res.Class, do = attempt.ClassAborted, decide
	case "overflow", "breaker":
		res, c.Backlog = nil, true
		do = func(r delivery.Record) delivery.Record { return delivery.Queue(r, delivery.ReasonBusy, now) }
		if kind == "breaker" {
			c.Open, c.Pause = true, testPause
		}
	case "put back":
		res = nil
		do = func(r delivery.Record) delivery.Record { return delivery.Requeue(r, now) }
	case "cancel":
		res = nil
		do = func(r delivery.Record) delivery.Record {
			return delivery.Cancel(r, delivery.ReasonSubscriberDeleted, now)
		}
	}
	if !c.Claimed {
		c.Reach = store.ReachUnknown
	}
	next := do(*c.Base)
	next.Version = c.Base.Version
	c.Next = &next
	w.write.Changes = append(w.write.Changes, c)
	w.results, w.applies = append(w.results, res), append(w.applies, do)
}

// write records, and with lost keeps the write to be sent again.
func (m *model) write(w *try, lost bool) {
	for _, c := range w.write.Changes {
		if m.seen[c.Ref] == nil {
			m.seen[c.Ref] = map[delivery.Status]bool{}
		}
		m.seen[c.Ref][c.Next.Status] = true
	}
	found := m.record(w.replica, w.write)[0]
	if lost {
		m.tries = append(m.tries, w)
		return
	}
	if rest := w.settle(found); rest != nil {
		m.write(rest, false)
	}
}

// settle processes the answer of a write as the recorder does.
func (w *try) settle(found []*store.Found) *try {
	rest := &try{replica: w.replica, write: store.Write{Event: w.write.Event}}
	for i, f := range found {
		c, res := w.write.Changes[i], w.results[i]
		switch {
		case f == nil, res != nil && f.Record.Has(*res),
			f.Record.Status == delivery.StatusDelivered, f.Record.Status == delivery.StatusCancelled,
			res == nil && f.Record.Version > 0:
			continue
		}
		c.Base, c.Reach = f.Record, store.ReachUnknown
		if c.Base.Version == 0 {
			c.Base = &delivery.Record{Status: delivery.StatusPending, Created: c.Next.Created}
		}
		next := w.applies[i](*c.Base)
		next.Version = c.Base.Version
		c.Next = &next
		rest.write.Changes = append(rest.write.Changes, c)
		rest.results, rest.applies = append(rest.results, res), append(rest.applies, w.applies[i])
	}
	if len(rest.results) == 0 {
		return nil
	}
	return rest
}

// answers sends a write again whose answer was lost.
func (m *model) answers(t *rapid.T) {
	m.t = t
	if len(m.tries) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.tries)-1).Draw(t, "write")
	w := m.tries[i]
	m.tries = slices.Delete(m.tries, i, i+1)
	m.write(w, false)
}

// givesUp requeues a claimed item that was not started.
func (m *model) givesUp(t *rapid.T) {
	m.t = t
	r := m.draw()
	if len(r.work) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.work)-1).Draw(t, "item")
	it := r.work[i]
	b := workqueue.Batch{Company: it.ref.Company, Token: it.replica}
	switch {
	case it.job != uuid.Nil:
		b.Jobs = []uuid.UUID{it.job}
	case it.sub != uuid.Nil:
		b.Deliveries = []workqueue.Delivery{{Subscriber: it.sub, EventID: it.ref.ID}}
	case len(it.todo) == modelSubscribers:
		b.Events = []workqueue.Event{{ID: it.ref.ID}}
	default:
		return
	}
	r.work = slices.Delete(r.work, i, i+1)
	if err := r.Requeue(m.ctx, b); err != nil {
		t.Fatalf("requeue: %v", err)
	}
}

// ends ends a process. Its notes of work in flight stay in Redis.
func (m *model) ends(t *rapid.T) {
	m.t = t
	if rapid.IntRange(0, 3).Draw(t, "really") != 0 {
		return
	}
	r := m.draw()
	for _, it := range r.work {
		if !slices.Contains(m.ended, it.replica) {
			m.ended = append(m.ended, it.replica)
		}
	}
	m.ended = append(m.ended, r.Name())
	m.tries = slices.DeleteFunc(m.tries, func(w *try) bool { return slices.Contains(m.ended, w.replica) })
	r.work = nil
	r.Rename()
}

// takesOver takes over a process that has ended, or one that is merely slow.
func (m *model) takesOver(t *rapid.T) {
	m.t = t
	name := m.draw().Name()
	if len(m.ended) > 0 && rapid.Bool().Draw(t, "ended") {
		name, m.ended = m.ended[0], m.ended[1:]
	}
	m.takeOver(m.draw().Queue, name)
	m.stale[name] = true
}

// changes requeues, cancels or replays a delivery, unless an attempt is under way.
func (m *model) changes(t *rapid.T) {
	m.t = t
	if len(m.seen) == 0 {
		return
	}
	ref := delivery.Ref{Ref: rapid.SampledFrom(m.accepted).Draw(t, "event")}
	ref.Subscriber = subscriber(ref.Company, rapid.IntRange(0, modelSubscribers-1).Draw(t, "subscriber"))
	records, err := m.deliveries.Get(m.ctx, []delivery.Ref{ref})
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	rec := records[0]
	if rec == nil {
		return
	}
	var next delivery.Record
	now := time.Now()
	switch kind := rapid.SampledFrom([]string{"requeue", "cancel", "replay"}).Draw(t, "change"); {
	case kind == "requeue" && rec.Status.Live():
		next = delivery.Requeue(*rec, now)
		next.Reason = ""
	case kind == "cancel" && rec.Status.Live():
		next = delivery.Cancel(*rec, delivery.ReasonSubscriberDeleted, now)
	case kind == "replay":
		next = delivery.Restart(*rec, delivery.ReasonReplay, now)
	default:
		return
	}
	m.guarded(ref, rec, &next)
}

func (m *model) guarded(ref delivery.Ref, rec, next *delivery.Record) {
	base := *rec
	if base.Status == delivery.StatusDelivering {
		return
	}
	w := store.Write{Event: ref.Ref, Changes: []store.Change{{Ref: ref, Base: &base, Next: next, Guarded: true}}}
	if found := m.record("", w)[0][0]; found == nil {
		m.seen[ref] = map[delivery.Status]bool{next.Status: true}
	}
}

func (m *model) addsJob(t *rapid.T) {
	m.t = t
	company := m.companies[rapid.IntRange(0, modelCompanies-1).Draw(t, "company")]
	s := m.bench.jobs(m.draw().Queue)
	id := uuid.NewSHA1(uuid.New(), []byte(redelivery.JobErase)) // the model's jobs have nothing to do
	s.NewID = func() uuid.UUID { return id }
	if _, err := s.Erase(m.ctx, company); err != nil {
		t.Fatalf("add job: %v", err)
	}
	m.jobs[id] = true
}

// drain finishes all work and checks the final state.
func (m *model) drain() {
	for _, company := range m.companies {
		for i := range modelSubscribers {
			m.configure(subscriber(company, i), company, plain)
			m.resumeEndpoint(company, subscriber(company, i))
		}
	}
	clear(m.ordered)
	for _, r := range m.replicas {
		for _, it := range r.work {
			m.deliver(r, it)
		}
		r.work = nil
	}
	for _, w := range m.tries {
		m.write(w, false)
	}
	for _, name := range m.ended {
		m.takeOver(m.replicas[0].Queue, name)
		m.stale[name] = true
	}
	for range 1000 {
		m.hasten()
		r := m.replicas[0]
		m.promote(r.Queue)
		m.claimed(r, r.ClaimOnce(m.ctx, testPartition, 400, nil, 400))
		for _, it := range r.work {
			m.deliver(r, it)
		}
		r.work = nil
		m.check(m.t)
		if s := m.read(); len(s.places()) == 0 && m.release() == 0 {
			m.finished(s)
			return
		}
	}
	s := m.read()
	m.t.Fatalf("the partition is not drained:\n%v", s)
}

// deliver finishes an item.
func (m *model) deliver(r *replica, it *item) {
	if it.job != uuid.Nil {
		m.endsJob(r, it, -1)
		return
	}
	w := &try{replica: it.replica, write: store.Write{Event: it.ref, Matched: it.sub == uuid.Nil}}
	if it.sub != uuid.Nil {
		m.outcome(w, "delivered", store.Change{Ref: delivery.Ref{Ref: it.ref, Subscriber: it.sub}, Base: it.base, Claimed: true})
	}
	for _, sub := range it.todo {
		kind := "delivered"
		if slices.Contains(it.queued, sub) {
			kind = "overflow"
		}
		m.outcome(w, kind, store.Change{
			Ref: delivery.Ref{Ref: it.ref, Subscriber: sub}, Base: &delivery.Record{Status: delivery.StatusPending, Created: time.Now().UnixMilli()},
		})
	}
	m.write(w, false)
}

// hasten makes all work due now.
func (m *model) hasten() {
	s := m.read()
	pipe := m.client.Pipeline()
	p := partition.Prefix(testPartition)
	for _, e := range s.under("eq:") {
		for id := range s.pairs("eq:" + e) {
			pipe.Do(m.ctx, "ZADD", p+"eq:"+e, 0, id)
		}
	}
	for _, e := range s.under("es:") {
		pipe.HDel(m.ctx, p+"es:"+e, "until", "held", "tat")
	}
	for member := range s.pairs("due") {
		pipe.Do(m.ctx, "ZADD", p+"due", 0, member)
	}
	if pipe.Len() == 0 {
		return
	}
	if _, err := pipe.Exec(m.ctx); err != nil {
		m.t.Fatalf("make all due: %v", err)
	}
}

// release makes all live deliveries due, and counts them.
func (m *model) release() int {
	n := 0
	for ref := range m.seen {
		records, err := m.deliveries.Get(m.ctx, []delivery.Ref{ref})
		if err != nil {
			m.t.Fatalf("read: %v", err)
		}
		if rec := records[0]; rec != nil && rec.Status.Live() {
			n++
			next := delivery.Requeue(*rec, time.Now())
			next.Reason = ""
			m.guarded(ref, rec, &next)
		}
	}
	return n
}

// finished checks that the final status of each delivery is one that was written.
func (m *model) finished(s state) {
	for _, ref := range m.accepted {
		for i := range modelSubscribers {
			r := delivery.Ref{Ref: ref, Subscriber: subscriber(ref.Company, i)}
			records, err := m.deliveries.Get(m.ctx, []delivery.Ref{r})
			if err != nil || records[0] == nil || !m.seen[r][records[0].Status] {
				m.t.Fatalf("delivery %s ended as %+v, written was %v, %v", r, records[0], m.seen[r], err)
			}
		}
	}
	for _, key := range []string{"pending", "sched"} {
		if s.number(key) != 0 {
			m.t.Fatalf("%s = %v at the end", key, s[key])
		}
	}
	for _, kind := range []string{"q:", "eq:", "ef:", "jq:", "dq:", "bl:"} {
		if left := s.under(kind); len(left) > 0 {
			m.t.Fatalf("%s%v is left at the end", kind, left)
		}
	}
	if len(m.jobs) > 0 {
		m.t.Fatalf("jobs %v were never done", m.jobs)
	}
}
