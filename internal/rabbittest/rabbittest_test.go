package rabbittest_test

import (
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/internal/rabbittest"
	"spendhook/internal/waittest"
)

func TestMain(m *testing.M) { rabbittest.Main(m) }

func TestTheSharedServerHasBothTypesOfQueues(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{rabbittest.Classic, rabbittest.Quorum} {
		s := rabbittest.New(t)
		s.Declare("both-"+queueType, queueType)
		s.Publish("both-"+queueType, amqp.Publishing{Body: []byte("a")}, amqp.Publishing{Body: []byte("b")})
		if got := s.Ready("both-" + queueType); got != 2 {
			t.Errorf("the %s queue has %d messages, want 2", queueType, got)
		}
	}
}

func TestAKilledServerKeepsItsMessages(t *testing.T) {
	t.Parallel()
	s := rabbittest.Start(t)
	for _, queueType := range []string{rabbittest.Classic, rabbittest.Quorum} {
		s.Declare(queueType, queueType)
	}
	s.Stop()
	s.Restart()
	for _, queueType := range []string{rabbittest.Classic, rabbittest.Quorum} {
		s.Publish(queueType, amqp.Publishing{Body: []byte("a")})
	}
	s.Kill()
	if _, err := amqp.Dial(s.URL()); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Restart()
	for _, queueType := range []string{rabbittest.Classic, rabbittest.Quorum} {
		waittest.Until(t, "the "+queueType+" queue has its message", func() bool { return s.Ready(queueType) == 1 })
	}
}

// A relay relies on it: a queue without a single active consumer gives later messages to a consumer that comes before the
// broker knows that the lost one is gone.
func TestAnOrderedQueueIsInOrderForWhoReadsItFirstAfterAKill(t *testing.T) {
	t.Parallel()
	s := rabbittest.Start(t)
	s.DeclareOrdered("ordered", rabbittest.Quorum)
	s.Stop()
	s.Restart()
	const n, prefetch = 20, 10
	for i := range n {
		s.Publish("ordered", amqp.Publishing{MessageId: strconv.Itoa(i)})
	}
	read := func() <-chan amqp.Delivery {
		ch := s.Channel()
		err := ch.Qos(prefetch, 0, false)
		deliveries := make(<-chan amqp.Delivery)
		if err == nil {
			deliveries, err = ch.Consume("ordered", "", false, false, false, false, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return deliveries
	}
	lost := read()
	for range prefetch {
		<-lost
	}
	s.Kill()
	s.Restart()
	deliveries := read()
	for i := range prefetch {
		if d := <-deliveries; d.MessageId != strconv.Itoa(i) {
			t.Fatalf("message %q came, want %d", d.MessageId, i)
		}
	}
}
