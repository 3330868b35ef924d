package rabbitmq

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/internal/rabbittest"
	"spendhook/internal/waittest"
)

// The messages that were delivered, and the others, survive the broker. A relay that reads as soon as the broker is back
// gets them in order.
func TestABrokerThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	s := rabbittest.Start(t)
	s.Declare(dead, rabbittest.Quorum)
	const n, prefetch = 1500, 500
	types := []string{rabbittest.Classic, rabbittest.Quorum}
	for _, queueType := range types {
		s.DeclareOrdered(queueType, queueType)
	}
	s.Stop() // see Kill
	s.Restart()
	killed := make(chan struct{})
	var daemons []*daemon
	read := func(queue string, d *daemon) *running {
		to, _ := sender(t, d)
		from := source(t, s.URL(), queue, dead)
		from.prefetch = prefetch
		return run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
	}
	var reading []*running
	for _, queueType := range types {
		s.Publish(queueType, messages(1, n)...)
		var requests atomic.Int32
		d := &daemon{before: func(context.Context, []string) error {
			if requests.Add(1) > 2 {
				<-killed
			}
			return nil
		}}
		daemons, reading = append(daemons, d), append(reading, read(queueType, d))
		d.waitFor(t, 1)
	}
	s.Kill()
	close(killed)
	for _, r := range reading {
		_ = r.fails()
	}
	s.Restart()
	for i, d := range daemons {
		read(types[i], d)
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
		const n, bytes = 400, 64 << 10 // much more than the buffers of sockets, which are read before they are counted
		list := messages(1, n)
		for i := range list {
			list[i].Body = make([]byte, bytes)
		}
		s.Publish(queue, list...)
		from := source(t, s.URL(), queue, queue+".dead")
		from.maxHeld = 4 << 20
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
		if 2*most > n {
			t.Errorf("%d messages of %d were in memory", most, n)
		}
	})
}

// Its letter is refused more often than the queue may deliver it.
func TestADeadMessageIsKeptUntilItsLetterIsWritten(t *testing.T) {
	t.Parallel()
	eachType(t, "no-dead", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		limitDeliveries(t, s, queue)
		d, from := &daemon{}, source(t, s.URL(), queue, queue+".dead")
		from.again = time.Millisecond
		log := make(firstLines, 1000)
		to, active := loggingSender(t, d, slog.New(slog.NewTextHandler(log, nil)))
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		waittest.Until(t, "the source reads", active)
		if _, err := s.Channel().QueueDelete(queue+".dead", false, false, false); err != nil {
			t.Fatal(err)
		}
		s.Publish(queue, amqp.Publishing{MessageId: "1", Body: []byte("!")})
		for range 2 * deliveryLimit {
			log.waitFor(r, "NO_ROUTE")
		}
		s.Declare(queue+".dead", rabbittest.Classic)
		waittest.Until(t, "the letter is written", func() bool { return s.Ready(queue+".dead") == 1 })
		waitEmpty(t, s, from)
		r.stop()
	})
}

// Each lost connection returns the message, until one more might be too many.
func TestAQueueWithALimitIsNotReadUntilItDropsAMessage(t *testing.T) {
	t.Parallel()
	s := rabbittest.New(t)
	queue := "limit-" + rabbittest.Quorum
	s.Declare(queue+".dead", rabbittest.Classic)
	limitDeliveries(t, s, queue)
	s.Publish(queue, messages(1, 1)...)
	proxy := rabbittest.NewProxy(t, s)
	d := &daemon{before: func(context.Context, []string) error {
		proxy.Cut()
		return errors.New("no answer")
	}}
	from := source(t, proxy.URL(), queue, queue+".dead")
	from.mostReturns = deliveryLimit - 1
	to, _ := sender(t, d)
	for n := range deliveryLimit {
		err := run(t, func(ctx context.Context) error { return from.Run(ctx, to) }).fails()
		if stopped := n >= deliveryLimit-1; strings.Contains(err.Error(), "is not read any more") != stopped {
			t.Errorf("run %d: %v, want it stopped: %v", n, err, stopped)
		}
	}
	run(t, func(ctx context.Context) error { return from.Run(ctx, to) }).stop()
	if !returned(t, s, queue)[messages(1, 1)[0].MessageId] {
		t.Error("the message is not in the queue")
	}
}

// returned reads a queue until it is empty, and returns the ids.
func returned(t *testing.T, s *rabbittest.Server, queue string) map[string]bool {
	t.Helper()
	waittest.Until(t, "the queue has no consumer", func() bool { return s.Consumers(queue) == 0 })
	ch, ids := s.Channel(), map[string]bool{}
	for {
		m, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return ids
		}
		ids[m.MessageId] = true
	}
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
