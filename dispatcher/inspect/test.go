package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/internal/tracing"
	"spendhook/subscribers"
)

// ErrTesting means that a test of the subscriber is under way.
var ErrTesting = errors.New("a test of this subscriber is under way")

// testEvent is the type of the event that Test sends.
const testEvent = "SUBSCRIBER_TEST"

// TestResult is the result of a test delivery.
type TestResult struct {
	EventID   string
	Delivered bool
	Attempt   attempt.Attempt
}

// Test sends one signed test event to a subscriber, enabled or not, waits for the answer
// (at most the attempt's timeout) and stores nothing. It ignores the endpoint's limit and
// breaker, because it shows whether a failing endpoint works again.
// delivery.ErrSubscriberGone when the subscriber does not exist; ErrTesting while this
// replica runs another test of the subscriber.
func (i *Inspector) Test(ctx context.Context, company, subscriber uuid.UUID) (TestResult, error) {
	sub, err := i.subscriber(ctx, company, subscriber)
	if err != nil {
		return TestResult{}, err
	}
	to, err := i.opts.Requests.Target(ctx, sub)
	if err != nil {
		return TestResult{}, err
	}
	test, err := i.testEvent(sub)
	if err != nil {
		return TestResult{}, err
	}
	body, err := i.opts.Requests.Payloads(test).In(sub.Format)
	if err != nil {
		return TestResult{}, err
	}
	if _, busy := i.testing.LoadOrStore(sub.UUID, struct{}{}); busy {
		return TestResult{}, ErrTesting
	}
	defer i.testing.Delete(sub.UUID)
	request := to.Request(test.ID, 0, body)
	request.Traceparent = tracing.OfSpan(trace.SpanFromContext(ctx)).Traceparent()
	res := i.opts.Send(ctx, request)
	return TestResult{EventID: test.ID, Delivered: res.Success(), Attempt: attempt.New(1, res)}, nil
}

func (i *Inspector) testEvent(sub *subscribers.Subscriber) (*events.Stored, error) {
	metadata, err := json.Marshal(map[string]any{"subscriberUuid": sub.UUID, "message": "A test of this endpoint."}, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("make test event: %w", err)
	}
	e := events.Event{
		ID: "test-" + uuid.NewString(), CompanyUUID: sub.CompanyUUID, Type: testEvent,
		Timestamp: i.opts.Now(), Metadata: metadata,
	}
	body, err := e.Body()
	return &events.Stored{Event: e, Body: body}, err
}
