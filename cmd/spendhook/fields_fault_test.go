//go:build faults

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/pause"
)

// patiently waits ten seconds after each attempt, and a minute after the last ones, so that nothing becomes a dead letter.
var patiently = `,"retrySchedule":[` + strings.Repeat("10,", 20) + strings.Repeat("60,", 9) + `60]`

// refusingReceiver refuses the deliveries of some events until it is mended. The number of an event is the end of its id.
type refusingReceiver struct {
	tb      testing.TB
	refuses func(number int) bool

	mu     sync.Mutex
	mended bool
	tried  map[int]bool // refused
	taken  []int        // in the order of their first success
}

// ServeHTTP answers a delivery.
func (r *refusingReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	number, err := strconv.Atoi(strings.TrimPrefix(req.Header.Get("Webhook-Id"), "evt_"))
	if err != nil {
		r.tb.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.mended && r.refuses(number):
		r.tried[number] = true
		w.WriteHeader(http.StatusInternalServerError)
	case !slices.Contains(r.taken, number):
		r.taken = append(r.taken, number)
	}
}

func (r *refusingReceiver) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mended = true
}

// takenOf lists the numbers with that remainder of 2.
func (r *refusingReceiver) takenOf(remainder int) (numbers []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.taken {
		if n%2 == remainder {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// refuse subscribes a receiver that refuses deliveries.
func (co *chaosCompany) refuse(t *testing.T, settings string, refuses func(number int) bool) *refusingReceiver {
	t.Helper()
	r := &refusingReceiver{tb: t, refuses: refuses, tried: map[int]bool{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	body := fmt.Sprintf(`{"name":"refuses","callbackUrl":%q,"events":["PAYMENT_*"]%s}`, server.URL, settings)
	if status, answer := co.call(t.Context(), http.MethodPost, "/api/v1/subscribers", body, uuid.NewString()); status != http.StatusCreated {
		t.Fatalf("subscribe: %d %s", status, answer)
	}
	return r
}

// amid causes faults one after the other while do runs, and at least three.
func (c *chaos) amid(do func()) {
	ctx, end := context.WithCancel(c.t.Context())
	var faults sync.WaitGroup
	faults.Go(func() {
		for n := 0; n < 3 || ctx.Err() == nil; n++ {
			c.cause(rand.IntN(7)) //nolint:contextcheck // replicas outlive ctx
			pause.For(ctx, time.Second+rand.N(4*time.Second))
		}
	})
	do()
	end()
	faults.Wait()
	c.t.Logf("faults: %v", c.counts())
}

// An order key of which the first delivery fails keeps back its own events only, while replicas and Redis are killed and
// suspended; these come in order afterwards.
func TestAnOrderKeyThatFailsUnderKills(t *testing.T) {
	co := startChaosCompany(t)
	r := co.refuse(t, `,"orderedBy":"metadata.even"`+patiently, func(number int) bool { return number%2 == 0 })
	total := 0
	co.amid(func() {
		for until := time.Now().Add(40 * time.Second); time.Now().Before(until); total += inboxBatch {
			co.emitBatch(total, inboxBatch)
			pause.For(t.Context(), rand.N(time.Second))
		}
	})
	eventually(t, deliveryPatience, "the other key is delivered", func() bool { return len(r.takenOf(1)) == total/2 })
	r.mu.Lock()
	if len(r.tried) != 1 || !r.tried[0] {
		t.Errorf("tried of the key that fails: %v", r.tried)
	}
	r.mu.Unlock()
	r.mend()
	eventually(t, deliveryPatience, "the key that failed is delivered", func() bool { return len(r.takenOf(0)) == total/2 })
	for remainder := range 2 {
		if taken := r.takenOf(remainder); !slices.IsSorted(taken) {
			t.Errorf("out of order: %v", taken)
		}
	}
	t.Logf("%d events of two keys", total)
	for _, d := range co.daemons {
		d.stop(t)
	}
}

// slowlyLoaded answers after a moment, or cuts all connections while it is away. When it is back, no more requests may be
// under way than it has answered since, and one of each replica, between which the partition may move.
type slowlyLoaded struct {
	mu                sync.Mutex
	away              bool
	cut               int // since it is away
	underWay, most    int
	answered, tooMany int // since it is back
}

// ServeHTTP answers a delivery.
func (r *slowlyLoaded) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	if r.away {
		r.cut++
		r.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	r.underWay++
	r.most = max(r.most, r.underWay)
	if r.underWay > r.answered+2 {
		r.tooMany++
	}
	r.mu.Unlock()
	pause.For(context.WithoutCancel(req.Context()), 100*time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.underWay--
	r.answered++
}

func (r *slowlyLoaded) set(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away, r.cut, r.most, r.answered, r.tooMany = away, 0, 0, 0, 0
}

// holds reports whether a condition holds.
func (r *slowlyLoaded) holds(condition func() bool) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return condition()
	}
}

// A receiver that was away while the replicas were killed is loaded slowly when it is back, and gets everything.
func TestReceiversAreLoadedSlowlyAfterKills(t *testing.T) {
	co := startChaosCompany(t)
	r := &slowlyLoaded{}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	body := fmt.Sprintf(`{"name":"slowly","callbackUrl":%q,"events":["PAYMENT_PAID"]%s}`, server.URL, patiently)
	if status, answer := co.call(t.Context(), http.MethodPost, "/api/v1/subscribers", body, uuid.NewString()); status != http.StatusCreated {
		t.Fatalf("subscribe: %d %s", status, answer)
	}
	total := 0
	for range 3 {
		r.set(true)
		for range 500 / inboxBatch {
			co.emitBatch(total, inboxBatch)
			total += inboxBatch
		}
		cut, since := 0, time.Now()
		eventually(t, deliveryPatience, "the breaker is open", r.holds(func() bool { // for some seconds, nothing is sent
			if r.cut != cut {
				cut, since = r.cut, time.Now()
			}
			return cut >= 10 && time.Since(since) > 2*time.Second
		}))
		co.restart(syscall.SIGKILL, 0, 1)
		r.set(false)
		eventually(t, deliveryPatience, "all are delivered", r.holds(func() bool { return r.answered >= 500 }))
		r.mu.Lock()
		if r.tooMany > 0 || r.most < 4 {
			t.Errorf("%d were under way at most; %d came too early", r.most, r.tooMany)
		}
		r.mu.Unlock()
	}
	for _, d := range co.daemons {
		d.stop(t)
	}
}

// A bulk cancellation ends in spite of kills: it cancels all that match, also what waits in the log, and nothing else.
func TestBulkCancellationUnderKills(t *testing.T) {
	co := startChaosCompany(t)
	r := co.refuse(t, patiently, func(int) bool { return true })
	const total = 6000 // more than one step of the job
	items := make([]string, 0, 100)
	for n := range total {
		items = append(items, fmt.Sprintf(`{"id":"evt_%d","event":"PAYMENT_%s","timestamp":%d}`, n, []string{"FAILED", "PAID"}[n%2], time.Now().UnixMilli()))
		if len(items) == cap(items) {
			if status, answer := co.call(t.Context(), http.MethodPost, "/api/v1/events", "["+strings.Join(items, ",")+"]", ""); status != http.StatusAccepted {
				t.Fatalf("emit: %d %s", status, answer)
			}
			items = items[:0]
		}
	}
	var job gen.Job
	co.amid(func() {
		status, answer := co.call(t.Context(), http.MethodPost, "/api/v1/deliveries/cancel", `{"event":["PAYMENT_FAILED"]}`, uuid.NewString())
		if err := json.Unmarshal([]byte(answer), &job); err != nil || status != http.StatusAccepted {
			t.Fatalf("cancel: %d %s", status, answer)
		}
	})
	eventually(t, deliveryPatience, "the job ends", func() bool {
		_, answer := co.call(t.Context(), http.MethodGet, "/api/v1/jobs/"+job.UUID.String(), "", "")
		return strings.Contains(answer, `"COMPLETED"`)
	})
	waiting := func(filter string) bool {
		_, answer := co.call(t.Context(), http.MethodGet, "/api/v1/deliveries?size=1&status=PENDING,DELIVERING,RETRYING"+filter, "", "")
		return !strings.Contains(answer, `"content":[]`)
	}
	if waiting("&event=PAYMENT_FAILED") {
		t.Error("events that match wait still")
	}
	r.mend()
	eventually(t, deliveryPatience, "all others are delivered", func() bool { return !waiting("") })
	if failed, paid := len(r.takenOf(0)), len(r.takenOf(1)); failed > 0 || paid != total/2 {
		t.Errorf("%d of the cancelled are delivered, and %d of %d others", failed, paid, total/2)
	}
	for _, d := range co.daemons {
		d.stop(t)
	}
}
