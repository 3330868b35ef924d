// Package inspect explains the deliveries of an event, shows the request of a delivery, and
// sends test deliveries.
package inspect

import (
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/tracing"
	"spendhook/subscribers"
	"spendhook/subscribers/expression"
	"spendhook/subscribers/registry"
)

// Options configures an Inspector. All are required.
type Options struct {
	Events      *history.Reader
	Subscribers *subscribers.Store
	Registry    *registry.Registry
	Deliveries  *store.Store
	Requests    *requests.Maker
	Send        func(context.Context, webhook.Request) attempt.Result // webhook.Sender.Send
}

// Inspector is safe for concurrent use. Make it with New.
type Inspector struct {
	opts    Options
	testing sync.Map // subscribers with a test under way
}

// New returns an Inspector.
func New(o Options) *Inspector { return &Inspector{opts: o} }

// request returns the request that sends an event to a subscriber with its current settings.
func (i *Inspector) request(ctx context.Context, e *events.Stored, subscriber uuid.UUID) (r webhook.Request, sub *subscribers.Subscriber, err error) {
	sub, err = i.opts.Registry.Find(ctx, e.CompanyUUID, subscriber)
	if errors.Is(err, subscribers.ErrNotFound) {
		err = delivery.ErrSubscriberGone
	}
	if err != nil {
		return r, nil, err
	}
	body, err := i.opts.Requests.Payload(ctx, e, sub)
	return i.opts.Requests.Target(sub).Request(e.ID, e.Sequence, body), sub, err
}

// Sent is the request of a delivery with the current settings of its subscriber, without
// signatures.
type Sent struct {
	Standard                  bool // it has a signature of Standard Webhooks
	URL, ContentType, EventID string
	Sequence                  int64 // of the event in its company; 0: not sent
	Previous                  int64 // of the event before for the subscriber; 0: not sent
	Body                      []byte
}

// Sent returns the request that an attempt of a delivery would send. The error may be
// delivery.ErrNotFound, delivery.ErrSubscriberGone, events.ErrNotFound, or events.ErrCompacted for an event that the history
// does not have either.
func (i *Inspector) Sent(ctx context.Context, company uuid.UUID, id string) (Sent, error) {
	r, err := i.requestOf(ctx, company, id)
	if err != nil {
		return Sent{}, err
	}
	sent := Sent{Standard: r.Signer != nil, ContentType: r.ContentType, EventID: r.EventID, Sequence: r.Sequence, Previous: r.Previous, Body: r.Body}
	if r.URL != nil {
		sent.URL = r.URL.String()
	}
	return sent, nil
}

// VerifySignature reports whether a webhook-signature header contains a signature that this
// daemon would make for the delivery now, with the given webhook-timestamp. The errors are
// those of Sent, and those of a subscriber that cannot be used, such as subscribers.ErrLocked.
func (i *Inspector) VerifySignature(ctx context.Context, company uuid.UUID, id string, timestamp int64, header string) (bool, error) {
	r, err := i.requestOf(ctx, company, id)
	if err != nil {
		return false, err
	}
	if r.Locked != nil {
		return false, r.Locked
	}
	for ours := range strings.FieldsSeq(r.Signed(time.Unix(timestamp, 0))[signature.HeaderSignature]) {
		for theirs := range strings.FieldsSeq(header) {
			if subtle.ConstantTimeCompare([]byte(ours), []byte(theirs)) == 1 {
				return true, nil
			}
		}
	}
	return false, nil
}

func (i *Inspector) requestOf(ctx context.Context, company uuid.UUID, id string) (r webhook.Request, err error) {
	found, err := i.opts.Deliveries.Delivery(ctx, company, id)
	if err != nil {
		return r, err
	}
	stored, err := i.opts.Events.Get(ctx, found.Ref.Ref)
	if err != nil {
		return r, err
	}
	if stored.State == events.Compacted {
		return r, events.ErrCompacted
	}
	r, _, err = i.request(ctx, &stored, found.Subscriber)
	r.Previous = found.Previous
	return r, err
}

// Verdict is the outcome of an event for one subscriber.
type Verdict string

// The verdicts of Explain.
const (
	VerdictDelivered     Verdict = "DELIVERED"
	VerdictPending       Verdict = "PENDING"
	VerdictDead          Verdict = "DEAD"
	VerdictCancelled     Verdict = "CANCELLED"
	VerdictNotSubscribed Verdict = "NOT_SUBSCRIBED" // the subscriber's event types do not include this one
	VerdictFiltered      Verdict = "FILTERED"       // its filter does not match
	VerdictDisabled      Verdict = "DISABLED"       // the subscriber is disabled; a recover job sends the event
	VerdictCreatedLater  Verdict = "CREATED_LATER"  // the subscriber was registered after the event
	VerdictNotMatched    Verdict = "NOT_MATCHED"    // the subscriber matches the event now, but did not at matching time
)

// Explanation is the outcome of an event for one subscriber of its company, and why.
type Explanation struct {
	Subscriber *subscribers.Subscriber // never changed
	Verdict    Verdict
	Delivery   *delivery.Delivery // nil when there is none
	Err        error              // why its filter failed on the event; else nil
	// Body is what its transform makes of the event, or TransformErr why the transform fails. Both are nil without a
	// transform, if the subscriber does not get the event, and after the first MiB of all bodies.
	Body         []byte
	TransformErr error
	// Ahead is the event whose delivery, which has the same order key, must end first; "": none.
	Ahead string
	// OrderErr is why the expression by which the subscriber is ordered failed on the event; else nil.
	OrderErr error
}

// Trial is what a subscriber would get of an event. The fields are as those of an Explanation.
type Trial struct {
	Matches      bool
	Err          error
	Body         []byte
	TransformErr error
}

// Try evaluates the filter and the transform of a subscriber on events. It ends early with ctx.
func Try(ctx context.Context, sub *subscribers.Subscriber, list []events.Stored) []Trial {
	out, bodies := make([]Trial, len(list)), bodyLimit(maxBodies)
	for i, e := range list {
		candidate, tried := expression.NewEvent(e.Event), &out[i]
		if tried.Matches, tried.Err = sub.Matches(ctx, candidate); tried.Matches {
			tried.Body, tried.TransformErr = bodies.transformed(ctx, sub, candidate)
		}
	}
	return out
}

// maxBodies bounds the bodies that are shown at once, in bytes in all.
const maxBodies = 1 << 20

// bodyLimit is how many bytes of bodies may still be shown.
type bodyLimit int

func (left *bodyLimit) transformed(ctx context.Context, sub *subscribers.Subscriber, e *expression.Event) ([]byte, error) {
	if sub.Transform == "" {
		return nil, nil
	}
	body, err := sub.Transformed(ctx, e)
	if *left -= bodyLimit(len(body)); *left < 0 {
		return nil, err
	}
	return body, err
}

// Explain says for every subscriber of the event's company whether it received
// the event, or why not. events.ErrNotFound when there is no such event; events.ErrCompacted when it is compacted, and not
// in the history.
func (i *Inspector) Explain(ctx context.Context, r events.Ref) ([]Explanation, error) {
	stored, err := i.opts.Events.Get(ctx, r)
	if err != nil {
		return nil, err
	}
	if stored.State == events.Compacted {
		return nil, events.ErrCompacted
	}
	subs, err := i.opts.Registry.Current(ctx, r.Company)
	if err != nil {
		return nil, err
	}
	deliveries, err := i.opts.Deliveries.OfEvent(ctx, r)
	if err != nil {
		return nil, err
	}
	bySubscriber := make(map[uuid.UUID]*delivery.Delivery, len(deliveries))
	var waiting []*delivery.Delivery
	for n := range deliveries {
		bySubscriber[deliveries[n].Subscriber] = &deliveries[n]
		if deliveries[n].Status.Live() && deliveries[n].OrderKey != "" {
			waiting = append(waiting, &deliveries[n])
		}
	}
	ahead, err := i.opts.Deliveries.Ahead(ctx, waiting)
	if err != nil {
		return nil, err
	}
	out := make([]Explanation, len(subs))
	candidate, bodies := expression.NewEvent(stored.Event), bodyLimit(maxBodies)
	for n, sub := range subs {
		del := bySubscriber[sub.UUID]
		matches, err := sub.Matches(ctx, candidate)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		out[n] = Explanation{Subscriber: sub, Delivery: del, Err: err, Verdict: explain(stored, sub, del, matches)}
		if matches || del != nil {
			out[n].Body, out[n].TransformErr = bodies.transformed(ctx, sub, candidate)
			_, out[n].OrderErr = sub.OrderKey(ctx, candidate)
		}
		if at := slices.Index(waiting, del); del != nil && at >= 0 {
			out[n].Ahead = ahead[at]
		}
	}
	return out, ctx.Err()
}

func explain(e events.Stored, sub *subscribers.Subscriber, del *delivery.Delivery, matches bool) Verdict {
	switch {
	case del != nil && del.Status.Live():
		return VerdictPending
	case del != nil:
		return Verdict(del.Status)
	case !sub.Wants(e.Type):
		return VerdictNotSubscribed
	case !matches:
		return VerdictFiltered
	case !sub.Enabled:
		return VerdictDisabled
	case e.State == events.Ready:
		return VerdictPending
	case sub.CreatedAt.After(e.AcceptedAt):
		return VerdictCreatedLater
	}
	return VerdictNotMatched
}

// ErrTesting means that this replica runs a test of the subscriber.
var ErrTesting = errors.New("a test of this subscriber is under way")

const testType = "SUBSCRIBER_TEST"

// TestResult is the result of a test delivery.
type TestResult struct {
	EventID   string
	Delivered bool
	Attempt   attempt.Attempt
}

// Test sends one signed test event to a subscriber, enabled or not, waits for the answer
// (at most the attempt's timeout) and stores nothing. It ignores the endpoint's limit and
// breaker, because it shows whether a failing endpoint works again. The error may be
// delivery.ErrSubscriberGone, subscribers.ErrUnverified for a URL that must be verified first, or
// ErrTesting while this replica runs another test of the subscriber.
func (i *Inspector) Test(ctx context.Context, company, subscriber uuid.UUID) (TestResult, error) {
	test, err := testEvent(company, subscriber)
	if err != nil {
		return TestResult{}, err
	}
	request, sub, err := i.request(ctx, test, subscriber)
	switch {
	case err != nil:
		return TestResult{}, err
	case sub.Unverified():
		return TestResult{}, subscribers.ErrUnverified
	}
	if _, busy := i.testing.LoadOrStore(subscriber, struct{}{}); busy {
		return TestResult{}, ErrTesting
	}
	defer i.testing.Delete(subscriber)
	request.Traceparent = tracing.OfSpan(trace.SpanFromContext(ctx)).Traceparent()
	res := i.opts.Send(ctx, request)
	return TestResult{EventID: test.ID, Delivered: res.Success(), Attempt: attempt.New(1, res)}, nil
}

func testEvent(company, subscriber uuid.UUID) (*events.Stored, error) {
	e := events.Event{
		ID: "test-" + uuid.NewString(), CompanyUUID: company, Type: testType,
		Timestamp: time.Now(), //nolint:forbidigo // it is sent now
		Metadata:  []byte(`{"message":"A test of this endpoint.","subscriberUuid":"` + subscriber.String() + `"}`),
	}
	body, err := e.Body()
	return &events.Stored{Event: e, Body: body}, err
}
