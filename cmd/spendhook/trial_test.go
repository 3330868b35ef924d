//go:build faults

package main

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
)

// connections bounds a daemon's connections to Redis: a full pool, and some for the messages
// of its queues.
func connections() int { return max(64, 16*runtime.GOMAXPROCS(0)) + 4 }

// trial runs daemons as processes under load. Create a trial with newTrial, cause a fault, and
// call finish.
type trial struct {
	t         *testing.T
	client    redis.UniversalClient // straight to Redis, past any proxy
	daemons   []*running
	endpoints []*endpoint
	load      *trialTraffic
	before    []int // goroutines of each daemon when it was at rest
}

// newTrial starts a daemon process in each installation, lets them deliver some events,
// measures them at rest, and then starts the load. All installations share the Redis of
// client.
func newTrial(t *testing.T, client redis.UniversalClient, installations ...installation) *trial {
	t.Helper()
	tr := &trial{t: t, client: client}
	for _, h := range installations {
		tr.daemons = append(tr.daemons, h.beginChild(t))
	}
	for _, d := range tr.daemons {
		d.await(t)
	}
	tr.endpoints = []*endpoint{newEndpoint(t, nil), newEndpoint(t, failing())}
	for _, e := range tr.endpoints {
		e.subscribe(t, tr.daemons[0], "PAYMENT_PAID")
	}
	tr.load = startTraffic(t, tr.daemons...)
	tr.grow(200)
	tr.load.pause()
	tr.account()
	tr.measure()
	tr.load.resume()
	tr.grow(100)
	return tr
}

// hopeless reports whether failing answers every delivery of the event with 500.
func hopeless(id string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return h.Sum32()%100 == 0
}

// failing answers 500 to one delivery in five, and to all deliveries of hopeless events. Of a
// single event it fails only the first delivery. What it has acknowledged it acknowledges again: an
// event whose acknowledgement was lost in a crash must not die.
func failing() func(id string) int {
	var singles, acknowledged sync.Map
	return func(id string) int {
		fail := hopeless(id) || rand.IntN(5) == 0
		if strings.HasPrefix(id, single) {
			_, again := singles.LoadOrStore(id, true)
			fail = !again
		}
		if _, before := acknowledged.Load(id); fail && !before {
			return http.StatusInternalServerError
		}
		acknowledged.Store(id, true)
		return http.StatusNoContent
	}
}

// grow waits until n more events were accepted.
func (tr *trial) grow(n int) {
	tr.t.Helper()
	from := tr.load.count()
	eventually(tr.t, deliveryPatience, "events are accepted", func() bool { return tr.load.count() >= from+n })
}

// replace puts a new daemon in the place of one that ended.
func (tr *trial) replace(i int, d *running) {
	tr.daemons[i] = d
	tr.load.aim(tr.daemons...)
}

// finish ends the load, accounts for every accepted event, and checks that no work in Redis,
// no goroutine and no connection is left.
func (tr *trial) finish() {
	tr.t.Helper()
	tr.load.stop()
	tr.account()
	tr.end()
}

// end checks that nothing is left behind, and stops the daemons.
func (tr *trial) end() {
	tr.t.Helper()
	tr.wantNothingLeft()
	for _, d := range tr.daemons {
		d.stop(tr.t)
	}
}

// ledger is the result of account.
type ledger struct {
	delivered, dead int
	repeats         int // POSTs beyond the counted attempts: of crashes, and of lost replies
	lost            []string
}

// account waits until everything is settled, and then compares every accepted event with
// every endpoint. A DELIVERED event was acknowledged by the endpoint, a DEAD one never was.
// There is no other status. A lost event fails the test.
func (tr *trial) account() ledger {
	tr.t.Helper()
	l := tr.accountLosing()
	if len(l.lost) > 0 {
		tr.t.Errorf("%d of %d accepted events are lost: %.10q", len(l.lost), tr.load.count(), l.lost)
	}
	return l
}

// accountLosing is account for a Redis that may lose what it has acknowledged.
func (tr *trial) accountLosing() ledger {
	tr.t.Helper()
	accepted := tr.load.ids()
	began := time.Now()
	var l ledger
	var found map[string]gen.Delivery
	eventually(tr.t, deliveryPatience, "every delivery is settled", func() bool {
		if len(tr.daemons[0].deliveries(tr.t, "PENDING", "DELIVERING", "RETRYING")) > 0 || tr.pending() > 0 {
			return false
		}
		found = tr.daemons[0].deliveries(tr.t, "")
		return true
	})
	for id := range accepted {
		if tr.unknown(found, id) {
			l.lost = append(l.lost, id)
			delete(accepted, id)
		}
	}
	for _, e := range tr.endpoints {
		e.counts(tr.t) // every delivery was signed right
		for id := range accepted {
			key := id + "." + e.subscriber.String()
			l.enter(tr.t, e, found[key], id)
			delete(found, key)
		}
	}
	for key, d := range found {
		if !tr.load.sent(d.EventID) {
			tr.t.Errorf("%s %s is of an event that was never sent", key, d.Status)
		}
	}
	tr.t.Logf("account after %s: %d events, %d delivered, %d dead, %d POSTs repeated, %d lost",
		time.Since(began).Round(time.Millisecond), tr.load.count(), l.delivered, l.dead, l.repeats, len(l.lost))
	return l
}

// unknown is an event without any delivery that the API does not know either.
func (tr *trial) unknown(found map[string]gen.Delivery, id string) bool {
	tr.t.Helper()
	for _, e := range tr.endpoints {
		if _, ok := found[id+"."+e.subscriber.String()]; ok {
			return false
		}
	}
	status, _ := tr.daemons[0].answered(tr.t, "/api/v1/events/"+id)
	return status == http.StatusNotFound
}

func (l *ledger) enter(tb testing.TB, e *endpoint, d gen.Delivery, id string) {
	tb.Helper()
	taken, posts := e.of(id)
	switch {
	case d.Status == gen.DeliveryStatusDELIVERED && taken > 0:
		l.delivered++
	case d.Status == gen.DeliveryStatusDEAD && taken == 0:
		l.dead++
	default:
		tb.Errorf("%s to %s is %q, and was taken %d times in %d POSTs", id, e.subscriber, d.Status, taken, posts)
	}
	if d.AttemptCount > posts {
		tb.Errorf("%s to %s: %d attempts counted, %d POSTs came", id, e.subscriber, d.AttemptCount, posts)
	}
	l.repeats += posts - d.AttemptCount
}

// pending counts the events that are not settled.
func (tr *trial) pending() int {
	tr.t.Helper()
	pipe := tr.client.Pipeline()
	counts := make([]*redis.StringCmd, partition.Count)
	for p := range counts {
		counts[p] = pipe.Get(tr.t.Context(), partition.Prefix(p)+"pending")
	}
	if _, err := pipe.Exec(tr.t.Context()); err != nil && !errors.Is(err, redis.Nil) {
		tr.t.Fatal(err)
	}
	total := 0
	for _, count := range counts {
		n, err := count.Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			tr.t.Fatal(err)
		}
		total += n
	}
	return total
}

// marked counts the deliveries that Redis has marked as in flight.
func (tr *trial) marked() int {
	tr.t.Helper()
	return len(keysLike(tr.t, tr.client, partition.Prefix(partition.Of(developerCompany))+"ef:*"))
}

// keysLike lists keys, those of all masters of a Cluster.
func keysLike(tb testing.TB, client redis.UniversalClient, pattern string) []string {
	tb.Helper()
	var mu sync.Mutex
	var all []string
	list := func(ctx context.Context, c *redis.Client) error {
		keys, err := c.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, keys...)
		return err
	}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(tb.Context(), list)
	} else {
		err = list(tb.Context(), client.(*redis.Client))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// startedLate is how many goroutines a daemon may start after it was counted at
// rest: those that write to a master of a Cluster start when it is first used.
func (tr *trial) startedLate() int {
	cluster, ok := tr.client.(*redis.ClusterClient)
	if !ok {
		return 0
	}
	var masters atomic.Int64
	err := cluster.ForEachMaster(tr.t.Context(), func(context.Context, *redis.Client) error {
		masters.Add(1)
		return nil
	})
	if err != nil {
		tr.t.Fatal(err)
	}
	return 3 * int(masters.Load())
}

// wantNothingLeft waits until Redis has nothing marked as in flight, and daemons and
// connections are what they were at rest.
func (tr *trial) wantNothingLeft() {
	tr.t.Helper()
	eventually(tr.t, patience, "nothing is marked as in flight", func() bool {
		return tr.marked() == 0
	})
	for i, d := range tr.daemons {
		now := 0
		defer func() {
			if tr.t.Failed() && now > 0 {
				_, stacks := get(tr.t, d.admin+"/debug/pprof/goroutine?debug=1")
				tr.t.Logf("goroutines: %d, at rest %d:\n%.20000s", now, tr.before[i], stacks)
			}
		}()
		eventually(tr.t, patience, "the goroutines are as many as at rest", func() bool {
			tr.rest()
			now = d.goroutines(tr.t)
			return now <= tr.before[i]+5+tr.startedLate()
		})
	}
	if c, ok := tr.client.(*redis.Client); ok {
		bound := 10 + c.PoolStats().TotalConns + uint32(len(tr.daemons)*connections())
		n := c.InfoMap(tr.t.Context(), "clients").Item("Clients", "connected_clients")
		if got, err := strconv.ParseUint(n, 10, 32); err != nil || uint32(got) > bound {
			tr.t.Errorf("%s connections to Redis, want at most %d", n, bound)
		}
	}
}

// measure notes the goroutines of the daemons at rest.
func (tr *trial) measure() {
	tr.t.Helper()
	tr.before = nil
	for _, d := range tr.daemons {
		least := 1 << 30
		eventually(tr.t, patience, "the goroutines settle", func() bool {
			tr.rest()
			now := d.goroutines(tr.t)
			settled := now >= least
			least = min(least, now)
			return settled
		})
		tr.before = append(tr.before, least)
	}
}

// rest closes the idle connections into and out of the daemons: each costs
// goroutines.
func (tr *trial) rest() {
	tr.load.client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	for _, e := range tr.endpoints {
		e.CloseClientConnections()
	}
}

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

func (r *running) goroutines(tb testing.TB) int {
	tb.Helper()
	_, metrics := get(tb, r.admin+"/metrics")
	found := goroutinesLine.FindStringSubmatch(metrics)
	if found == nil {
		tb.Fatal("no go_goroutines")
	}
	n, _ := strconv.Atoi(found[1])
	return n
}

// trialTraffic posts events from several clients. Each event is sent until it is accepted, as
// a source does that must not lose an event.
type trialTraffic struct {
	tb     testing.TB
	client *http.Client
	done   sync.WaitGroup

	mu       sync.Mutex
	gate     *sync.Cond // clients wait at it while held
	held     bool
	ended    bool
	busy     int // clients past the gate
	daemons  []*running
	accepted map[string]time.Time // by id, when it was answered
	tried    map[string]bool
}

const (
	emitters  = 8
	emitPause = 15 * time.Millisecond // so that a long fault is not a flood
)

func startTraffic(tb testing.TB, daemons ...*running) *trialTraffic {
	tb.Helper()
	tf := &trialTraffic{
		tb: tb, client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: emitters}},
		daemons: slices.Clone(daemons), accepted: map[string]time.Time{}, tried: map[string]bool{},
	}
	tf.gate = sync.NewCond(&tf.mu)
	run := uuid.NewString()[:8]
	for i := range emitters {
		tf.done.Go(func() { tf.emit(i, run+"-"+strconv.Itoa(i)+"-") })
	}
	tb.Cleanup(tf.stop)
	return tf
}

func (tf *trialTraffic) emit(client int, prefix string) {
	for n := 0; tf.enter(); n++ {
		id := prefix + strconv.Itoa(n)
		tf.insist(client, id, eventBody(id))
		pause.For(context.Background(), emitPause)
	}
}

// enter waits while the traffic is paused, and is false when it has ended.
func (tf *trialTraffic) enter() bool {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	for tf.held && !tf.ended {
		tf.gate.Wait()
	}
	if !tf.ended {
		tf.busy++
	}
	return !tf.ended
}

// insist posts one event until it is accepted, refused for good, or deliveryPatience has
// passed.
func (tf *trialTraffic) insist(client int, id, body string) {
	deadline := time.Now().Add(deliveryPatience)
	for {
		status, answer, err := tf.post(client, id, body)
		switch {
		case err == nil && (status == http.StatusAccepted || status == http.StatusOK):
			tf.note(id)
			return
		case err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests:
			tf.tb.Errorf("%s: %d %s", id, status, answer)
		case time.Now().After(deadline):
			tf.tb.Errorf("%s was never answered: %d %s %v", id, status, answer, err)
		default:
			pause.For(context.Background(), 2*emitPause)
			continue
		}
		tf.note("")
		return
	}
}

// single begins the ids of events that are sent one by one.
const single = "single-"

// one sends one more event, and returns once it is accepted.
func (tf *trialTraffic) one(id string) { tf.sendFrom(0, id, eventBody(id)) }

// sendFrom is one, of a client with a number.
func (tf *trialTraffic) sendFrom(client int, id, body string) {
	tf.mu.Lock()
	tf.busy++
	tf.mu.Unlock()
	tf.insist(client, id, body)
}

func (tf *trialTraffic) post(client int, id, body string) (status int, answer string, err error) {
	tf.mu.Lock()
	d := tf.daemons[client%len(tf.daemons)]
	tf.tried[id] = true
	tf.mu.Unlock()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, d.api+"/api/v1/events", bytes.NewBufferString(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := tf.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func (tf *trialTraffic) note(accepted string) {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	tf.busy--
	if accepted != "" {
		tf.accepted[accepted] = time.Now()
	}
	tf.gate.Broadcast()
}

// pause returns once no client is waiting for an answer.
func (tf *trialTraffic) pause() {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	tf.held = true
	for tf.busy > 0 {
		tf.gate.Wait()
	}
}

func (tf *trialTraffic) resume() {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	tf.held = false
	tf.gate.Broadcast()
}

// stop returns once every event that was sent is answered.
func (tf *trialTraffic) stop() {
	tf.mu.Lock()
	tf.ended = true
	tf.gate.Broadcast()
	tf.mu.Unlock()
	tf.done.Wait()
	tf.client.CloseIdleConnections()
}

// aim sends later events to these daemons.
func (tf *trialTraffic) aim(daemons ...*running) {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	tf.daemons = slices.Clone(daemons)
}

func (tf *trialTraffic) count() int {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	return len(tf.accepted)
}

func (tf *trialTraffic) sent(id string) bool {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	return tf.tried[id]
}

// ids is a copy of the accepted events.
func (tf *trialTraffic) ids() map[string]time.Time {
	tf.mu.Lock()
	defer tf.mu.Unlock()
	return maps.Clone(tf.accepted)
}
