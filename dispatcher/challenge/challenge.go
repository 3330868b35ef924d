// Package challenge verifies callback URLs: it asks the receiver whether it agrees to get deliveries. A receiver of the
// format cloudevents is asked by the handshake of CloudEvents (HTTP 1.1 Web Hooks for Event Delivery 1.0, 4). Any other
// gets a signed message with a random text, and must repeat the text. It is no tool against a third party: it is guarded
// like a delivery, a subscriber has one challenge at a time, companies and hosts have few an hour, and nobody is shown the answer.
package challenge

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/ratelimit"
	"spendhook/subscribers"
	"spendhook/subscribers/registry"
)

// Options configures a Challenger. All but HostHour, CompanyHour, Registerer and Now are required.
type Options struct {
	Client      redis.UniversalClient
	Subscribers *subscribers.Store
	Registry    *registry.Registry
	Requests    *requests.Maker
	Send        func(context.Context, webhook.Request) attempt.Result // webhook.Sender.Send
	Limiter     *ratelimit.Limiter
	Origin      string // the host name by which CloudEvents receivers know this system
	HostHour    int    // the most challenges of a host in an hour, at least 4; 0 means 10
	CompanyHour int    // the most challenges of a company in an hour, at least 2; 0 means 30
	Registerer  prometheus.Registerer
	Now         func() time.Time // nil: time.Now
}

// maxAnswer is the maximum size of the answer to a challenge, in bytes.
const maxAnswer = 1 << 10

// maxDuration is the maximum duration of a challenge, if an attempt may take longer.
const maxDuration = 15 * time.Second

// ErrUnderWay says that another challenge of the subscriber is under way.
var ErrUnderWay = errors.New("a challenge of this subscriber is under way")

// LimitError says that the host was challenged often, or by the company, and how long to wait.
type LimitError struct{ RetryAfter time.Duration }

func (e *LimitError) Error() string {
	return fmt.Sprintf("too many challenges of the host or of the company: try again in %s", e.RetryAfter.Round(time.Second))
}

// Action is the action in the audit log of a challenge, also of one that failed.
const Action = "subscriber.verify"

// FailedError says why a receiver is not verified. It has nothing of the receiver's answer but its status.
type FailedError struct{ Reason string }

func (e *FailedError) Error() string { return "the receiver is not verified: " + e.Reason }

// Unwrap makes a FailedError a subscribers.ErrUnverified.
func (e *FailedError) Unwrap() error { return subscribers.ErrUnverified }

// Challenger is safe for concurrent use. Its methods wait for the receiver, for 15 s at most.
type Challenger struct {
	opts    Options
	results *prometheus.CounterVec

	ofCompany, ofCompanyAtHost, ofHost ratelimit.Limit
}

// The values of the label of spendhook_challenges_total.
const (
	resultVerified = "verified"
	resultFailed   = "failed"
	resultLimited  = "limited"
)

// New returns a Challenger.
func New(o Options) *Challenger {
	o.Now, o.HostHour, o.CompanyHour = clock.Or(o.Now), cmp.Or(o.HostHour, 10), cmp.Or(o.CompanyHour, 30)
	ofOne := o.HostHour * 6 / 10 // so that a company does not keep the others from verifying
	c := &Challenger{
		opts:            o,
		ofCompany:       ratelimit.Hourly("challenge-company", o.CompanyHour, o.CompanyHour/2),
		ofCompanyAtHost: ratelimit.Hourly("challenge-host", ofOne, ofOne*5/6),
		ofHost:          ratelimit.Hourly("challenge", o.HostHour, ofOne),
		results: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_challenges_total", Help: "Challenges of callback URLs by result: verified, failed, or limited, which were not sent.",
		}, []string{"result"}),
	}
	for _, result := range []string{resultVerified, resultFailed, resultLimited} {
		c.results.WithLabelValues(result)
	}
	return c
}

// Verify challenges the receiver of a subscriber, and notes the result. It does nothing for one that is verified. The error may be
// subscribers.ErrNotFound, a FailedError, a LimitError or ErrUnderWay.
func (c *Challenger) Verify(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error) {
	sub, err := c.opts.Registry.Find(ctx, company, id)
	if err != nil {
		return subscribers.Subscriber{}, err
	}
	if sub.Verification != nil && !sub.Unverified() {
		return c.opts.Subscribers.Get(ctx, company, id)
	}
	v, failed := c.ask(ctx, sub)
	if failed != nil && !errors.Is(failed, subscribers.ErrUnverified) {
		return subscribers.Subscriber{}, failed
	}
	noted, err := c.opts.Subscribers.NoteChallenge(ctx, sub, v)
	switch {
	case errors.Is(err, subscribers.ErrChanged):
		return noted, &FailedError{"its callback URL or format was changed meanwhile"}
	case err != nil:
		return noted, err
	}
	return noted, failed
}

// Update is Update of subscribers.Store. Where a new receiver must be verified, it is challenged first, and the former one
// gets the deliveries until then. Its errors are those of both.
func (c *Challenger) Update(ctx context.Context, company, id uuid.UUID, in subscribers.Settings) (subscribers.Subscriber, error) {
	next, prove, err := c.opts.Subscribers.Prepare(ctx, company, id, in)
	if err != nil {
		return next, err
	}
	if prove {
		known, err := c.opts.Registry.Find(ctx, company, id)
		if err != nil {
			return subscribers.Subscriber{}, err
		}
		next.Certificate, next.SigningKeys = known.Certificate, known.SigningKeys
		v, err := c.ask(ctx, &next)
		if err != nil {
			return subscribers.Subscriber{}, err
		}
		in.Verified = &v
	}
	return c.opts.Subscribers.Update(ctx, company, id, in)
}

// ask challenges the receiver. The Verification is StateFailed with a FailedError, and empty with another error, which may be
// subscribers.ErrLocked.
func (c *Challenger) ask(ctx context.Context, sub *subscribers.Subscriber) (subscribers.Verification, error) {
	target := c.opts.Requests.Target(sub)
	if target.Locked != nil {
		return subscribers.Verification{}, fmt.Errorf("%w: %w", subscribers.ErrLocked, target.Locked)
	}
	end, err := c.begin(ctx, sub)
	if err != nil {
		return subscribers.Verification{}, err
	}
	defer end()
	if err := c.take(ctx, sub.CompanyUUID.String(), target.URL.Hostname()); err != nil {
		return subscribers.Verification{}, err
	}
	v := subscribers.Verification{State: subscribers.StateVerified}
	if sub.Format == subscribers.FormatCloudEvents {
		v.PerMinute, v.Reason, err = c.handshake(ctx, sub, target)
	} else {
		v.Reason, err = c.message(ctx, sub, target)
	}
	if err != nil {
		return subscribers.Verification{}, err
	}
	v.At = new(c.opts.Now().UTC().Truncate(time.Millisecond))
	if v.Reason == "" {
		c.results.WithLabelValues(resultVerified).Inc()
		return v, nil
	}
	v.State = subscribers.StateFailed
	c.results.WithLabelValues(resultFailed).Inc()
	return v, &FailedError{v.Reason}
}

// take counts a challenge.
func (c *Challenger) take(ctx context.Context, company, host string) error {
	for _, of := range []struct {
		ratelimit.Limit
		key string
	}{{c.ofCompany, company}, {c.ofCompanyAtHost, company + "/" + host}, {c.ofHost, host}} {
		if may := c.opts.Limiter.Take(ctx, of.Limit, of.key, 1); !may.OK {
			c.results.WithLabelValues(resultLimited).Inc()
			return &LimitError{may.RetryAfter}
		}
	}
	return nil
}

// begin notes that a challenge of a subscriber is under way, in all replicas, until end is called, or the time of a challenge is past.
func (c *Challenger) begin(ctx context.Context, sub *subscribers.Subscriber) (end func(), err error) {
	key, mine := partition.Key(sub.CompanyUUID, "vc:"+sub.UUID.String()), rand.Text()
	// The answer may be lost, and the command sent again.
	const life = 2 * maxDuration
	until, cancel := context.WithTimeout(context.WithoutCancel(ctx), life)
	other, err := c.opts.Client.SetArgs(ctx, key, mine, redis.SetArgs{Mode: "NX", Get: true, TTL: life}).Result()
	switch {
	case err != nil && !errors.Is(err, redis.Nil):
		cancel()
		return nil, fmt.Errorf("begin challenge: %w", err)
	case err == nil && other != mine:
		cancel()
		return nil, ErrUnderWay
	}
	return func() {
		_ = c.opts.Client.Del(until, key).Err() // else it expires; afterwards it may be another one's
		cancel()
	}, nil
}

// eventType is the type of the message with a challenge. No emitter can send it.
const eventType = "SUBSCRIBER_CHALLENGE"

// Text returns the text that the answer to a message must repeat; "" for any other message.
func Text(body []byte) string {
	var message struct {
		Event    string `json:"event"`
		Metadata struct {
			Challenge string `json:"challenge"`
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &message) != nil || message.Event != eventType {
		return ""
	}
	return message.Metadata.Challenge
}

// message sends a signed message, and returns why its answer does not verify the receiver; "" if it does.
func (c *Challenger) message(ctx context.Context, sub *subscribers.Subscriber, target *requests.Target) (reason string, err error) {
	text := rand.Text() // 128 random bits
	metadata, err := json.Marshal(map[string]string{"challenge": text, "subscriberUuid": sub.UUID.String()}, json.Deterministic(true))
	if err != nil {
		return "", err
	}
	e := events.Event{ID: "challenge-" + uuid.NewString(), CompanyUUID: sub.CompanyUUID, Type: eventType, Timestamp: c.opts.Now(), Metadata: metadata}
	body, err := e.Body()
	if err != nil {
		return "", err
	}
	payload, err := c.opts.Requests.Payloads(&events.Stored{Event: e, Body: body}).In(subscribers.FormatStandard)
	if err != nil {
		return "", err
	}
	answer, reason, err := c.send(ctx, target.Request(e.ID, 0, payload))
	switch {
	case reason != "" || err != nil:
		return reason, err
	case len(answer.Body) > maxAnswer:
		return "the answer is longer than 1 KiB", nil
	case !repeats(answer.Body, text):
		return "the answer does not repeat the challenge", nil
	}
	return "", nil
}

// repeats reports whether an answer is the text, or JSON with a member challenge that is.
func repeats(body []byte, text string) bool {
	if strings.TrimSpace(string(body)) == text {
		return true
	}
	var in struct {
		Challenge string `json:"challenge"`
	}
	return json.Unmarshal(body, &in) == nil && in.Challenge == text
}

// handshake asks for the permission to send (CloudEvents HTTP 1.1 Web Hooks for Event Delivery 1.0, 4.1 and 4.2). It
// returns the rate that the receiver allows, in requests per minute, 0 for any.
func (c *Challenger) handshake(ctx context.Context, sub *subscribers.Subscriber, target *requests.Target) (perMinute int, reason string, err error) {
	r := target.Request("challenge-"+uuid.NewString(), 0, requests.Payload{})
	r.Method, r.Signer, r.MessageKey, r.Headers = http.MethodOptions, nil, nil, r.Headers.Clone()
	r.Headers[webhook.HeaderOrigin] = []string{c.opts.Origin}
	if sub.RateLimit != nil {
		r.Headers["WebHook-Request-Rate"] = []string{strconv.Itoa(max(1, int(math.Round(60*sub.RateLimit.PerSecond))))}
	}
	answer, reason, err := c.send(ctx, r)
	if reason != "" || err != nil {
		return 0, reason, err
	}
	if origin := answer.Header.Get("WebHook-Allowed-Origin"); origin != "*" && !strings.EqualFold(origin, c.opts.Origin) {
		return 0, "WebHook-Allowed-Origin of the answer is neither * nor " + c.opts.Origin, nil
	}
	perMinute, ok := rateOf(answer.Header.Get("WebHook-Allowed-Rate"))
	if !ok {
		return 0, "WebHook-Allowed-Rate of the answer is neither * nor a number of requests per minute", nil
	}
	return min(perMinute, maxPerMinute), "", nil
}

// rateOf parses WebHook-Allowed-Rate; 0 is any.
func rateOf(text string) (perMinute int, ok bool) {
	if text == "" || text == "*" {
		return 0, true
	}
	perMinute, err := strconv.Atoi(text)
	return perMinute, err == nil && perMinute > 0
}

// maxPerMinute is the highest rate of a subscriber, per minute.
const maxPerMinute = 600_000

// send makes a request, and returns the answer to a success, or why there was none. An attempt that was aborted
// is an error.
func (c *Challenger) send(ctx context.Context, r webhook.Request) (answer webhook.Answer, reason string, err error) {
	r.Answer = &answer
	sending, cancel := context.WithTimeout(ctx, maxDuration)
	defer cancel()
	res := c.opts.Send(sending, r)
	switch {
	case res.Aborted() && ctx.Err() == nil && sending.Err() != nil:
		return answer, string(attempt.ClassTimeout), nil
	case res.Aborted():
		return answer, "", fmt.Errorf("challenge: %w", res.Err)
	case res.StatusCode != 0 && !res.Success():
		return answer, fmt.Sprintf("%s (status %d)", res.Class, res.StatusCode), nil
	case !res.Success():
		return answer, string(res.Class), nil
	}
	return answer, "", nil
}
