package api

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"spendhook/auth"
	"spendhook/internal/peer"
	"spendhook/internal/ratelimit"
)

// Limits bound how many requests are carried out. A request counts as one
// whatever is in it, also when it is refused later on or answered from what an
// Idempotency-Key has kept. The names of the limits are set here.
type Limits struct {
	Limiter *ratelimit.Limiter

	// Client is for each credential, Company for all credentials of a company.
	// A credential that is not tied to one has the first alone.
	Client, Company ratelimit.Limit

	// Failures bounds, in this process alone, how many requests that fail to
	// authenticate an address may send; an IPv6 address is its /64. Past it only
	// tokens that were good before are looked at. The zero Limit means 10 a
	// second and 100 at once.
	Failures ratelimit.Limit
}

// The limits, as metrics and headers name them.
const (
	limitClient  = "client"
	limitCompany = "company"
	limitAddress = "address"
)

// throttle applies Limits. A nil one lets everything through.
type throttle struct {
	shared, own               *ratelimit.Limiter
	client, company, failures ratelimit.Limit
	metrics                   *Metrics
}

func newThrottle(o *Limits, metrics *Metrics, now func() time.Time) *throttle {
	if o == nil {
		return nil
	}
	t := &throttle{
		shared: o.Limiter, own: ratelimit.New(nil, now), metrics: metrics,
		client: o.Client, company: o.Company,
		failures: cmp.Or(o.Failures, ratelimit.Limit{PerSecond: 10, Burst: 100}),
	}
	t.client.Name, t.company.Name, t.failures.Name = limitClient, limitCompany, limitAddress
	return t
}

// request takes a request off what its caller may send, and says in the answer's
// headers how much that is. The error is a 429.
func (t *throttle) request(ctx context.Context, h http.Header, c *caller) error {
	if t == nil {
		return nil
	}
	var fields rateFields
	defer fields.write(h)
	if err := t.take(ctx, &fields, t.client, limitKey(c.Caller)); err != nil || c.Company == nil {
		return err
	}
	return t.take(ctx, &fields, t.company, c.Company.String())
}

func (t *throttle) take(ctx context.Context, fields *rateFields, limit ratelimit.Limit, key string) error {
	if limit.PerSecond <= 0 {
		return nil
	}
	d := t.shared.Take(ctx, limit, key)
	fields.add(limit, d)
	if d.OK {
		return nil
	}
	return t.refuse(limit.Name, d)
}

// limitKey names what a token was issued to.
func limitKey(c *auth.Caller) string { return c.Issuer + "|" + cmp.Or(c.ClientID, c.Subject) }

// stranger refuses a request from an address that has failed too often, unless
// its token is known.
func (t *throttle) stranger(r *http.Request, known func() bool) error {
	if t == nil {
		return nil
	}
	if d := t.own.Peek(t.failures, network(r)); !d.OK && !known() {
		return t.refuse(limitAddress, d)
	}
	return nil
}

// failed counts a request that did not authenticate.
func (t *throttle) failed(r *http.Request) {
	if t != nil {
		t.own.Take(r.Context(), t.failures, network(r))
	}
}

func (t *throttle) refuse(limit string, d ratelimit.Decision) error {
	t.metrics.throttled.WithLabelValues(limit).Inc()
	seconds := max(1, wholeSeconds(d.RetryAfter))
	return newProblem(http.StatusTooManyRequests, "RATE_LIMITED", "Too many requests; try again in %d s.", seconds).
		with("Retry-After", strconv.Itoa(seconds))
}

func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// network is whom a request is from, as far as an address tells: who has one
// IPv6 address has its /64.
func network(r *http.Request) string {
	address := peer.Address(r.Context())
	if address.Is6() {
		prefix, _ := address.Prefix(64) // fails for no Addr that is IPv6
		return prefix.String()
	}
	return address.String()
}

// rateFields are RateLimit-Policy and RateLimit of the IETF's
// draft-ietf-httpapi-ratelimit-headers: for each limit its quota q in a window
// of w seconds, what remains of it (r), and the seconds until it is whole (t).
type rateFields struct{ policy, state []byte }

func (f *rateFields) add(limit ratelimit.Limit, d ratelimit.Decision) {
	quota, window := policy(limit)
	f.policy = member(f.policy, limit.Name)
	f.policy = strconv.AppendInt(append(f.policy, ";q="...), int64(quota), 10)
	f.policy = strconv.AppendInt(append(f.policy, ";w="...), int64(window), 10)
	f.state = member(f.state, limit.Name)
	f.state = strconv.AppendInt(append(f.state, ";r="...), int64(d.Remaining), 10)
	f.state = strconv.AppendInt(append(f.state, ";t="...), int64(wholeSeconds(d.Reset)), 10)
}

// member begins the next member of a structured-field list (RFC 9651).
func member(list []byte, name string) []byte {
	if len(list) > 0 {
		list = append(list, ", "...)
	}
	return strconv.AppendQuote(list, name)
}

// policy is a bucket as a quota in a window of whole seconds: what a full one
// holds, and how long it takes to fill. One that fills within a second is told
// as what comes in a second.
func policy(limit ratelimit.Limit) (quota, seconds int) {
	quota = max(limit.Burst, int(limit.PerSecond))
	return quota, max(1, int(math.Ceil(float64(quota)/limit.PerSecond)))
}

func (f *rateFields) write(h http.Header) {
	if len(f.policy) > 0 {
		h.Set("Ratelimit-Policy", string(f.policy))
		h.Set("Ratelimit", string(f.state))
	}
}
