// Package rabbittest starts a RabbitMQ for tests: one server for a test binary, or a private server that a test may
// stop.
package rabbittest

import (
	"sync"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
)

// Classic and Quorum are the types of queues.
const (
	Classic = amqp.QueueTypeClassic
	Quorum  = amqp.QueueTypeQuorum
)

// shared is the server of this test binary.
var shared struct {
	sync.Mutex
	server *process
}

// New returns the server of this test binary, which the first call starts. Tests that run in parallel use queues with
// different names. It is safe with t.Parallel.
func New(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		p, err := create(tb)
		if err != nil {
			tb.Fatalf("rabbittest: %v", err)
		}
		shared.server = p
	}
	return &Server{tb: tb, process: shared.server}
}

// Main is the body of a TestMain. It runs the tests, stops the shared server, and fails if a goroutine still runs.
// m is a *testing.M, or wraps one to clean up after it.
func Main(m goleak.TestingM) { goleak.VerifyTestMain(stopping{m}) }

type stopping struct{ m goleak.TestingM }

// Run runs the tests and then stops the server, before goleak searches for goroutines.
func (s stopping) Run() int {
	defer stopShared()
	return s.m.Run()
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.remove()
	}
}

// Server is a RabbitMQ. Its methods fail the test on an error, and are safe for concurrent use except Kill, Stop and Restart.
type Server struct {
	tb      testing.TB
	process *process

	mu      sync.Mutex    // guards channel
	channel *amqp.Channel // for questions
}

// Start runs a private server, which its test may stop and start again, and which ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	p, err := create(tb)
	if err != nil {
		tb.Fatalf("rabbittest: %v", err)
	}
	tb.Cleanup(p.remove)
	return &Server{tb: tb, process: p}
}

// URL returns the server's address as an amqp:// URL, which is the same after a restart.
func (s *Server) URL() string { return s.process.url() }

// Kill ends a private server at once, like a crash. Messages that it confirmed are kept. Queues, and what they hold,
// are kept if they are older than the last start: RabbitMQ answers a declaration up to 2 s before it is on disk.
func (s *Server) Kill() { s.process.server.Kill() }

// Stop shuts a private server down.
func (s *Server) Stop() { s.process.server.Stop(syscall.SIGTERM, startTimeout) }

// Restart starts a server that was killed or stopped on the same data and waits until it answers. settings are further lines of
// rabbitmq.conf, until the next restart.
func (s *Server) Restart(settings ...string) {
	s.tb.Helper()
	if err := s.process.start(settings...); err != nil {
		s.tb.Fatalf("rabbittest: %v", err)
	}
}

// Channel returns a channel on a new connection, which is closed when the test ends. It confirms what is published.
func (s *Server) Channel() *amqp.Channel {
	s.tb.Helper()
	conn, err := amqp.Dial(s.URL())
	if err != nil {
		s.tb.Fatalf("rabbittest: %v", err)
	}
	s.tb.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		s.tb.Fatalf("rabbittest: %v", err)
	}
	return ch
}

// Declare makes an empty, durable queue of the type Classic or Quorum, instead of one with the same name.
func (s *Server) Declare(name, queueType string) {
	s.tb.Helper()
	s.declare(name, amqp.Table{amqp.QueueTypeArg: queueType})
}

// DeclareOrdered is like Declare for a queue that is read in order: one of the type Quorum has a single active consumer.
func (s *Server) DeclareOrdered(name, queueType string) {
	s.tb.Helper()
	arguments := amqp.Table{amqp.QueueTypeArg: queueType}
	if queueType == Quorum {
		arguments[amqp.SingleActiveConsumerArg] = true
	}
	s.declare(name, arguments)
}

func (s *Server) declare(name string, arguments amqp.Table) {
	s.tb.Helper()
	ch := s.Channel()
	_, err := ch.QueueDelete(name, false, false, false)
	if err == nil {
		_, err = ch.QueueDeclare(name, true, false, false, false, arguments)
	}
	if err != nil {
		s.tb.Fatalf("rabbittest: declare %s: %v", name, err)
	}
}

// Publish writes persistent messages to a queue, in their order, and waits until they are kept.
func (s *Server) Publish(queue string, messages ...amqp.Publishing) {
	s.tb.Helper()
	ch := s.Channel()
	var waiting []*amqp.DeferredConfirmation
	for _, m := range messages {
		m.DeliveryMode = amqp.Persistent
		confirmation, err := ch.PublishWithDeferredConfirm("", queue, true, false, m)
		if err != nil {
			s.tb.Fatalf("rabbittest: publish to %s: %v", queue, err)
		}
		waiting = append(waiting, confirmation)
	}
	for _, confirmation := range waiting {
		if !confirmation.Wait() {
			s.tb.Fatalf("rabbittest: %s refuses a message", queue)
		}
	}
}

// Ready returns how many messages of a queue are not delivered.
func (s *Server) Ready(queue string) int {
	s.tb.Helper()
	return s.inspect(queue).Messages
}

// Consumers returns how many consumers a queue has.
func (s *Server) Consumers(queue string) int {
	s.tb.Helper()
	return s.inspect(queue).Consumers
}

func (s *Server) inspect(queue string) amqp.Queue {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channel == nil || s.channel.IsClosed() {
		s.channel = s.Channel()
	}
	q, err := s.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		s.tb.Fatalf("rabbittest: inspect %s: %v", queue, err)
	}
	return q
}
