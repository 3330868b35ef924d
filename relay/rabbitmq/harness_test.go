package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/api/client"
	"spendhook/internal/rabbittest"
	"spendhook/internal/secret"
	"spendhook/internal/waittest"
	"spendhook/relay"
)

func TestMain(m *testing.M) { rabbittest.Main(m) }

const dead = "dead-letters"

// daemon is an Emitter that remembers what it accepted, in order.
type daemon struct {
	mu       sync.Mutex
	accepted []string
	known    map[string]bool
	// before, if there is one, is called before each request. Its error is that of the request.
	before func(ctx context.Context, ids []string) error
	refuse func(id string) *client.ItemError
}

func (d *daemon) SendAll(ctx context.Context, list []client.EventInput) ([]client.EventItemResult, error) {
	results := make([]client.EventItemResult, len(list))
	var ids []string
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	if d.before != nil {
		if err := d.before(ctx, ids); err != nil {
			return results, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, id := range ids {
		results[i] = d.accept(id)
	}
	return results, nil
}

func (d *daemon) accept(id string) client.EventItemResult {
	if d.refuse != nil {
		if refusal := d.refuse(id); refusal != nil {
			return client.EventItemResult{Status: client.EventItemResultStatusREJECTED, Error: refusal}
		}
	}
	if d.known[id] {
		return client.EventItemResult{Status: client.EventItemResultStatusDUPLICATE}
	}
	if d.known == nil {
		d.known = map[string]bool{}
	}
	d.known[id] = true
	d.accepted = append(d.accepted, id)
	return client.EventItemResult{Status: client.EventItemResultStatusACCEPTED}
}

func (d *daemon) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.accepted)
}

// byMessage takes the id from the property message-id and the key from the header key. A body that begins with ! has
// no event.
type byMessage struct{}

func (byMessage) Event(_ context.Context, r *relay.Record) (client.EventInput, string, error) {
	if strings.HasPrefix(string(r.Value), "!") {
		return client.EventInput{}, "", errors.New("id: no such key")
	}
	return client.EventInput{ID: r.From["messageId"].(string), Event: "PAID"}, r.Headers["key"], nil
}

// sender returns a Sender with its gauge of being active.
func sender(t *testing.T, d *daemon) (to *relay.Sender, active func() bool) {
	t.Helper()
	return loggingSender(t, d, slog.New(slog.DiscardHandler))
}

func loggingSender(t *testing.T, d *daemon, log *slog.Logger) (to *relay.Sender, active func() bool) {
	t.Helper()
	registry := prometheus.NewRegistry()
	to = relay.New(relay.Options{
		Name: "queue", Emitter: d, Mapper: byMessage{}, Log: log, Metrics: relay.NewMetrics(registry),
	})
	return to, func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Error(err)
		}
		for _, f := range families {
			if f.GetName() == "spendhook_relay_active" {
				return f.GetMetric()[0].GetGauge().GetValue() == 1
			}
		}
		return false
	}
}

func source(t *testing.T, url, queue, deadLetters string) *Source {
	t.Helper()
	s, err := New(Options{
		URL: secret.Text(url), Queue: queue, DeadLetterQueue: deadLetters, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// running is a source that runs.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// run calls f until the test ends or the source is stopped.
func run(t *testing.T, f func(context.Context) error) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = f(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// stop stops the source, which must not fail.
func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	<-r.done
	if r.err != nil {
		r.t.Errorf("the source failed: %v", r.err)
	}
}

// fails waits for the error of the source.
func (r *running) fails() error {
	r.t.Helper()
	<-r.done
	if r.err == nil {
		r.t.Fatal("the source ended without an error")
	}
	return r.err
}

// eachType runs a test with an empty queue of each type on the shared server. It has a dead-letter queue with a name
// that ends in .dead.
func eachType(t *testing.T, name string, test func(t *testing.T, s *rabbittest.Server, queue string)) {
	t.Helper()
	for _, queueType := range []string{rabbittest.Classic, rabbittest.Quorum} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			s, queue := rabbittest.New(t), name+"-"+queueType
			s.DeclareOrdered(queue, queueType)
			s.Declare(queue+".dead", queueType)
			test(t, s, queue)
		})
	}
}

const keys = 97

// messages returns messages with the ids from first to last, of several keys.
func messages(first, last int) (list []amqp.Publishing) {
	for i := first; i <= last; i++ {
		list = append(list, amqp.Publishing{
			MessageId: fmt.Sprintf("%06d", i), Body: fmt.Appendf(nil, `{"n":%d}`, i),
			Headers: amqp.Table{"key": fmt.Sprintf("k%d", i%keys)}, Timestamp: time.Unix(1_700_000_000, 0),
		})
	}
	return list
}

// checkOrder checks that events 1 to n were accepted once, and those of each key in order.
func checkOrder(t *testing.T, d *daemon, n int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for k := range keys {
		var got []string
		for _, id := range d.accepted {
			var i int
			if _, err := fmt.Sscanf(id, "%d", &i); err != nil {
				t.Fatal(err)
			}
			if i%keys == k {
				got = append(got, id)
			}
		}
		if !slices.IsSorted(got) {
			t.Errorf("key %d is out of order", k)
		}
		all = append(all, got...)
	}
	if slices.Sort(all); len(slices.Compact(all)) != n || len(d.accepted) != n {
		t.Errorf("%d events were accepted, want %d", len(d.accepted), n)
	}
}

func (d *daemon) waitFor(t *testing.T, n int) {
	t.Helper()
	waittest.Until(t, func() string { return fmt.Sprintf("%d events accepted, want %d", d.count(), n) },
		func() bool { return d.count() >= n })
}

// waitEmpty waits until nothing is to be done for a queue.
func waitEmpty(t *testing.T, s *rabbittest.Server, from *Source) {
	t.Helper()
	waittest.Until(t, "the queue is empty", func() bool {
		return s.Ready(from.opts.Queue) == 0 && from.unsettled.Load() == 0
	})
}

// deliveryLimit is how often a message may come back to a queue with a limit.
const deliveryLimit = 3

// limitDeliveries declares a queue of eachType again, with a delivery limit if it is a quorum queue.
func limitDeliveries(t *testing.T, s *rabbittest.Server, queue string) {
	t.Helper()
	if !strings.HasSuffix(queue, rabbittest.Quorum) {
		return
	}
	ch := s.Channel()
	_, err := ch.QueueDelete(queue, false, false, false)
	if err == nil {
		_, err = ch.QueueDeclare(queue, true, false, false, false, amqp.Table{
			amqp.QueueTypeArg: rabbittest.Quorum, "x-delivery-limit": deliveryLimit,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// firstLines gets the first lines of a log, as many as it has capacity.
type firstLines chan string

func (l firstLines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// waitFor waits for the next line of a source that has a text.
func (l firstLines) waitFor(r *running, text string) {
	r.t.Helper()
	for line := ""; !strings.Contains(line, text); {
		select {
		case line = <-l:
		case <-r.done:
			r.t.Fatalf("the source ended: %v", r.err)
		}
	}
}
