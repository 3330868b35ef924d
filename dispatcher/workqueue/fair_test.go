package workqueue_test

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/events"
)

const quantum = 50 // of claim.go

// byCompany counts the events of batches.
func byCompany(batches []workqueue.Batch) map[uuid.UUID]int {
	out := make(map[uuid.UUID]int)
	for _, b := range batches {
		out[b.Company] += len(b.Events)
	}
	return out
}

// count adds up claims of so many deliveries each.
func (b *bench) count(q *workqueue.Queue, claims, most int) map[uuid.UUID]int {
	b.tb.Helper()
	out := make(map[uuid.UUID]int)
	for range claims {
		for company, n := range byCompany(b.claimMost(q, most).Batches) {
			out[company] += n
		}
	}
	return out
}

// The few events of one company do not wait behind the backlog of another.
func TestBacklogDoesNotDelayOtherCompanies(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 21)
	b.accept(all[0], ids("e", 10_000)...)
	if got := b.count(q, 3, 100); got[all[0]] != 300 {
		t.Errorf("alone, the first company was given %v", got)
	}
	for _, c := range all[1:] {
		b.accept(c, ids("e", 3)...)
	}
	got := b.count(q, 1, 100)
	for _, c := range all[1:] {
		if got[c] != 3 {
			t.Errorf("a claim gave %d of 3 events of %s", got[c], c)
		}
	}
	if got[all[0]] == 0 || got[all[0]] > quantum {
		t.Errorf("a claim gave %d events of the first company", got[all[0]])
	}
	b.mustBeRight()
}

// Companies with a backlog get equal turns of one quantum each.
func TestTurnsAreEqual(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 5)
	for _, c := range all {
		b.accept(c, ids("e", 500)...)
	}
	for i := range 4 {
		got := b.count(q, 5, quantum)
		for _, c := range all {
			if got[c] != quantum {
				t.Errorf("round %d gave %v", i, got)
			}
		}
	}
}

// A company that was idle, or skipped because it held its share, is served at once,
// but gets no extra turns.
func TestNoTurnsAreSaved(t *testing.T) {
	t.Parallel()
	for name, skipped := range map[string]bool{"idle": false, "skipped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redisOf(t))
			q, all := b.queue("r"), companies(testPartition, 2)
			b.accept(all[0], ids("e", 2000)...)
			b.accept(all[1], "one")
			if skipped {
				b.accept(all[1], ids("e", 1000)...)
			} else {
				b.count(q, 2, quantum)
			}
			for range 10 {
				c := q.ClaimOnce(b.ctx, testPartition, quantum, map[uuid.UUID]int{all[1]: 0}, 1000)
				if c.Err != nil || byCompany(c.Batches)[all[0]] != quantum {
					t.Fatalf("claimed %v, %v", byCompany(c.Batches), c.Err)
				}
			}
			if !skipped {
				b.accept(all[1], ids("e", 1000)...)
			}
			got := b.count(q, 2, quantum)
			if got[all[1]] != quantum {
				t.Errorf("two claims after that gave %v", got)
			}
			got = b.count(q, 8, quantum)
			if got[all[0]] != 4*quantum || got[all[1]] != 4*quantum {
				t.Errorf("eight claims after that gave %v", got)
			}
		})
	}
}

// A company that is idle for a moment continues at its finish tag.
func TestIdlingGivesNoTurns(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	b.accept(all[0], ids("e", 2000)...)
	got := make(map[uuid.UUID]int)
	for i := range 40 { // the second company has one quantum at a time
		b.accept(all[1], ids(fmt.Sprint("e", i), quantum)...)
		for company, n := range b.count(q, 1, quantum) {
			got[company] += n
		}
	}
	if d := got[all[0]] - got[all[1]]; d < -quantum || d > quantum {
		t.Errorf("claimed %v", got)
	}
}

// match records events as matched with n subscribers each, all delivered.
func (b *bench) match(q *workqueue.Queue, batches []workqueue.Batch, n map[uuid.UUID]int) {
	b.tb.Helper()
	var writes []store.Write
	for _, batch := range batches {
		for _, e := range batch.Events {
			w := store.Write{Event: events.Ref{Company: batch.Company, ID: e.ID}, Matched: true, Fanout: n[batch.Company]}
			for i := range n[batch.Company] {
				base := &delivery.Record{Status: delivery.StatusPending, Created: time.Now().UnixMilli()}
				next := *base
				next.Status = delivery.StatusDelivered
				ref := delivery.Ref{Ref: w.Event, Subscriber: subscriber(batch.Company, i)}
				w.Changes = append(w.Changes, store.Change{Ref: ref, Base: base, Next: &next})
			}
			writes = append(writes, w)
		}
	}
	b.record(q.Name(), writes...)
}

// A company whose events have ten subscribers is given a tenth of the events.
func TestFanOutIsCharged(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 3)
	fanOut := map[uuid.UUID]int{all[0]: 1, all[1]: 10, all[2]: 0}
	for _, c := range all {
		b.accept(c, ids("e", 3000)...)
	}
	round := func() map[uuid.UUID]int {
		c := b.claimMost(q, quantum)
		b.match(q, c.Batches, fanOut)
		return byCompany(c.Batches)
	}
	for range 6 {
		round()
	}
	if cost := b.cost(all[1]); math.Abs(cost-10) > 0.2 {
		t.Errorf("after %d events an event with 10 deliveries costs %v", 2*quantum, cost)
	}
	for _, c := range []uuid.UUID{all[0], all[2]} { // else they are charged one for each subscriber
		if cost := b.cost(c); cost != 1 {
			t.Errorf("an event with %d deliveries costs %v", fanOut[c], cost)
		}
	}
	got := make(map[uuid.UUID]int)
	for range 60 {
		for c, n := range round() {
			got[c] += n
		}
	}
	for i, share := range []float64{1, 0.1, 1} {
		if is := float64(got[all[i]]) / float64(got[all[0]]); math.Abs(is-share) > share/10 {
			t.Errorf("claimed %v: company %d has %.2f of the first's events", got, i, is)
		}
	}
	fanOut[all[1]] = 1
	for range 40 {
		round()
	}
	if cost := b.cost(all[1]); math.Abs(cost-1) > 0.1 {
		t.Errorf("back at one delivery, an event costs %v", cost)
	}
	b.mustBeRight()
}

// cost is what an event of a company is charged.
func (b *bench) cost(company uuid.UUID) float64 {
	b.tb.Helper()
	text, _ := b.do("HGET", "c:"+company.String(), "cost").(string)
	cost, _ := strconv.ParseFloat(text, 64)
	return cost
}

// The remaining fraction of a budget claims no event, and does not count as a refusal.
func TestFractionsOfABudget(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	for _, c := range all {
		b.queued(q, c, "queued")
		b.accept(c, "a", "b", "c")
		b.do("HSET", "c:"+c.String(), "cost", "2.75")
	}
	for most := 1; most <= 12; most++ {
		if c := b.claimMost(q, most); len(c.Skipped) > 0 {
			t.Errorf("a claim of %d skipped %v", most, c.Skipped)
		}
		b.mustBeRight()
	}
}

// However many companies are skipped, the next one is served.
func TestManyAreSkipped(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 402)
	shares := make(map[uuid.UUID]int)
	for _, c := range all {
		b.accept(c, "e")
		shares[c] = 0
	}
	delete(shares, all[401])
	c := q.ClaimOnce(b.ctx, testPartition, quantum, shares, 10)
	if c.Err != nil || byCompany(c.Batches)[all[401]] != 1 {
		t.Errorf("claimed %v, %v", byCompany(c.Batches), c.Err)
	}
	if c.Wake || len(c.Skipped) != 401 {
		t.Errorf("wake %v, %d skipped", c.Wake, len(c.Skipped))
	}
	b.mustBeRight()
}

// Jobs get every eighth turn of a company that has new work, and every turn of a company
// that has none.
func TestJobsHaveEveryEighthTurn(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	s := b.jobs(q)
	b.accept(company, ids("e", 24)...)
	for range 5 {
		if _, err := s.Erase(t.Context(), company); err != nil {
			t.Fatal(err)
		}
	}
	var turns []int
	for turn := 1; turn <= 26; turn++ {
		for _, batch := range b.claimMost(q, 1).Batches {
			for _, job := range batch.Jobs {
				turns = append(turns, turn)
				if err := q.EndJob(t.Context(), q.Name(), company, job, -1); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.mustBeRight()
	}
	if want := "[8 16 24 25 26]"; fmt.Sprint(turns) != want {
		t.Errorf("jobs came in turns %v, not %s", turns, want)
	}
}

// A company has one job under way at a time, whatever it has started, so that its jobs
// take no more than one of a replica's places from those of others.
func TestJobsOfACompanyRunOneAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, both := b.queue("r"), companies(testPartition, 2)
	s := b.jobs(q)
	const many = 12
	for range many {
		if _, err := s.Erase(t.Context(), both[0]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Erase(t.Context(), both[1]); err != nil {
		t.Fatal(err)
	}
	ran := map[uuid.UUID]bool{}
	for round := range many {
		underway := map[uuid.UUID]uuid.UUID{}
		for turn := range 9 { // those after the first find no job, although they are its turns
			if turn > 0 {
				b.accept(both[0], fmt.Sprintf("e-%d-%d", round, turn))
			}
			for _, batch := range b.claimMost(q, 8).Batches {
				for _, job := range batch.Jobs {
					if underway[batch.Company] != uuid.Nil {
						t.Fatalf("a second job of a company began in round %d", round)
					}
					underway[batch.Company], ran[job] = job, true
				}
			}
		}
		if want := 1 + max(0, 1-round); len(underway) != want {
			t.Fatalf("round %d: %d companies have a job under way, want %d", round, len(underway), want)
		}
		for company, job := range underway {
			if err := q.EndJob(t.Context(), q.Name(), company, job, -1); err != nil {
				t.Fatal(err)
			}
		}
		b.mustBeRight()
	}
	if len(ran) != many+1 {
		t.Errorf("%d jobs of %d ran", len(ran), many+1)
	}
}

// Claims alternate between the ready queue of a company and its endpoint queues.
func TestQueuesOfACompanyAlternate(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	b.accept(company, ids("x", 20)...)
	for i, e := range b.claim(q)[0].Events {
		b.record(q.Name(), b.overflow(company, e.ID, subscriber(company, i)))
	}
	b.accept(company, ids("y", 20)...)
	events, deliveries := 0, 0
	for range 20 {
		for _, batch := range b.claimMost(q, 1).Batches {
			events, deliveries = events+len(batch.Events), deliveries+len(batch.Deliveries)
		}
	}
	if events != 10 || deliveries != 10 {
		t.Errorf("twenty turns gave %d events and %d deliveries", events, deliveries)
	}
}
