package rabbittest_test

import (
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
