package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/subscribers"
)

// notifierQueue bounds the operational events that wait to be published, and
// notifierBatch how many are published at once.
const (
	notifierQueue = 1 << 14
	notifierBatch = 500
)

// publishTimeout bounds one publishing of operational events.
const publishTimeout = 5 * time.Second

// notifier publishes the operational events: what happened to a company's
// subscribers, sent to its other subscribers. It works on its own, so that it
// never delays a delivery.
type notifier struct {
	in     chan events.Event
	now    func() time.Time
	logger *slog.Logger
}

func newNotifier(now func() time.Time, logger *slog.Logger) *notifier {
	return &notifier{in: make(chan events.Event, notifierQueue), now: now, logger: logger}
}

// run publishes until ctx ends, and then what is left.
func (n *notifier) run(ctx context.Context, publish Publish) {
	for {
		select {
		case e := <-n.in:
			n.publish(ctx, publish, n.gather(e))
		case <-ctx.Done():
			for len(n.in) > 0 {
				if !n.publish(ctx, publish, n.gather(<-n.in)) {
					return // nor would the others be taken
				}
			}
			return
		}
	}
}

// gather takes what has queued, waiting for nothing.
func (n *notifier) gather(first events.Event) []events.Event {
	batch := []events.Event{first}
	for len(batch) < notifierBatch && len(n.in) > 0 {
		batch = append(batch, <-n.in)
	}
	return batch
}

// publish reports whether the events were taken.
func (n *notifier) publish(ctx context.Context, publish Publish, batch []events.Event) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	results, err := publish(ctx, batch)
	if err != nil {
		n.logger.Error("operational events not published", "events", len(batch), "error", err)
		return false
	}
	for i, r := range results {
		if r.Err != nil {
			n.logger.Error("operational event not published", "event", batch[i].Type, "event_id", r.ID, "error", r.Err)
		}
	}
	return true
}

func (n *notifier) failing(t subscribers.Transition) {
	n.notify(events.SubscriberFailing, t.Company, failingID(t), map[string]any{
		"subscriberUuid": t.Subscriber, "consecutiveFailures": t.Health.ConsecutiveFailures,
		"failingSince": t.Health.FailingSince,
	})
}

func (n *notifier) recovered(t subscribers.Transition) {
	n.notify(events.SubscriberRecovered, t.Company, "subscriber-recovered-"+t.Subscriber.String()+"-"+n.stamp(), map[string]any{"subscriberUuid": t.Subscriber})
}

func (n *notifier) disabled(company, subscriber uuid.UUID, reason string) {
	n.notify(events.SubscriberDisabled, company, "subscriber-disabled-"+subscriber.String()+"-"+n.stamp(), map[string]any{
		"subscriberUuid": subscriber, "reason": reason,
	})
}

// dead notifies of a dead letter, but not of one that was itself a notice: that
// could go on for ever.
func (n *notifier) dead(o *outcome) {
	if events.IsOperational(o.next.EventType) {
		return
	}
	sum := sha256.Sum256([]byte(o.ref.String() + "#" + strconv.Itoa(o.next.Count)))
	n.notify(events.DeliveryDead, o.ref.Company, "delivery-dead-"+hex.EncodeToString(sum[:16]), map[string]any{
		"subscriberUuid": o.ref.Subscriber, "eventId": o.ref.ID, "event": o.next.EventType,
		"attempts": o.next.Count, "reason": o.next.Reason,
	})
}

// failingID names one run of failures.
func failingID(t subscribers.Transition) string {
	id := "subscriber-failing-" + t.Subscriber.String()
	if t.Health.FailingSince != nil {
		id += "-" + strconv.FormatInt(t.Health.FailingSince.UnixMilli(), 10)
	}
	return id
}

func (n *notifier) stamp() string { return strconv.FormatInt(n.now().UnixMilli(), 10) }

func (n *notifier) notify(kind string, company uuid.UUID, id string, about map[string]any) {
	metadata, err := json.Marshal(about, json.Deterministic(true))
	if err != nil {
		n.logger.Error("operational event not made", "event", kind, "error", err)
		return
	}
	e := events.Event{ID: id, CompanyUUID: company, Type: kind, Timestamp: n.now(), Metadata: metadata}
	select {
	case n.in <- e:
	default:
		n.logger.Error("operational event dropped: too many wait", "event", kind, "event_id", id)
	}
}
