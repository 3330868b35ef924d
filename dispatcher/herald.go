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

// heraldQueue bounds the operational events that wait to be published, and
// heraldBatch how many are published at once.
const (
	heraldQueue = 1 << 14
	heraldBatch = 500
)

// publishTimeout bounds one publishing of operational events.
const publishTimeout = 5 * time.Second

// herald publishes the operational events: what happened to a company's
// subscribers, told to its other subscribers. It works on the side, so that
// telling never delays delivering; what it tells is also in the log, in metrics
// and in the lists.
type herald struct {
	in     chan events.Event
	now    func() time.Time
	logger *slog.Logger
}

func newHerald(now func() time.Time, logger *slog.Logger) *herald {
	return &herald{in: make(chan events.Event, heraldQueue), now: now, logger: logger}
}

// run publishes until ctx ends, and then what is left.
func (h *herald) run(ctx context.Context, publish Publish) {
	for {
		select {
		case e := <-h.in:
			h.publish(ctx, publish, h.gather(e))
		case <-ctx.Done():
			for len(h.in) > 0 {
				h.publish(ctx, publish, h.gather(<-h.in))
			}
			return
		}
	}
}

// gather takes what has queued, waiting for nothing.
func (h *herald) gather(first events.Event) []events.Event {
	batch := []events.Event{first}
	for len(batch) < heraldBatch && len(h.in) > 0 {
		batch = append(batch, <-h.in)
	}
	return batch
}

func (h *herald) publish(ctx context.Context, publish Publish, batch []events.Event) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	results, err := publish(ctx, batch)
	if err != nil {
		h.logger.Error("operational events not published", "events", len(batch), "error", err)
		return
	}
	for i, r := range results {
		if r.Err != nil {
			h.logger.Error("operational event not published", "event", batch[i].Type, "event_id", r.ID, "error", r.Err)
		}
	}
}

func (h *herald) failing(t subscribers.Transition) {
	h.tell(events.SubscriberFailing, t.Company, failingID(t), map[string]any{
		"subscriberUuid": t.Subscriber, "consecutiveFailures": t.Health.ConsecutiveFailures,
		"failingSince": t.Health.FailingSince,
	})
}

func (h *herald) recovered(t subscribers.Transition) {
	h.tell(events.SubscriberRecovered, t.Company, "subscriber-recovered-"+t.Subscriber.String()+"-"+h.stamp(), map[string]any{"subscriberUuid": t.Subscriber})
}

func (h *herald) disabled(company, subscriber uuid.UUID, reason string) {
	h.tell(events.SubscriberDisabled, company, "subscriber-disabled-"+subscriber.String()+"-"+h.stamp(), map[string]any{
		"subscriberUuid": subscriber, "reason": reason,
	})
}

// dead tells of a dead letter, but not of one that was itself such news: that
// could go on for ever.
func (h *herald) dead(o *outcome) {
	if events.IsOperational(o.next.EventType) {
		return
	}
	sum := sha256.Sum256([]byte(o.ref.String() + "#" + strconv.Itoa(o.next.Count)))
	h.tell(events.DeliveryDead, o.ref.Company, "delivery-dead-"+hex.EncodeToString(sum[:16]), map[string]any{
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

func (h *herald) stamp() string { return strconv.FormatInt(h.now().UnixMilli(), 10) }

func (h *herald) tell(kind string, company uuid.UUID, id string, about map[string]any) {
	metadata, err := json.Marshal(about, json.Deterministic(true))
	if err != nil {
		h.logger.Error("operational event not made", "event", kind, "error", err)
		return
	}
	e := events.Event{ID: id, CompanyUUID: company, Type: kind, Timestamp: h.now(), Metadata: metadata}
	select {
	case h.in <- e:
	default:
		h.logger.Error("operational event dropped: too many wait", "event", kind, "event_id", id)
	}
}
