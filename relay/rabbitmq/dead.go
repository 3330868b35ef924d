package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/relay"
)

const (
	headerPrefix = "spendhook-"
	// maxReason is how many bytes of a reason are kept: the headers of a message have to fit in one frame.
	maxReason = 1000
	// maxHeaders is how many bytes of headers, by their size in memory, are kept beside it. A frame has 128 KiB.
	maxHeaders = 120 << 10
)

// letter is a message that can never be an event.
type letter struct {
	message amqp.Delivery
	reason  string
}

// deadOf returns the dead messages among outcomes.
func (ss *session) deadOf(outcomes []relay.Outcome) (letters []letter) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, o := range outcomes {
		if o.Dead != "" {
			letters = append(letters, letter{ss.unsettled[uint64(o.Position)], o.Dead}) //nolint:gosec // it was a tag
		}
	}
	return letters
}

// deadLetters writes to the dead-letter queue. It has a connection of its own, since a broker that is short of memory
// or disk reads nothing from connections that publish, not even acknowledgements. After an error it must be closed,
// and may then write again.
type deadLetters struct {
	source   *Source
	conn     *connection // nil before the first letter
	channel  *amqp.Channel
	returned chan amqp.Return
	closed   chan *amqp.Error
}

// write returns when the broker has confirmed all letters.
func (w *deadLetters) write(ctx context.Context, letters []letter) error {
	if len(letters) == 0 {
		return nil
	}
	if w.conn == nil {
		conn, err := w.source.dial(ctx, nil)
		if err != nil {
			return err
		}
		w.conn = conn
		go w.source.logBlocked(context.WithoutCancel(ctx), conn.NotifyBlocked(make(chan amqp.Blocking, 1)))
	}
	defer w.conn.cutWhenDone(ctx)()
	if err := w.open(); err != nil {
		return causeOf(ctx, err)
	}
	return causeOf(ctx, w.publish(ctx, letters))
}

func (w *deadLetters) open() error {
	if w.channel != nil {
		return nil
	}
	ch, err := w.conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	w.channel = ch
	w.returned, w.closed = ch.NotifyReturn(make(chan amqp.Return, maxReturned)), ch.NotifyClose(make(chan *amqp.Error, 1))
	return ch.Confirm(false)
}

func (w *deadLetters) publish(ctx context.Context, letters []letter) error {
	waiting := make([]*amqp.DeferredConfirmation, len(letters))
	for i, l := range letters {
		var err error
		waiting[i], err = w.channel.PublishWithDeferredConfirm("", w.source.opts.DeadLetterQueue, true, false, l.publishing(w.source.opts.Queue))
		if err != nil {
			return err
		}
	}
	for _, confirmation := range waiting {
		if err := w.wait(ctx, confirmation); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for one confirmation. A message that has no queue is returned first, and then confirmed.
func (w *deadLetters) wait(ctx context.Context, confirmation *amqp.DeferredConfirmation) error {
	select {
	case r := <-w.returned:
		return returnedError(r)
	case <-confirmation.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case r := <-w.returned:
		return returnedError(r)
	default:
	}
	if !confirmation.Acked() {
		return refusal(w.closed)
	}
	return nil
}

func returnedError(r amqp.Return) error {
	return fmt.Errorf("the broker returned a message: %s", cmp.Or(r.ReplyText, "the connection was closed"))
}

// refusal returns the error with which a channel was closed, or else that a message was refused.
func refusal(closed <-chan *amqp.Error) error {
	select {
	case err := <-closed:
		if err != nil {
			return err
		}
	default:
	}
	return errors.New("the broker refused a message")
}

// logBlocked logs when the broker stops to read from the connection, until it is closed.
func (s *Source) logBlocked(ctx context.Context, blockings <-chan amqp.Blocking) {
	for b := range blockings {
		if b.Active {
			s.opts.Log.LogAttrs(ctx, slog.LevelWarn, "the broker accepts no dead letters for the time being",
				slog.String("queue", s.opts.DeadLetterQueue), slog.String("reason", b.Reason))
		}
	}
}

func (w *deadLetters) close() {
	if w.conn != nil {
		w.conn.close()
	}
	*w = deadLetters{source: w.source}
}

// publishing is the letter as a message. What would delete it, route it to further queues or be refused from another
// user becomes a header: its expiration, the CC header and its user. Headers beyond maxHeaders are left out, and so are
// the counters of the queue, since the letter may be written to it again.
func (l *letter) publishing(queue string) amqp.Publishing {
	d := &l.message
	table := amqp.Table{}
	if n := tableSize(d.Headers); n <= maxHeaders {
		maps.Copy(table, d.Headers)
	} else {
		table[headerPrefix+"left-out"] = fmt.Sprintf("headers of about %d bytes", n)
	}
	for _, name := range counters {
		delete(table, name)
	}
	for _, name := range []string{"CC", "BCC"} {
		if value, ok := table[name]; ok {
			table[headerPrefix+strings.ToLower(name)] = value
			delete(table, name)
		}
	}
	for name, value := range map[string]string{"expiration": d.Expiration, "user-id": d.UserId} {
		if value != "" {
			table[headerPrefix+name] = value
		}
	}
	table[headerPrefix+"dead-reason"] = strings.ToValidUTF8(l.reason[:min(len(l.reason), maxReason)], "")
	table[headerPrefix+"source-queue"] = queue
	return amqp.Publishing{
		Headers:         table,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}
