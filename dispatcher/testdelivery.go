package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/internal/tracing"
	"spendhook/subscribers"
)

// ErrTesting says that a test of the subscriber is under way.
var ErrTesting = errors.New("a test of this subscriber is under way")

// testEvent is the type of the event that Test sends.
const testEvent = "SUBSCRIBER_TEST"

// TestResult is what came of a test delivery.
type TestResult struct {
	EventID   string
	Delivered bool
	Attempt   attempt.Attempt
}

// Test sends one signed test event to a subscriber, enabled or not, waits for
// the answer, at most the attempt's time-out, and keeps nothing of it. It asks
// neither the endpoint's limit nor its breaker, being how to find out whether a
// failing endpoint is mended. delivery.ErrSubscriberGone when there is no such
// subscriber; ErrTesting while this replica runs another test of it.
func (d *Dispatcher) Test(ctx context.Context, company, subscriber uuid.UUID) (TestResult, error) {
	sub, err := d.subscriber(ctx, company, subscriber)
	if err != nil {
		return TestResult{}, err
	}
	to, err := d.targets.of(ctx, sub)
	if err != nil {
		return TestResult{}, err
	}
	test, err := d.testEvent(sub)
	if err != nil {
		return TestResult{}, err
	}
	body, err := d.payloadsOf(test).in(sub.Format)
	if err != nil {
		return TestResult{}, err
	}
	if _, busy := d.testing.LoadOrStore(sub.UUID, struct{}{}); busy {
		return TestResult{}, ErrTesting
	}
	defer d.testing.Delete(sub.UUID)
	request := to.request(test.ID, 0, body)
	request.Traceparent = tracing.OfSpan(trace.SpanFromContext(ctx)).Traceparent()
	res := d.send(ctx, request)
	return TestResult{EventID: test.ID, Delivered: res.Success(), Attempt: attempt.New(1, resultOf(res))}, nil
}

// subscriber finds one subscriber of a company as it is now.
func (d *Dispatcher) subscriber(ctx context.Context, company, id uuid.UUID) (*subscribers.Subscriber, error) {
	subs, err := d.opts.Registry.Current(ctx, company)
	if err != nil {
		return nil, err
	}
	for _, s := range subs {
		if s.UUID == id {
			return s, nil
		}
	}
	return nil, delivery.ErrSubscriberGone
}

func (d *Dispatcher) testEvent(sub *subscribers.Subscriber) (*events.Stored, error) {
	metadata, err := json.Marshal(map[string]any{"subscriberUuid": sub.UUID, "message": "A test of this endpoint."}, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("make test event: %w", err)
	}
	e := events.Event{
		ID: "test-" + d.opts.NewID().String(), CompanyUUID: sub.CompanyUUID, Type: testEvent,
		Timestamp: d.opts.Now(), Metadata: metadata,
	}
	body, err := e.Body()
	return &events.Stored{Event: e, Body: body}, err
}
