package api

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"spendhook/auth"
	"spendhook/internal/ratelimit"
)

// Limits are the rate limits of requests. A request takes one token, or one for each of its
// items: the events of an array, the cards of a bulk creation, the deliveries of a replay. An
// invalid request takes one token. So does a request that gets a stored answer. A request above a limit
// (429) takes none. A request with more items than the burst takes the whole burst.
type Limits struct {
	limiter *ratelimit.Limiter
	current atomic.Pointer[[2]ratelimit.Limit] // of a client and of a company
}

// NewLimits returns Limits. Client is the limit of each credential, company that of all credentials of
// a company. A credential without a company has only the first limit. NewLimits sets the names of the limits.
func NewLimits(limiter *ratelimit.Limiter, client, company ratelimit.Limit) *Limits {
	l := &Limits{limiter: limiter}
	l.Change(client, company)
	return l
}

// Change replaces the limits, also while requests are served.
func (l *Limits) Change(client, company ratelimit.Limit) {
	client.Name, company.Name = limitClient, limitCompany
	l.current.Store(&[2]ratelimit.Limit{client, company})
}

// The limits, as metrics and headers name them.
const (
	limitClient  = "client"
	limitCompany = "company"
)

// charge makes the request take n tokens in place of those taken before: it takes the difference from each
// bucket, or returns it. It sets the headers with the tokens that are left. After an error, a 429, the
// request has taken none.
func (s *server) charge(ctx context.Context, q *request, taken, n int) error {
	if s.opts.Limits == nil {
		return nil
	}
	buckets := s.opts.Limits.buckets(q.Caller)
	decisions := make([]ratelimit.Decision, len(buckets))
	var refused error
	for i, b := range buckets {
		if decisions[i] = s.opts.Limits.adjust(ctx, b, taken, n); decisions[i].OK {
			continue
		}
		refused = s.refuseRate(b.limit.Name, decisions[i])
		for j, other := range buckets {
			if j < i {
				decisions[j] = s.opts.Limits.adjust(ctx, other, n, 0)
			} else if taken > 0 {
				decisions[j] = s.opts.Limits.adjust(ctx, other, taken, 0)
			}
		}
		if taken == 0 {
			decisions = decisions[:i+1]
		}
		break
	}
	setRateFields(q.w.Header(), buckets, decisions)
	return refused
}

// bucket is a token bucket of a caller.
type bucket struct {
	limit ratelimit.Limit
	key   string
}

func (l *Limits) buckets(c *auth.Caller) []bucket {
	var list []bucket
	current := l.current.Load()
	client, company := current[0], current[1]
	if client.PerSecond > 0 {
		list = append(list, bucket{client, limitKey(c)})
	}
	if company.PerSecond > 0 && c.Company != nil {
		list = append(list, bucket{company, c.Company.String()})
	}
	return list
}

// adjust makes a request take n tokens of one bucket in place of those taken before. A number above the
// burst counts as the burst.
func (l *Limits) adjust(ctx context.Context, b bucket, taken, n int) ratelimit.Decision {
	more := min(n, b.limit.Burst) - min(taken, b.limit.Burst)
	if more < 0 {
		return l.limiter.Give(ctx, b.limit, b.key, -more)
	}
	return l.limiter.Take(ctx, b.limit, b.key, more)
}

// limitKey identifies the client or subject of a token.
func limitKey(c *auth.Caller) string { return c.Issuer + "|" + cmp.Or(c.ClientID, c.Subject) }

func (s *server) refuseRate(limit string, d ratelimit.Decision) error {
	s.opts.Metrics.throttled.WithLabelValues(limit).Inc()
	seconds := max(1, wholeSeconds(d.RetryAfter))
	return newProblem("RATE_LIMITED", "Too many requests; try again in %d s.", seconds).
		with("Retry-After", strconv.Itoa(seconds))
}

func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// setRateFields sets RateLimit-Policy and RateLimit of the IETF's
// draft-ietf-httpapi-ratelimit-headers: for each limit its quota q in a window
// of w seconds, the tokens that remain (r), and the seconds until the bucket is full (t).
func setRateFields(h http.Header, buckets []bucket, decisions []ratelimit.Decision) {
	var policies, states []string
	for i, d := range decisions {
		quota, window := policy(buckets[i].limit)
		policies = append(policies, fmt.Sprintf("%q;q=%d;w=%d", buckets[i].limit.Name, quota, window))
		states = append(states, fmt.Sprintf("%q;r=%d;t=%d", buckets[i].limit.Name, d.Remaining, wholeSeconds(d.Reset)))
	}
	if len(policies) > 0 {
		h.Set("Ratelimit-Policy", strings.Join(policies, ", "))
		h.Set("Ratelimit", strings.Join(states, ", "))
	}
}

// policy expresses a bucket as a quota per window of whole seconds: its burst, and the time
// to refill it. For a bucket that refills within a second it is the rate per second.
func policy(limit ratelimit.Limit) (quota, seconds int) {
	quota = max(limit.Burst, int(limit.PerSecond))
	return quota, max(1, int(math.Ceil(float64(quota)/limit.PerSecond)))
}
