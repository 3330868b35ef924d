package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"spendhook/internal/pause"
	"spendhook/relay"
)

const (
	// prefetch is how many messages the broker delivers before the first is acknowledged: as many as a stream has
	// without being full. It must never become smaller. A quorum queue appends returned messages to those that were
	// returned before, so a reader must take all of them at once for their order to last.
	prefetch = 4000
	// standby is how often a relay looks whether it may read.
	standby = time.Second
	// again is the pause before dead letters are written again after a fault, and tooOldPause that before a message that
	// was too old is sent again.
	again       = 5 * time.Second
	tooOldPause = time.Minute
	// returnedOften is how many returns of a message are logged.
	returnedOften = 5
)

// errDead means that the broker did not take dead letters.
var errDead = errors.New("write to the dead-letter queue")

// session is one connection that reads the queue.
type session struct {
	source  *Source
	conn    *connection
	channel *amqp.Channel
	budget  *budget
	dead    deadLetters

	cancelled chan string
	closed    chan *amqp.Error
	warned    bool   // of messages that were returned often
	given     uint64 // the highest tag of those that a stream got; of the goroutine that feeds it

	mu        sync.Mutex // guards unsettled
	unsettled map[uint64]amqp.Delivery
}

// Run implements relay.Source.
func (s *Source) Run(ctx context.Context, to *relay.Sender) error {
	if s.stopped { // it was logged
		<-ctx.Done()
		return nil
	}
	limit := newBudget(s.maxHeld)
	conn, err := s.dial(ctx, limit)
	if err != nil {
		return endedBy(ctx, err)
	}
	defer conn.close()
	defer limit.end() // to read the answer to close
	ss := &session{
		source: s, conn: conn, budget: limit, dead: deadLetters{source: s}, unsettled: make(map[uint64]amqp.Delivery),
	}
	deliveries, err := ss.open(ctx, to)
	if err != nil || deliveries == nil {
		return endedBy(ctx, err)
	}
	defer ss.close(deliveries)
	err = endedBy(ctx, ss.relay(ctx, to, deliveries))
	if n := ss.returnedMost(); err != nil && s.mostReturns > 0 && n >= s.mostReturns {
		s.stopped = true
		return fmt.Errorf("the queue %s is not read any more: a message came back to it %d times, and the delivery limit "+
			"would drop it soon: restart this relay when the cause is mended: %w", s.opts.Queue, n, err)
	}
	return err
}

// endedBy returns no error after the end of ctx, which may be the cause of any.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// open waits until this relay is the only reader, and begins to read. It returns nil when ctx ended before.
func (ss *session) open(ctx context.Context, to *relay.Sender) (<-chan amqp.Delivery, error) {
	defer ss.conn.cutWhenDone(ctx)()
	if err := ss.source.checkQueues(ss.conn); err != nil {
		return nil, err
	}
	for {
		deliveries, err := ss.tryOpen()
		if !errors.Is(err, errTaken) {
			return deliveries, err
		}
		to.Active(false)
		if !pause.For(ctx, standby) {
			return nil, nil
		}
	}
}

// tryOpen begins to read, or returns errTaken. The lock of another relay may end shortly before the broker has taken
// back its messages, which are earlier ones. They are back when the queue has no consumer any more.
func (ss *session) tryOpen() (<-chan amqp.Delivery, error) {
	ch, err := ss.conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	deliveries, err := ss.consume(ch)
	if err != nil {
		_ = ch.Close() // it may be closed already
	}
	return deliveries, err
}

func (ss *session) consume(ch *amqp.Channel) (<-chan amqp.Delivery, error) {
	if err := ss.source.lock(ch); err != nil {
		return nil, err
	}
	queue := ss.source.opts.Queue
	q, err := ss.conn.inspect(queue)
	if err != nil {
		return nil, err
	}
	if q.Consumers > 0 {
		return nil, errTaken
	}
	if err := ch.Qos(ss.source.prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("bound the messages in advance: %w", err)
	}
	ss.channel = ch
	ss.cancelled, ss.closed = ch.NotifyCancel(make(chan string, 1)), ch.NotifyClose(make(chan *amqp.Error, 1))
	deliveries, err := ch.Consume(queue, "", false, true, false, false, nil)
	if err != nil {
		return nil, fmt.Errorf("read the queue %s exclusively: %w", queue, err)
	}
	return deliveries, nil
}

// relay reads until ctx ends or until a fault that ends the session.
func (ss *session) relay(ctx context.Context, to *relay.Sender, deliveries <-chan amqp.Delivery) error {
	group, ctx := errgroup.WithContext(ctx)
	records := make(chan *relay.Record, ss.source.prefetch)
	group.Go(func() error { return ss.read(ctx, deliveries, records) })
	group.Go(func() error { return ss.send(ctx, to, records) })
	return group.Wait()
}

// send sends records until ctx ends or until a fault of the session. After any other fault the messages stay in the
// session and are sent again: the end of it would return them, and a queue with a delivery limit drops those that were
// returned more often.
func (ss *session) send(ctx context.Context, to *relay.Sender, records <-chan *relay.Record) error {
	for {
		to.Active(true)
		err := ss.stream(ctx, to, records)
		wait := ss.source.again
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, relay.ErrTooOld):
			wait = ss.source.tooOldPause
		case !errors.Is(err, errDead):
			return err
		}
		to.Down(ctx, err)
		if !pause.For(ctx, wait) {
			return nil
		}
	}
}

// stream sends records by a stream until ctx ends or until a fault.
func (ss *session) stream(ctx context.Context, to *relay.Sender, records <-chan *relay.Record) error {
	stream := to.Stream(ss.settle)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return stream.Run(ctx) })
	group.Go(func() error {
		ss.feed(ctx, stream, records)
		return nil
	})
	return group.Wait()
}

// read accounts for deliveries as soon as they arrive. It never waits for the stream, so that no more than the budget
// is in the memory of the library.
func (ss *session) read(ctx context.Context, deliveries <-chan amqp.Delivery, records chan<- *relay.Record) error {
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return ss.lost()
			}
			ss.add(ctx, &d)
			select {
			case records <- record(ss.source.opts.Queue, &d): // it has the capacity of the broker's bound
			case <-ctx.Done():
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// feed gives records to the stream while it is not full: first those that an earlier stream had.
func (ss *session) feed(ctx context.Context, stream *relay.Stream, records <-chan *relay.Record) {
	stream.Add(ctx, ss.left()...) // at once, so that most go on with a request of which one cannot
	for stream.WaitWhileFull(ctx) {
		select {
		case r := <-records:
			ss.given = uint64(r.Position) //nolint:gosec // it was a tag
			stream.Add(ctx, r)
		case <-ctx.Done():
			return
		}
	}
}

// left returns what a stream got that has no outcome, in order.
func (ss *session) left() (records []*relay.Record) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, tag := range slices.Sorted(maps.Keys(ss.unsettled)) {
		if tag <= ss.given {
			d := ss.unsettled[tag]
			records = append(records, record(ss.source.opts.Queue, &d))
		}
	}
	return records
}

func (ss *session) add(ctx context.Context, d *amqp.Delivery) {
	ss.budget.add(size(d))
	ss.source.unsettled.Add(1)
	ss.mu.Lock()
	ss.unsettled[d.DeliveryTag] = *d
	ss.mu.Unlock()
	if n := returns(d); n >= returnedOften && !ss.warned {
		ss.warned = true
		ss.source.opts.Log.LogAttrs(ctx, slog.LevelWarn,
			"a message was returned to its queue often: a queue with a delivery limit would drop it",
			slog.String("queue", ss.source.opts.Queue), slog.Int64("returns", n))
	}
}

// returns is how often a message came back to a quorum queue. A message that comes for the first time may have the
// header from elsewhere.
func returns(d *amqp.Delivery) int64 {
	n, _ := d.Headers[deliveryCount].(int64)
	if !d.Redelivered {
		return 0
	}
	return n
}

// returnedMost is the highest count of the messages without an outcome.
func (ss *session) returnedMost() (most int64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, d := range ss.unsettled {
		most = max(most, returns(&d))
	}
	return most
}

// lost says why deliveries ended.
func (ss *session) lost() error {
	queue := ss.source.opts.Queue
	if _, ok := <-ss.cancelled; ok {
		return fmt.Errorf("the broker stopped the delivery: the queue %s was deleted, or moved to another node", queue)
	}
	if err := <-ss.closed; err != nil {
		return fmt.Errorf("read the queue %s: %w", queue, err)
	}
	return fmt.Errorf("read the queue %s: %w", queue, amqp.ErrClosed)
}

// settle writes the dead letters, and then acknowledges. Messages whose acknowledgement is lost are delivered again.
func (ss *session) settle(ctx context.Context, outcomes []relay.Outcome) error {
	if err := ss.dead.write(ctx, ss.deadOf(outcomes)); err != nil {
		ss.dead.close()
		return fmt.Errorf("%w %s: %w", errDead, ss.source.opts.DeadLetterQueue, err)
	}
	upTo, single := ss.remove(outcomes)
	if upTo > 0 {
		if err := ss.channel.Ack(upTo, true); err != nil {
			return fmt.Errorf("acknowledge messages: %w", err)
		}
	}
	for _, tag := range single {
		if err := ss.channel.Ack(tag, false); err != nil {
			return fmt.Errorf("acknowledge a message: %w", err)
		}
	}
	return nil
}

// remove removes settled messages. It returns what to acknowledge: all messages up to a tag (0: none), and others.
func (ss *session) remove(outcomes []relay.Outcome) (upTo uint64, single []uint64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, o := range outcomes {
		tag := uint64(o.Position) //nolint:gosec // it was one
		d := ss.unsettled[tag]
		ss.budget.add(-size(&d))
		delete(ss.unsettled, tag)
		single = append(single, tag)
	}
	ss.source.unsettled.Add(-int64(len(outcomes)))
	slices.Sort(single)
	n := len(single)
	if len(ss.unsettled) > 0 { // tags that are not delivered yet are higher
		n, _ = slices.BinarySearch(single, slices.Min(slices.Collect(maps.Keys(ss.unsettled))))
	}
	if n > 0 {
		upTo = single[n-1]
	}
	return upTo, single[n:]
}

// close lets the broker return what has no outcome. It reads and drops what was under way to here.
func (ss *session) close(deliveries <-chan amqp.Delivery) {
	ss.source.unsettled.Store(0)
	ss.dead.close()
	go func() {
		for range deliveries { // ends with the connection
		}
	}()
}
