// Package tokens is the token endpoint (RFC 6749 section 4.4): it issues access tokens to
// OAuth clients.
package tokens

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/internal/clock"
	"spendhook/internal/ratelimit"
)

// tokenRate bounds the tokens that a client is issued.
var tokenRate = ratelimit.Limit{Name: "token", PerSecond: 10, Burst: 50}

// Options configures NewEndpoint.
type Options struct {
	Keys    *keys.Signer   // required
	Clients *clients.Store // required
	// Limiter bounds how many tokens a client is issued: 10 a second, 50 at
	// once. Nil means a limiter of this process alone.
	Limiter *ratelimit.Limiter

	Now        func() time.Time      // nil means time.Now
	Registerer prometheus.Registerer // of the metrics; nil exports none
}

// Endpoint is the token endpoint. It is safe for concurrent use.
type Endpoint struct {
	opts     Options
	requests *prometheus.CounterVec
	// limited has the clients that had too many tokens, and until when. Their requests are refused before
	// they cost a query of the database.
	limited *lru.Cache[string, time.Time]
}

// maxLimited bounds the clients that are refused without a query.
const maxLimited = 1024

const issued = "issued"

// NewEndpoint returns the token endpoint of keys and clients.
func NewEndpoint(opts Options) *Endpoint {
	opts.Now = clock.Or(opts.Now)
	if opts.Limiter == nil {
		opts.Limiter = ratelimit.New(nil, opts.Now)
	}
	limited, _ := lru.New[string, time.Time](maxLimited) // fails only for a size < 1
	e := &Endpoint{opts: opts, limited: limited, requests: promauto.With(opts.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_token_requests_total",
		Help: "Requests to the token endpoint by result: issued, or the reason of the refusal.",
	}, []string{"result"})}
	for _, result := range append([]Code{issued}, codes...) {
		e.requests.WithLabelValues(string(result))
	}
	return e
}

// Token is an issued access token.
type Token struct {
	AccessToken string
	ExpiresIn   time.Duration
	Scopes      []string
}

// Issue answers a token request. The error is always an *Error.
func (e *Endpoint) Issue(ctx context.Context, r Request) (Token, error) {
	token, refusal := e.issue(ctx, r)
	if refusal != nil {
		e.requests.WithLabelValues(string(refusal.Code)).Inc()
		return Token{}, refusal
	}
	e.requests.WithLabelValues(issued).Inc()
	return token, nil
}

func (e *Endpoint) issue(ctx context.Context, r Request) (Token, *Error) {
	c, refusal := parseRequest(r)
	if refusal != nil {
		return Token{}, refusal
	}
	if until, ok := e.limited.Get(c.id); ok {
		if wait := until.Sub(e.opts.Now()); wait > 0 {
			return Token{}, tooManyTokens(wait)
		}
	}
	client, refusal := e.authenticate(ctx, c, r)
	if refusal != nil {
		return Token{}, refusal
	}
	scopes, ok := granted(client.Scopes, strings.Fields(c.scope))
	if !ok {
		return Token{}, refuse(InvalidScope, "A scope is unknown, or not one of this client's.")
	}
	if d := e.opts.Limiter.Take(ctx, tokenRate, client.ID, 1); !d.OK {
		e.limited.Add(client.ID, e.opts.Now().Add(d.RetryAfter))
		return Token{}, tooManyTokens(d.RetryAfter)
	}
	grant := auth.Grant{
		Subject: client.ID, ClientID: client.ID, Company: (*uuid.UUID)(client.Company),
		Scopes: scopes, Thumbprint: r.Certificate, TTL: keys.TokenTTL,
	}
	token, err := auth.Mint(e.opts.Keys, grant, e.opts.Now())
	if err != nil {
		return Token{}, unavailable(err)
	}
	return Token{AccessToken: token, ExpiresIn: keys.TokenTTL, Scopes: scopes}, nil
}

func tooManyTokens(wait time.Duration) *Error {
	refusal := refuse(TooManyTokens, "The client requests too many tokens; a token is valid for an hour.")
	refusal.RetryAfter = wait
	return refusal
}

// granted returns the scopes of a token: the requested ones, or all of the client's when
// none is requested. It returns false when the client lacks a requested scope.
func granted(has, asked []string) ([]string, bool) {
	if len(asked) == 0 {
		return has, true
	}
	for _, scope := range asked {
		if !slices.Contains(has, scope) {
			return nil, false
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(asked))), true
}

func (e *Endpoint) authenticate(ctx context.Context, c credentials, r Request) (clients.Client, *Error) {
	client, err := e.opts.Clients.Authenticate(ctx, c.id, c.secret, r.Certificate, r.Address)
	switch {
	case errors.Is(err, clients.ErrRefused):
		return client, refuse(InvalidClient, "The client is unknown, disabled, or its credentials are wrong.")
	case errors.Is(err, clients.ErrBusy):
		return client, unavailable(nil)
	case err != nil:
		return client, unavailable(err)
	}
	return client, nil
}

// unavailable is the error for failures that the request did not cause. A nil cause is not
// logged.
func unavailable(err error) *Error {
	return &Error{Code: Unavailable, Description: "No token can be issued now; try again.", RetryAfter: time.Second, cause: err}
}

// Code says why a token request was refused. RFC 6749 section 5.2 defines some of the codes.
type Code string

// The codes. Only the last one is not caused by the request.
const (
	InvalidRequest       Code = "invalid_request"
	InvalidClient        Code = "invalid_client"
	InvalidScope         Code = "invalid_scope"
	UnsupportedGrantType Code = "unsupported_grant_type"
	TooManyTokens        Code = "too_many_tokens"
	Unavailable          Code = "unavailable"
)

var codes = []Code{InvalidRequest, InvalidClient, InvalidScope, UnsupportedGrantType, TooManyTokens, Unavailable}

// Error is a refused token request.
type Error struct {
	Code        Code
	Description string // repeats no part of the request
	// RetryAfter is the time after which a retry may succeed; 0 means never.
	RetryAfter time.Duration
	cause      error
}

// Error returns the description.
func (r *Error) Error() string { return r.Description }

// Unwrap returns the failure behind the refusal, or nil when the request is at fault.
func (r *Error) Unwrap() error { return r.cause }

func refuse(code Code, description string) *Error {
	return &Error{Code: code, Description: description}
}
