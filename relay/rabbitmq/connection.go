package rabbitmq

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// heartbeat is how often each side shows that it lives. A connection is lost after silence: three are missing.
	heartbeat = 10 * time.Second
	silence   = 3 * heartbeat
	// dialTime bounds connecting, and closeTime closing.
	dialTime  = 30 * time.Second
	closeTime = 5 * time.Second
)

// connection is one with the broker. Its methods are safe for concurrent use.
type connection struct {
	*amqp.Connection
	raw net.Conn
}

// dial connects to the broker. limit, if there is one, bounds what is read.
func (s *Source) dial(ctx context.Context, limit *budget) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c := &connection{}
	ready := func() bool { return true }
	config := amqp.Config{
		Heartbeat:  heartbeat,
		Properties: amqp.NewConnectionProperties(),
		Dial: func(network, address string) (net.Conn, error) {
			var err error
			if c.raw, err = new(net.Dialer).DialContext(ctx, network, address); err != nil {
				return nil, err
			}
			ready = c.cutWhenDone(ctx)
			if limit == nil {
				return c.raw, nil
			}
			return &limitedConn{Conn: c.raw, budget: limit}, nil
		},
	}
	config.Properties.SetClientConnectionName("spendhook relay of " + s.opts.Queue)
	if s.opts.TLS != nil {
		config.TLSClientConfig = s.opts.TLS.Clone() // the library changes it
	}
	var err error
	c.Connection, err = amqp.DialConfig(s.opts.URL.Reveal(), config)
	if !ready() {
		err = ctx.Err()
	}
	if err != nil {
		if c.raw != nil {
			_ = c.raw.Close()
		}
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	return c, nil
}

// cutWhenDone cuts the connection when ctx ends, since the calls of the library have no context. It does so until the
// returned function is called, which returns false when ctx ended before.
func (c *connection) cutWhenDone(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.raw.Close() })
}

// close waits until the broker has read all that was sent, at most closeTime.
func (c *connection) close() {
	timer := time.AfterFunc(closeTime, func() { _ = c.raw.Close() })
	defer timer.Stop()
	_ = c.Close() // the broker sees the end in any case
}

// inspect returns the numbers of a queue.
func (c *connection) inspect(queue string) (amqp.Queue, error) {
	ch, err := c.Channel()
	if err != nil {
		return amqp.Queue{}, fmt.Errorf("open a channel: %w", err)
	}
	defer func() { _ = ch.Close() }() // the answer is there
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if hasCode(err, amqp.NotFound) {
		return q, fmt.Errorf("there is no queue %s: declare it", queue)
	}
	if err != nil {
		return q, fmt.Errorf("inspect the queue %s: %w", queue, err)
	}
	return q, nil
}

// budget is the bytes of messages that are in memory.
type budget struct {
	most int64

	mu    sync.Mutex // guards all below
	freed *sync.Cond
	held  int64
	ended bool
}

func newBudget(most int64) *budget {
	b := &budget{most: most}
	b.freed = sync.NewCond(&b.mu)
	return b
}

// add adds bytes, or removes them when they are negative.
func (b *budget) add(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held += bytes
	b.freed.Broadcast()
}

// end removes the limit.
func (b *budget) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.freed.Broadcast()
}

// wait returns when there is budget; waited is whether there was none before.
func (b *budget) wait() (waited bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.held >= b.most && !b.ended {
		waited = true
		b.freed.Wait()
	}
	return waited
}

// limitedConn reads nothing while its budget is used up, so that TCP stops the broker. The library itself keeps in
// memory whatever arrives, and RabbitMQ bounds only the number of messages in advance, not their bytes.
type limitedConn struct {
	net.Conn
	budget *budget
}

// Read waits for budget, and then reads.
func (c *limitedConn) Read(p []byte) (int, error) {
	if c.budget.wait() {
		// The deadline, until which a heartbeat had to come, may have passed during the wait. Setting it fails only when
		// the connection is closed.
		_ = c.SetReadDeadline(time.Now().Add(silence)) //nolint:forbidigo // the network's clock
	}
	return c.Conn.Read(p)
}
