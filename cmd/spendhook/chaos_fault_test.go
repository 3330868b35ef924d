//go:build faults

package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
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
	"spendhook/internal/redistest"
)

var chaosFor = flag.Duration("chaos", 45*time.Second, "how long TestEveryEventIsAccountedForInChaos goes on")

const (
	chaosCompanies = 6
	chaosEvery     = chaosCompanies * 10 * time.Millisecond // between two events of a company: 100/s of all together

	// What an attempt had done before a fault may be lost, and is then done again after it: for so long before and
	// after, a second delivery is explained.
	chaosBefore, chaosAfter = 3 * time.Second, 15 * time.Second
)

// chaosSettings let no delivery die: a receiver that fails answers sooner or later.
const chaosSettings = `
delivery:
  attempt_timeout: 2s
  connect_timeout: 1s
  schedule: [` + chaosSchedule + `]
` + sharedKey

const chaosSchedule = "200ms, 200ms, 200ms, 300ms, 300ms, 300ms, 300ms, 400ms, 400ms, 400ms, 400ms, 400ms, 500ms, 500ms, 500ms, 500ms, 500ms, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s"

// chaos is two replicas, their Redis, and companies that emit and receive, while all of them fail.
type chaos struct {
	t             *testing.T
	server        *redistest.Server
	installations []installation
	companies     []*chaosCompany

	mu      sync.Mutex
	daemons []*running
	faults  []chaosFault
}

type chaosFault struct {
	what     string
	from, to time.Time
}

// chaosCompany emits events to its receivers.
type chaosCompany struct {
	*chaos

	id        uuid.UUID
	tokens    []string // for each installation
	receivers []*chaosReceiver
	sent      []chaosEvent
}

type chaosEvent struct {
	id       string
	even     bool
	from, to time.Time // when it was first sent, and accepted
}

// chaosReceiver is one receiver of a company. Its subscriber may be deleted and made again, with another URL.
type chaosReceiver struct {
	*chaosCompany
	*httptest.Server

	kind     string
	settings string // of its subscriber
	even     bool   // its filter lets only such events pass
	answer   func(w http.ResponseWriter, r *http.Request) (status int)

	mu          sync.Mutex
	generations []*chaosSubscriber
}

// transformed is the kind whose receiver gets the id of an event only.
const transformed = "transformed"

// byKey is the kind whose receiver gets the even events in order, and the odd ones.
const byKey = "ordered by key"

// refused is the status with which a receiver ends the attempts of a delivery.
const refused = http.StatusUnprocessableEntity

// chaosSubscriber is a subscriber, and what its receiver saw.
type chaosSubscriber struct {
	uuid    uuid.UUID
	created time.Time // when its creation was answered
	deleted bool
	acks    map[string][]time.Time
	last    map[string]int // by order key, the highest number that was acknowledged
	early   int            // ids that were first acknowledged after one with a higher number and the same order key
	before  map[int]int    // by number, that of the event before; 0: it was not named
}

// chaosKinds are the receivers of each company.
func chaosKinds() [chaosCompanies][]*chaosReceiver {
	fast := func(http.ResponseWriter, *http.Request) int { return http.StatusNoContent }
	often := func(percent, status int, header ...string) func(http.ResponseWriter, *http.Request) int {
		return func(w http.ResponseWriter, _ *http.Request) int {
			if rand.IntN(100) >= percent {
				return http.StatusNoContent
			}
			if len(header) > 0 {
				w.Header().Set(header[0], header[1])
			}
			return status
		}
	}
	slow := func(_ http.ResponseWriter, r *http.Request) int {
		pause.For(r.Context(), 50*time.Millisecond+rand.N(300*time.Millisecond))
		return http.StatusNoContent
	}
	cuts := func(w http.ResponseWriter, r *http.Request) int {
		if rand.IntN(50) == 0 {
			panic(http.ErrAbortHandler)
		}
		return often(30, http.StatusInternalServerError)(w, r)
	}
	return [chaosCompanies][]*chaosReceiver{
		{{kind: "fast", answer: fast}, {kind: "filtered", answer: fast, settings: `,"filter":"metadata.even == true"`, even: true}},
		{{kind: "slow", answer: slow}, {kind: "paused", answer: fast}},
		{{kind: "failing", answer: cuts, settings: `,"retrySchedule":[` + strings.Repeat("1,", 29) + `1]`}, {kind: "refusing", answer: often(30, refused), settings: `,"stopOn":[422]`}},
		{{kind: "busy", answer: often(5, http.StatusTooManyRequests, "Retry-After", "1")}, {kind: transformed, answer: often(20, http.StatusInternalServerError), settings: `,"transform":"{\"ref\": id}"`}},
		{{kind: "ordered", answer: often(3, http.StatusInternalServerError), settings: `,"ordered":true`}, {kind: byKey, answer: often(3, http.StatusInternalServerError), settings: `,"orderedBy":"metadata.even"`}},
		{{kind: "rate-limited", answer: fast, settings: `,"rateLimit":{"perSecond":40,"burst":10}`}, {kind: "made again", answer: fast}},
	}
}

// Two replicas and six companies with receivers of many kinds, while replicas are killed, stopped and suspended, and
// Redis is killed and suspended, at random. Every accepted event reaches every subscriber that it matches, in order where
// that was asked for; only what was under way during a fault comes twice.
func TestEveryEventIsAccountedForInChaos(t *testing.T) {
	server := redistest.Start(t, redistest.Options{AOF: true})
	c := &chaos{t: t, server: server}
	for range 2 {
		c.installations = append(c.installations, newInstallation(t, server.URL(), chaosSettings))
	}
	for _, h := range c.installations {
		c.daemons = append(c.daemons, h.startChild(t))
	}
	for i, receivers := range chaosKinds() {
		co := &chaosCompany{chaos: c, id: uuid.UUID{15: byte(i + 1), 6: 0x40, 8: 0x80}, receivers: receivers}
		for n, h := range c.installations {
			co.tokens = append(co.tokens, c.daemons[n].as(t, h, co.id).token)
		}
		for _, r := range receivers {
			r.chaosCompany = co
			r.Server = httptest.NewServer(r)
			t.Cleanup(r.Close)
			r.subscribe(t.Context())
		}
		c.companies = append(c.companies, co)
	}
	ctx, end := context.WithTimeout(t.Context(), *chaosFor)
	defer end()
	var all sync.WaitGroup
	for _, co := range c.companies {
		all.Go(func() { co.emit(ctx) })
	}
	all.Go(func() { c.changeSubscribers(ctx) })
	for pause.For(ctx, 2*time.Second+rand.N(6*time.Second)) {
		c.cause(rand.IntN(7))
	}
	all.Wait()
	for _, f := range c.faults {
		t.Logf("%s for %s", f.what, f.to.Sub(f.from).Round(time.Millisecond))
	}
	c.account()
	for _, d := range c.daemons {
		d.stop(t)
	}
}

// cause causes a fault and ends it.
func (c *chaos) cause(kind int) {
	c.t.Helper()
	i, from := rand.IntN(2), time.Now()
	var what string
	switch kind {
	case 0, 1:
		what = "a replica is killed"
		c.restart(syscall.SIGKILL, i)
	case 2:
		what = "both replicas are killed"
		c.restart(syscall.SIGKILL, 0, 1)
	case 3:
		what = "a replica is stopped"
		c.restart(syscall.SIGTERM, i)
	case 4:
		what = "a replica is suspended"
		c.daemons[i].signal(syscall.SIGSTOP)
		pause.For(c.t.Context(), rand.N(8*time.Second))
		c.daemons[i].signal(syscall.SIGCONT)
	case 5:
		what = "Redis is killed"
		c.server.Restart()
	case 6:
		what = "Redis is suspended"
		c.server.Pause()
		pause.For(c.t.Context(), rand.N(5*time.Second))
		c.server.Resume()
	}
	c.faults = append(c.faults, chaosFault{what, from, time.Now()})
}

// counts returns how often each fault was caused.
func (c *chaos) counts() map[string]int {
	n := map[string]int{}
	for _, f := range c.faults {
		n[f.what]++
	}
	return n
}

// restart ends replicas by a signal and starts them again.
func (c *chaos) restart(by syscall.Signal, replicas ...int) {
	c.t.Helper()
	for _, i := range replicas {
		c.daemons[i].signal(by)
	}
	for _, i := range replicas {
		c.daemons[i].ended(c.t)
	}
	pause.For(c.t.Context(), rand.N(2*time.Second))
	for _, i := range replicas {
		d := c.installations[i].startChild(c.t)
		c.mu.Lock()
		c.daemons[i] = d
		c.mu.Unlock()
	}
}

// call asks a replica, and another one until one answers, also when ctx has ended.
func (co *chaosCompany) call(ctx context.Context, method, path, body, key string) (status int, answer string) {
	for until := time.Now().Add(deliveryPatience); time.Now().Before(until); pause.For(context.WithoutCancel(ctx), 20*time.Millisecond) {
		i := rand.IntN(2)
		co.mu.Lock()
		api := co.daemons[i].api
		co.mu.Unlock()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		req, err := http.NewRequestWithContext(within, method, api+path, bytes.NewBufferString(body))
		if err != nil {
			cancel()
			co.t.Errorf("%s %s: %v", method, path, err)
			return 0, ""
		}
		req.Header.Set("Authorization", "Bearer "+co.tokens[i])
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			cancel()
			continue
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		cancel()
		switch {
		case err != nil, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusTooManyRequests:
			continue
		case resp.StatusCode == http.StatusConflict && strings.Contains(string(text), "IDEMPOTENCY_KEY_IN_PROGRESS"):
			continue
		}
		return resp.StatusCode, string(text)
	}
	co.t.Errorf("%s %s was never answered", method, path)
	return 0, ""
}

// emit sends an event now and then, each until it is accepted.
func (co *chaosCompany) emit(ctx context.Context) {
	run := uuid.NewString()[:8]
	for n := 0; pause.For(ctx, chaosEvery); n++ {
		e := chaosEvent{id: run + "-" + strconv.Itoa(n), even: n%2 == 0, from: time.Now()}
		body := fmt.Sprintf(`{"id":%q,"event":"PAYMENT_PAID","timestamp":%d,"metadata":{"even":%t}}`, e.id, e.from.UnixMilli(), e.even)
		if status, answer := co.call(ctx, http.MethodPost, "/api/v1/events", body, ""); status != http.StatusAccepted && status != http.StatusOK {
			co.t.Errorf("%s: %d %s", e.id, status, answer)
			continue
		}
		e.to = time.Now()
		co.sent = append(co.sent, e)
	}
}

// changeSubscribers pauses and resumes a subscriber, and makes another one again.
func (c *chaos) changeSubscribers(ctx context.Context) {
	paused, again := c.receiver("paused"), c.receiver("made again")
	for n := 1; pause.For(ctx, time.Second+rand.N(2*time.Second)); n++ {
		paused.change(ctx, []string{"resume", "pause"}[n%2])
		if n%3 == 0 {
			again.unsubscribe(ctx)
			again.subscribe(ctx)
		}
	}
	paused.change(ctx, "resume")
}

func (c *chaos) receiver(kind string) *chaosReceiver {
	for _, co := range c.companies {
		for _, r := range co.receivers {
			if r.kind == kind {
				return r
			}
		}
	}
	c.t.Errorf("no receiver is %s", kind)
	return nil
}

// latest is the subscriber that the receiver has now.
func (r *chaosReceiver) latest() *chaosSubscriber {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.generations[len(r.generations)-1]
}

func (r *chaosReceiver) subscribe(ctx context.Context) {
	r.mu.Lock()
	s := &chaosSubscriber{acks: map[string][]time.Time{}, last: map[string]int{}, before: map[int]int{}}
	r.generations = append(r.generations, s)
	n := len(r.generations) - 1
	r.mu.Unlock()
	body := fmt.Sprintf(`{"name":%q,"callbackUrl":"%s/%d","events":["PAYMENT_PAID"]%s}`, r.kind, r.URL, n, r.settings)
	status, answer := r.call(ctx, http.MethodPost, "/api/v1/subscribers", body, uuid.NewString())
	var created gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(answer), &created); err != nil || status != http.StatusCreated {
		r.t.Errorf("subscribe %s: %d %s", r.kind, status, answer)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.uuid, s.created = created.UUID, time.Now()
}

func (r *chaosReceiver) unsubscribe(ctx context.Context) {
	s := r.latest()
	r.mu.Lock()
	s.deleted = true
	r.mu.Unlock()
	if status, answer := r.call(ctx, http.MethodDelete, "/api/v1/subscribers/"+s.uuid.String(), "", ""); status != http.StatusNoContent && status != http.StatusNotFound {
		r.t.Errorf("delete: %d %s", status, answer)
	}
}

func (r *chaosReceiver) change(ctx context.Context, how string) {
	if status, answer := r.call(ctx, http.MethodPost, "/api/v1/subscribers/"+r.latest().uuid.String()+"/"+how, "", uuid.NewString()); status/100 != 2 {
		r.t.Errorf("%s: %d %s", how, status, answer)
	}
}

// ServeHTTP answers a delivery, and notes what it acknowledges.
func (r *chaosReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if want := fmt.Sprintf(`{"ref":%q}`, req.Header.Get("webhook-id")); err == nil && r.kind == transformed && string(body) != want {
		r.t.Errorf("received %.100s, want %s", body, want)
	}
	key := ""
	if r.kind == byKey {
		key = strconv.FormatBool(bytes.Contains(body, []byte(`"even":true`)))
	}
	status := r.answer(w, req)
	if status/100 == 2 || status == refused {
		r.note(req, key)
	}
	w.WriteHeader(status)
}

// note notes that a delivery was acknowledged. key is what its subscriber is ordered by.
func (r *chaosReceiver) note(req *http.Request, key string) {
	id := req.Header.Get("webhook-id")
	generation, err := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/"))
	number, also := strconv.Atoi(req.Header.Get("webhook-sequence"))
	if err := cmp.Or(err, also); err != nil {
		r.t.Errorf("%s %s: %v", req.URL.Path, id, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.generations[generation]
	if len(s.acks[id]) == 0 && number < s.last[key] {
		s.early++
	}
	s.last[key] = max(s.last[key], number)
	before, _ := strconv.Atoi(req.Header.Get("webhook-previous")) // 0 when it is missing
	if known := s.before[number]; known != 0 && before != 0 && known != before {
		r.t.Errorf("%d named %d and %d as the event before", number, known, before)
	}
	s.before[number] = max(s.before[number], before)
	s.acks[id] = append(s.acks[id], time.Now())
}

// during reports whether something that was done at a time could be lost in a fault.
func (c *chaos) during(at time.Time) bool {
	return slices.ContainsFunc(c.faults, func(f chaosFault) bool {
		return at.After(f.from.Add(-chaosBefore)) && at.Before(f.to.Add(chaosAfter))
	})
}

// account waits until everything is settled, and compares every event with every subscriber.
func (c *chaos) account() {
	c.t.Helper()
	began := time.Now()
	tr := &trial{t: c.t, client: c.server.Client()}
	eventually(c.t, deliveryPatience, "every event is settled", func() bool { return tr.pending() == 0 })
	c.t.Logf("settled %s after the last fault", time.Since(began).Round(time.Millisecond))
	for _, co := range c.companies {
		d := &running{api: c.daemons[0].api, token: co.tokens[0]}
		found := d.deliveries(c.t, "")
		for _, r := range co.receivers {
			for _, s := range r.generations {
				r.accountFor(s, found)
			}
		}
	}
}

// accountFor compares the events of the company with what a subscriber's receiver saw.
func (r *chaosReceiver) accountFor(s *chaosSubscriber, found map[string]gen.Delivery) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var missing, wrong, unexplained []string
	repeats := 0
	for _, e := range r.sent {
		acks := s.acks[e.id]
		matches := !r.even || e.even
		must := matches && !s.deleted && e.from.After(s.created)
		status := found[e.id+"."+s.uuid.String()].Status
		ended := status == gen.DeliveryStatusDELIVERED || r.kind == "refusing" && status == gen.DeliveryStatusDEAD
		switch {
		case must && (len(acks) == 0 || !ended):
			missing = append(missing, fmt.Sprintf("%s %s, acknowledged %d times", e.id, status, len(acks)))
		case !matches && len(acks) > 0:
			wrong = append(wrong, e.id)
		}
		for i := range acks {
			if i == 0 {
				continue
			}
			if repeats++; !r.during(acks[i-1]) {
				unexplained = append(unexplained, fmt.Sprintf("%s at %s and %s", e.id, acks[i-1].Format("04:05.000"), acks[i].Format("04:05.000")))
			}
		}
	}
	r.t.Logf("%s: %d events, %d acknowledged, %d of them again", r.kind, len(r.sent), len(s.acks), repeats)
	if len(missing)+len(wrong)+len(unexplained) > 0 {
		r.t.Errorf("%s: %d missing, %d that do not match, %d repeated without a fault; the first of each: %q %q %q",
			r.kind, len(missing), len(wrong), len(unexplained), missing[:min(5, len(missing))], wrong[:min(5, len(wrong))], unexplained[:min(5, len(unexplained))])
	}
	if !s.deleted {
		r.checkChain(s)
	}
	if (r.kind == "ordered" || r.kind == byKey) && s.early > 0 {
		r.t.Errorf("%d events came out of order", s.early)
	}
}

// checkChain checks that the event before is named rightly wherever it is named, and nearly everywhere.
func (r *chaosReceiver) checkChain(s *chaosSubscriber) {
	r.t.Helper()
	numbers := slices.Sorted(maps.Keys(s.before))
	named := 0
	for i, number := range numbers {
		before := s.before[number]
		if before == 0 {
			continue
		}
		if named++; i == 0 || before != numbers[i-1] {
			r.t.Errorf("%s: %d names %d as the event before; the last ones are %v", r.kind, number, before, numbers[max(0, i-3):i])
		}
	}
	r.t.Logf("%s: %d of %d name the event before", r.kind, named, len(numbers))
	if named < len(numbers)/2 {
		r.t.Errorf("%s: only %d of %d name the event before", r.kind, named, len(numbers))
	}
}
