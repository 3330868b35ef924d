package rabbitmq

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/internal/rabbittest"
	"spendhook/internal/waittest"
)

// The messages that were delivered, and the others, survive the broker.
func TestABrokerThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	s := rabbittest.Start(t)
	s.Declare(dead, rabbittest.Quorum)
	const n, prefetch = 1500, 500
	types := []string{rabbittest.Classic, rabbittest.Quorum}
	for _, queueType := range types {
		s.Declare(queueType, queueType)
	}
	s.Stop() // see Kill
	s.Restart()
	restarted := make(chan struct{})
	var daemons []*daemon
	for _, queueType := range types {
		s.Publish(queueType, messages(1, n)...)
		var requests atomic.Int32
		d := &daemon{before: func(context.Context, []string) error {
			if requests.Add(1) > 2 {
				<-restarted
			}
			return nil
		}}
		daemons = append(daemons, d)
		to, _ := sender(t, d)
		from := source(t, s.URL(), queueType, dead)
		from.prefetch = prefetch
		run(t, func(ctx context.Context) error {
			to.Serve(ctx, from)
			return nil
		})
		d.waitFor(t, 1)
	}
	s.Kill()
	close(restarted)
	s.Restart()
	for _, d := range daemons {
		d.waitFor(t, n)
		checkOrder(t, d, n)
	}
}

// A relay that is killed leaves messages that are accepted and not acknowledged. They are delivered again, in order.
func TestMessagesOfAKilledRelayAreDeliveredAgain(t *testing.T) {
	t.Parallel()
	eachType(t, "killed", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n = 2000
		s.Publish(queue, messages(1, n)...)
		proxy := rabbittest.NewProxy(t, s)
		var requests atomic.Int32
		d := &daemon{before: func(context.Context, []string) error {
			if requests.Add(1)%5 == 0 {
				proxy.Cut() // the request is accepted, and cannot be acknowledged
			}
			return nil
		}}
		for d.count() < n {
			to, _ := sender(t, d)
			from := source(t, proxy.URL(), queue, queue+".dead")
			r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
			waittest.Until(t, "all is accepted, or the connection is cut", func() bool {
				select {
				case <-r.done:
					return true
				default:
					return d.count() == n
				}
			})
			r.cancel()
			<-r.done
		}
		checkOrder(t, d, n)
	})
}

func TestADeletedQueueIsAFault(t *testing.T) {
	t.Parallel()
	eachType(t, "deleted", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		d, from := &daemon{}, source(t, s.URL(), queue, queue+".dead")
		to, active := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		waittest.Until(t, "the source reads", active)
		if _, err := s.Channel().QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
		if err := r.fails(); !strings.Contains(err.Error(), queue) {
			t.Errorf("error %v, which does not name the queue", err)
		}
	})
}

// Messages beyond the bound stay with the broker, until the daemon accepts events again.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	eachType(t, "memory", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n, bytes = 1000, 16 << 10
		list := messages(1, n)
		for i := range list {
			list[i].Body = make([]byte, bytes)
		}
		s.Publish(queue, list...)
		from := source(t, s.URL(), queue, queue+".dead")
		from.maxHeld = 1 << 20
		most, hold := int64(0), make(chan struct{})
		d := &daemon{before: func(context.Context, []string) error {
			<-hold
			most = max(most, from.unsettled.Load())
			return nil
		}}
		to, _ := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		waittest.Until(t, "memory is used up", func() bool { return from.unsettled.Load()*(bytes+1024) >= from.maxHeld })
		close(hold)
		d.waitFor(t, n)
		checkOrder(t, d, n)
		r.stop()
		if most*bytes > 2*from.maxHeld {
			t.Errorf("%d messages of %d were in memory", most, n)
		}
	})
}

// A message that could not be written is not acknowledged.
func TestWithoutItsDeadLetterQueueADeadMessageStays(t *testing.T) {
	t.Parallel()
	eachType(t, "no-dead", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		d, from := &daemon{}, source(t, s.URL(), queue, queue+".dead")
		to, active := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		waittest.Until(t, "the source reads", active)
		if _, err := s.Channel().QueueDelete(queue+".dead", false, false, false); err != nil {
			t.Fatal(err)
		}
		s.Publish(queue, amqp.Publishing{MessageId: "1", Body: []byte("!")})
		if err := r.fails(); !strings.Contains(err.Error(), "NO_ROUTE") {
			t.Errorf("error %v, want NO_ROUTE", err)
		}
		if !returned(t, s, queue)["1"] {
			t.Error("the message is not in the queue")
		}
	})
}

// A broker that is short of disk confirms nothing and does not read.
func TestABlockedBrokerIsNotWaitedForLongerThanTheContext(t *testing.T) {
	t.Parallel()
	s := rabbittest.Start(t)
	s.Declare(dead, rabbittest.Classic)
	s.Stop()
	s.Restart("disk_free_limit.absolute = 1000000GB")
	w := &deadLetters{source: source(t, s.URL(), "queue", dead)}
	defer w.close()
	conn, err := w.source.dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.conn = conn
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	if err := w.write(t.Context(), []letter{{reason: "bad"}}); err != nil { // the last one that it accepts
		t.Fatal(err)
	}
	<-blocked
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := w.write(ctx, []letter{{reason: "bad"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}
