package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/subscribers"
)

// casTries is how often a change is tried anew when the delivery changes meanwhile.
const casTries = 5

// errContended says that a delivery kept changing under our hands.
var errContended = errors.New("the delivery keeps changing")

// Retry attempts a delivery again at once, with a fresh schedule, whatever its
// status. ErrNotFound, ErrInFlight while an attempt is under way,
// ErrSubscriberGone or ErrSubscriberDisabled.
func (d *Dispatcher) Retry(ctx context.Context, company uuid.UUID, id string) (Delivery, error) {
	r, err := parseDeliveryID(company, id)
	if err != nil {
		return Delivery{}, err
	}
	rec, err := d.record(ctx, r)
	if err != nil {
		return Delivery{}, err
	}
	if err := d.reachable(ctx, r.Company, r.Subscriber); err != nil {
		return Delivery{}, err
	}
	return d.restart(ctx, r, rec, ReasonReplay)
}

func (d *Dispatcher) reachable(ctx context.Context, company, subscriber uuid.UUID) error {
	sub, err := d.subscriber(ctx, company, subscriber)
	if err != nil {
		return err
	}
	if !sub.Enabled {
		return ErrSubscriberDisabled
	}
	return nil
}

// Replay sends an event again to every enabled subscriber that wants it now, or
// only to those named, each with a fresh schedule; the webhook-id stays the
// event's. Deliveries with an attempt under way are left as they are.
// events.ErrNotFound when there is no such event.
func (d *Dispatcher) Replay(ctx context.Context, r events.Ref, only []uuid.UUID) ([]Delivery, error) {
	stored, err := d.Events.Get(ctx, r)
	if err != nil {
		return nil, err
	}
	subs, err := d.current(ctx, r.Company)
	if err != nil {
		return nil, err
	}
	var out []Delivery
	for _, sub := range subs {
		if !sub.Enabled || !sub.Wants(stored.Type) || len(only) > 0 && !slices.Contains(only, sub.UUID) {
			continue
		}
		del, err := d.replayTo(ctx, ref{Ref: r, Subscriber: sub.UUID}, stored)
		if err != nil {
			return nil, err
		}
		out = append(out, del)
	}
	return out, nil
}

func (d *Dispatcher) replayTo(ctx context.Context, r ref, stored events.Stored) (Delivery, error) {
	recs, err := d.Store.get(ctx, []ref{r})
	if err != nil {
		return Delivery{}, err
	}
	rec := recs[0]
	if rec == nil {
		rec = newRecord(stored)
	}
	del, err := d.restart(ctx, r, rec, ReasonReplay)
	if errors.Is(err, ErrInFlight) {
		return rec.delivery(r), nil
	}
	return del, err
}

func newRecord(e events.Stored) *record {
	return &record{Status: StatusPending, EventType: e.Type, Created: e.AcceptedAt.UnixMilli()}
}

// restart makes a delivery due at once with a fresh schedule.
func (d *Dispatcher) restart(ctx context.Context, r ref, rec *record, reason string) (Delivery, error) {
	for range casTries {
		if rec.Status == StatusDelivering {
			return Delivery{}, ErrInFlight
		}
		now := d.Now()
		next := restart(*rec, reason, now)
		found, err := d.Store.record(ctx, now, []write{{event: r.Ref, changes: []change{{ref: r, base: rec, next: &next}}}}, d.Replica, nil)
		if err != nil {
			return Delivery{}, err
		}
		if found[0][0] == nil {
			d.wake()
			return next.delivery(r), nil
		}
		rec = found[0][0]
		if rec.Version == 0 {
			return Delivery{}, ErrNotFound
		}
	}
	return Delivery{}, errContended
}

// TestEvent is the type of the event that Test sends.
const TestEvent = "SUBSCRIBER_TEST"

// TestResult is what came of a test delivery.
type TestResult struct {
	EventID   string
	Delivered bool
	Attempt   Attempt
}

// Test sends one signed test event to a subscriber, enabled or not, waits for
// the answer, at most the attempt's time-out, and keeps nothing of it. It asks
// neither the endpoint's cap nor its breaker, being how to find out whether a
// failing endpoint is mended. ErrSubscriberGone when there is no such
// subscriber; ErrTesting while this replica runs another test of it.
func (d *Dispatcher) Test(ctx context.Context, company, subscriber uuid.UUID) (TestResult, error) {
	sub, err := d.subscriber(ctx, company, subscriber)
	if err != nil {
		return TestResult{}, err
	}
	to, err := d.target(ctx, sub)
	if err != nil {
		return TestResult{}, err
	}
	body, id, err := d.testBody(sub)
	if err != nil {
		return TestResult{}, err
	}
	if _, busy := d.testing.LoadOrStore(sub.UUID, struct{}{}); busy {
		return TestResult{}, ErrTesting
	}
	defer d.testing.Delete(sub.UUID)
	res := d.Sender.Send(ctx, to.request(id, body))
	r := record{}
	r.log(res)
	return TestResult{EventID: id, Delivered: res.Success(), Attempt: r.delivery(ref{}).Attempts[0]}, nil
}

func (d *Dispatcher) testBody(sub *subscribers.Subscriber) (body []byte, id string, err error) {
	metadata, err := json.Marshal(map[string]any{"subscriberUuid": sub.UUID, "message": "A test of this endpoint."}, json.Deterministic(true))
	if err != nil {
		return nil, "", fmt.Errorf("make test event: %w", err)
	}
	e := events.Event{
		ID: "test-" + d.NewID().String(), CompanyUUID: sub.CompanyUUID, Type: TestEvent,
		Timestamp: d.Now(), Metadata: metadata,
	}
	body, err = e.Body()
	return body, e.ID, err
}
