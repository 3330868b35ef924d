package rabbitmq

import (
	"context"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/client"
	"spendhook/internal/rabbittest"
	"spendhook/internal/secret"
	"spendhook/internal/waittest"
	"spendhook/relay"
)

func TestMessagesAreRelayedInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	eachType(t, "order", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n = 3000
		s.Publish(queue, messages(1, n)...)
		d, from := &daemon{}, source(t, s.URL(), queue, queue+".dead")
		to, active := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		d.waitFor(t, n)
		checkOrder(t, d, n)
		waitEmpty(t, s, from)
		if !active() {
			t.Error("the source is not active")
		}
		r.stop()
		if got := s.Ready(queue); got != 0 {
			t.Errorf("%d messages were returned to the queue", got)
		}
	})
}

func TestDeadMessagesAreWrittenToTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	eachType(t, "poison", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n, every = 1000, 100
		list := messages(1, n)
		for i := every - 1; i < n; i += every {
			list[i].Body = []byte("!" + list[i].MessageId)
		}
		list[n-1].Headers["large"] = strings.Repeat("x", 130_950) // beside it there is no space for the reason
		s.Publish(queue, list...)
		d, from := &daemon{}, source(t, s.URL(), queue, queue+".dead")
		to, _ := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		d.waitFor(t, n-n/every)
		waittest.Until(t, "all dead letters are written", func() bool { return s.Ready(queue+".dead") == n/every })
		waitEmpty(t, s, from)
		r.stop()
		if got := d.count(); got != n-n/every {
			t.Errorf("%d events were accepted, want %d", got, n-n/every)
		}
		letters, err := s.Channel().Consume(queue+".dead", "", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := every; i <= n; i += every {
			letter := <-letters
			id := messages(i, i)[0].MessageId
			if string(letter.Body) != "!"+id || letter.MessageId != id ||
				letter.Headers["spendhook-dead-reason"] != "id: no such key" || letter.Headers["spendhook-source-queue"] != queue {
				t.Errorf("dead letter %s: %q with headers %v", letter.MessageId, letter.Body, letter.Headers)
			}
		}
	})
}

func TestRefusalsThatPassLoseNothing(t *testing.T) {
	t.Parallel()
	eachType(t, "refused", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n = 100
		s.Publish(queue, messages(1, n)...)
		var requests atomic.Int32
		d := &daemon{before: func(context.Context, []string) error {
			if requests.Add(1) <= 3 {
				return &client.Error{Status: 503, Code: "UNAVAILABLE"}
			}
			return nil
		}}
		from := source(t, s.URL(), queue, queue+".dead")
		to, _ := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		d.waitFor(t, n)
		checkOrder(t, d, n)
		waitEmpty(t, s, from)
		r.stop()
	})
}

// It is refused more often than the queue may deliver it.
func TestAMessageThatIsTooOldIsKeptUntilItIsAccepted(t *testing.T) {
	t.Parallel()
	eachType(t, "old", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		limitDeliveries(t, s, queue)
		const n = 20
		s.Publish(queue, messages(1, n)...)
		old := messages(5, 5)[0].MessageId
		refusals := 0
		d := &daemon{refuse: func(id string) *client.ItemError {
			if id == old && refusals < 2*deliveryLimit {
				refusals++
				return &client.ItemError{Code: "EVENT_TOO_OLD"}
			}
			return nil
		}}
		log := make(firstLines, 100)
		to, active := loggingSender(t, d, slog.New(slog.NewTextHandler(log, nil)))
		from := source(t, s.URL(), queue, queue+".dead")
		from.tooOldPause = time.Millisecond
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		for range 2 * deliveryLimit {
			log.waitFor(r, relay.ErrTooOld.Error())
		}
		d.waitFor(t, n)
		checkOrder(t, d, n)
		waitEmpty(t, s, from)
		if !active() {
			t.Error("the source is not active")
		}
		r.stop()
	})
}

// The daemon is slow, so that the first relay stops with thousands of delivered messages.
func TestOneOfTwoRelaysReadsUntilItStops(t *testing.T) {
	t.Parallel()
	eachType(t, "standby", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n, prefetch = 1500, 500
		s.Publish(queue, messages(1, n)...)
		var hold sync.Mutex
		hold.Lock()
		d := &daemon{before: func(context.Context, []string) error {
			hold.Lock()
			defer hold.Unlock()
			return nil
		}}
		to, firstActive := sender(t, d)
		firstFrom := source(t, s.URL(), queue, queue+".dead")
		firstFrom.prefetch = prefetch
		first := run(t, func(ctx context.Context) error { return firstFrom.Run(ctx, to) })
		waittest.Until(t, "the first relay reads", func() bool { return firstFrom.unsettled.Load() == prefetch })
		standsBy := make(firstLines, 1)
		secondTo, secondActive := loggingSender(t, d, slog.New(slog.NewTextHandler(standsBy, nil)))
		secondFrom := source(t, s.URL(), queue, queue+".dead")
		second := run(t, func(ctx context.Context) error { return secondFrom.Run(ctx, secondTo) })
		waittest.Until(t, "the second relay knows whether it may read", func() bool { return len(standsBy) > 0 || secondActive() })
		hold.Unlock()
		if !firstActive() || secondActive() {
			t.Error("the second relay reads beside the first")
		}
		first.stop()
		waittest.Until(t, "the second relay reads", secondActive)
		d.waitFor(t, n)
		checkOrder(t, d, n)
		second.stop()
	})
}

func TestBehindCountsWhatIsInTheQueueAndUnderWay(t *testing.T) {
	t.Parallel()
	eachType(t, "behind", func(t *testing.T, s *rabbittest.Server, queue string) {
		t.Helper()
		const n, prefetch = 300, 200
		s.Publish(queue, messages(1, n)...)
		hold := make(chan struct{})
		d, from := &daemon{before: func(context.Context, []string) error {
			<-hold
			return nil
		}}, source(t, s.URL(), queue, queue+".dead")
		from.prefetch = prefetch
		to, _ := sender(t, d)
		r := run(t, func(ctx context.Context) error { return from.Run(ctx, to) })
		waittest.Until(t, "messages are under way", func() bool { return from.unsettled.Load() == prefetch })
		got, err := from.Behind(t.Context())
		if want := map[string]int64{"": n}; err != nil || !maps.Equal(got, want) {
			t.Errorf("behind %v, %v, want %v", got, err, want)
		}
		close(hold)
		r.stop()
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := rabbittest.New(t)
	for _, name := range []string{"check", "check-read", "check.dead"} {
		s.Declare(name, rabbittest.Classic)
	}
	to, active := sender(t, &daemon{})
	run(t, func(ctx context.Context) error { return source(t, s.URL(), "check-read", "check.dead").Run(ctx, to) })
	waittest.Until(t, "the source reads", active)
	for i, c := range []struct{ queue, dead, want string }{
		{"check", "check.dead", ""},
		{"check-read", "check.dead", ""}, // another relay reads it
		{"check-none", "check.dead", "there is no queue check-none"},
		{"check", "check-none.dead", "there is no queue check-none.dead"},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := source(t, s.URL(), c.queue, c.dead).Check(t.Context()); err != nil {
				got = err.Error()
			}
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("error %q, want %q", got, c.want)
			}
		})
	}
}

func TestErrorsHaveNoPassword(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	s := rabbittest.New(t)
	for _, url := range []string{
		"http://guest:" + password + "@localhost",
		"amqp://guest:" + password + "%zz@localhost",
		"amqp://guest:" + password + "@127.0.0.1:1",
		strings.Replace(s.URL(), "guest:guest", "guest:"+password, 1),
	} {
		from, err := New(Options{URL: secret.Text(url), Queue: "queue", DeadLetterQueue: dead})
		if err == nil {
			err = from.Check(t.Context())
		}
		if err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("error %v, want one without the password", err)
		}
	}
}
