// Package rabbitmq relays the messages of a RabbitMQ queue.
//
// Order by key needs one reader. The relay that holds a lock reads, and the others stand by; the lock is an exclusive
// queue, which ends with the connection of its relay. An exclusive consumer alone would not do, since quorum queues
// admit several; on a classic queue it keeps other programs away.
//
// A quorum queue must be declared with x-single-active-consumer, and a classic queue must not, since that excludes
// exclusive consumers. For up to a second after a broker has started, or while it is slow, a quorum queue shows no
// consumer although the lost one's messages are not back yet. Another consumer would get later messages first; a
// single active one gets none before they are back.
//
// The user needs the permissions read for the queue, write for amq.default, and configure for the lock, which is named
// "spendhook-relay." and the name of the queue. A quorum queue must have no delivery limit, which RabbitMQ 4 has by
// default: the queue drops messages that were returned more often, by relays that stopped, or by the broker itself
// when a message is not acknowledged within its consumer_timeout. So only faults of the connection end a session, and
// a queue with a DeliveryLimit is not read any more when a message has come back half as often.
package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/internal/secret"
)

const (
	lockPrefix = "spendhook-relay."
	// longestName is how many bytes RabbitMQ allows for the name of a queue.
	longestName = 255
	// maxHeld is how many bytes of messages without an outcome are kept in memory before reading stops.
	maxHeld = 64 << 20
	// maxReturned is how many dead letters are written at a time: as many as the outcomes of one request.
	maxReturned = 1000
)

// Options say what to relay. Only TLS is optional.
type Options struct {
	URL   secret.Text // amqp:// or amqps://
	TLS   *tls.Config // of amqps://; nil: the parameters of the URL, or else the system's CAs
	Queue string
	// DeadLetterQueue gets the messages that can never be events. The operator declares it, durable and without limits.
	DeadLetterQueue string
	// DeliveryLimit is how often a message may come back to a quorum queue before the queue drops it, at least 4; 0: it never
	// does.
	DeliveryLimit int
	Log           *slog.Logger
}

// Source is a queue. It implements relay.Source. Run must not be called again before it returns; the other methods are
// safe for concurrent use.
type Source struct {
	opts      Options
	prefetch  int          // see the constant, which is smaller in tests
	maxHeld   int64        // likewise
	unsettled atomic.Int64 // delivered messages without an outcome
	stopped   bool         // Run reads no more

	again, tooOldPause time.Duration // see the constants, which are smaller in tests
	mostReturns        int64         // after a fault the queue is not read if a message came back so often; 0: it is
}

// New returns a source without connecting to the broker.
func New(o Options) (*Source, error) {
	if _, err := amqp.ParseURI(o.URL.Reveal()); err != nil {
		// err may contain the password.
		return nil, errors.New("the URL must be like amqps://user:password@host:port/vhost, with special characters percent-encoded")
	}
	switch {
	case o.Queue == "":
		return nil, errors.New("a queue is required")
	case o.DeadLetterQueue == "":
		return nil, errors.New("a dead-letter queue is required")
	case o.DeadLetterQueue == o.Queue:
		return nil, errors.New("the dead-letter queue must be another queue")
	case len(lockPrefix+o.Queue) > longestName:
		return nil, fmt.Errorf("the name of the queue must have at most %d bytes", longestName-len(lockPrefix))
	}
	return &Source{
		opts: o, prefetch: prefetch, maxHeld: maxHeld, again: again, tooOldPause: tooOldPause, mostReturns: int64(o.DeliveryLimit / 2),
	}, nil
}

// Behind returns how many messages the queue has, with those that this source was delivered and that have no outcome
// yet.
func (s *Source) Behind(ctx context.Context) (map[string]int64, error) {
	var queue amqp.Queue
	err := s.ask(ctx, func(c *connection) (err error) {
		queue, err = c.inspect(s.opts.Queue)
		return err
	})
	if err != nil {
		return nil, err
	}
	return map[string]int64{"": int64(queue.Messages) + s.unsettled.Load()}, nil
}

// Check reports whether Run would find its queues and may lock the queue. It reads no message.
func (s *Source) Check(ctx context.Context) error {
	return s.ask(ctx, func(c *connection) error {
		if err := s.checkQueues(c); err != nil {
			return err
		}
		ch, err := c.Channel()
		if err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		if err := s.lock(ch); !errors.Is(err, errTaken) {
			return err
		}
		return nil
	})
}

// ask calls a function with a connection, which is closed when ctx ends.
func (s *Source) ask(ctx context.Context, question func(*connection) error) error {
	c, err := s.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.close()
	defer c.cutWhenDone(ctx)()
	if err := question(c); err != nil {
		return causeOf(ctx, err)
	}
	return nil
}

// causeOf returns the error of ctx if it has ended, since that cuts the connection.
func causeOf(ctx context.Context, err error) error {
	return cmp.Or(ctx.Err(), err)
}

func (s *Source) checkQueues(c *connection) error {
	for _, name := range []string{s.opts.Queue, s.opts.DeadLetterQueue} {
		if _, err := c.inspect(name); err != nil {
			return err
		}
	}
	return nil
}

// errTaken means that another relay, or another program, reads the queue.
var errTaken = errors.New("the queue has another reader")

// lock makes the connection of a channel the only one that may read the queue, until it ends. errTaken: another one is.
func (s *Source) lock(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(lockPrefix+s.opts.Queue, false, false, true, false, nil)
	if hasCode(err, amqp.ResourceLocked) {
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("lock the queue with an exclusive queue %s: %w", lockPrefix+s.opts.Queue, err)
	}
	return nil
}

func hasCode(err error, code int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == code
}
