package auth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"spendhook/internal/ratelimit"
	"spendhook/storage"
)

// tokenRate bounds the tokens that a client is issued.
var tokenRate = ratelimit.Limit{Name: "token", PerSecond: 10, Burst: 50}

// clientReads bounds how many clients are read from the database at once.
const clientReads = 8

// EndpointOptions configures NewEndpoint.
type EndpointOptions struct {
	Keys    *Keys    // required
	Clients *Clients // required
	// Limiter bounds how many tokens a client is issued: 10 a second, 50 at
	// once. Nil counts in this process alone.
	Limiter *ratelimit.Limiter

	Now     func() time.Time // nil means time.Now
	Logger  *slog.Logger     // nil discards
	Metrics *Metrics         // nil counts unseen
}

// Endpoint is the token endpoint: it issues access tokens to clients (RFC 6749
// section 4.4). It is safe for concurrent use.
type Endpoint struct {
	opts  EndpointOptions
	turns *turns
}

// NewEndpoint returns the token endpoint of keys and clients.
func NewEndpoint(opts EndpointOptions) *Endpoint {
	if opts.Now == nil {
		opts.Now = time.Now //nolint:forbidigo // the nil default
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	if opts.Limiter == nil {
		opts.Limiter = ratelimit.New(nil, opts.Now)
	}
	opts.Metrics.watchKeys(opts.Keys)
	return &Endpoint{opts: opts, turns: newTurns(clientReads)}
}

// Token is an issued access token.
type Token struct {
	AccessToken string
	ExpiresIn   time.Duration
	Scopes      []string
}

// Issue answers a token request. The error is always a *TokenError.
func (e *Endpoint) Issue(ctx context.Context, r TokenRequest) (Token, error) {
	token, refusal := e.issue(ctx, r)
	if refusal != nil {
		e.opts.Metrics.tokens.WithLabelValues(string(refusal.Code)).Inc()
		return Token{}, refusal
	}
	e.opts.Metrics.tokens.WithLabelValues(issued).Inc()
	return token, nil
}

func (e *Endpoint) issue(ctx context.Context, r TokenRequest) (Token, *TokenError) {
	c, refusal := parseRequest(r)
	if refusal != nil {
		return Token{}, refusal
	}
	client, refusal := e.authenticate(ctx, c, r)
	if refusal != nil {
		e.opts.Logger.LogAttrs(ctx, slog.LevelDebug, "token refused",
			slog.String("reason", string(refusal.Code)), slog.String("address", r.Address.String()))
		return Token{}, refusal
	}
	scopes, ok := granted(client.Scopes, strings.Fields(c.scope))
	if !ok {
		return Token{}, refuse(InvalidScope, "A scope is unknown, or not one of this client's.")
	}
	if d := e.opts.Limiter.Take(ctx, tokenRate, client.ID, 1); !d.OK {
		refusal := refuse(TooManyTokens, "The client asks for too many tokens; one is good for an hour.")
		refusal.RetryAfter = d.RetryAfter
		return Token{}, refusal
	}
	grant := Grant{
		Subject: client.ID, ClientID: client.ID, Company: client.Company,
		Scopes: scopes, Thumbprint: r.Certificate, TTL: TokenTTL,
	}
	token, err := e.opts.Keys.Mint(ctx, grant)
	if err != nil {
		return Token{}, unavailable(err)
	}
	e.opts.Clients.touch(client)
	return Token{AccessToken: token, ExpiresIn: TokenTTL, Scopes: scopes}, nil
}

// granted are the scopes of a token: those that were asked for, each of which
// must be one of the client's, or else all of the client's.
func granted(has, asked []string) ([]string, bool) {
	if len(asked) == 0 {
		return has, true
	}
	for _, scope := range asked {
		if !slices.Contains(has, scope) {
			return nil, false
		}
	}
	return unique(asked), true
}

// authenticate finds the client whose credentials these are. A client with a
// list of certificates has to present one of them, beside its secret when it
// gives one; the token will be bound to it.
func (e *Endpoint) authenticate(ctx context.Context, c credentials, r TokenRequest) (Client, *TokenError) {
	if !clientID.MatchString(c.id) {
		return Client{}, invalidClient() // the form of an id is no secret
	}
	end, err := e.turns.take(ctx, r.Address)
	if err != nil {
		return Client{}, unavailable(nil)
	}
	client, err := e.client(ctx, c.id)
	end()
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return client, unavailable(err)
	}
	bound := len(client.Certificates) > 0
	listed := bound && slices.Contains(client.Certificates, r.Certificate)
	proven := listed && c.secret == "" || // tls_client_auth of RFC 8705 section 2, by thumbprint
		client.hasSecret(hashSecret(c.secret), e.opts.Now().Before(client.OldSecretUntil))
	if !proven || bound && !listed {
		return client, invalidClient()
	}
	return client, nil
}

// client reads an enabled client.
func (e *Endpoint) client(ctx context.Context, id string) (Client, error) {
	client, err := e.opts.Clients.Get(ctx, id)
	if err == nil && client.RevokedAt != nil {
		return Client{}, storage.ErrNotFound
	}
	return client, err
}

// unavailable is for what is no fault of the request; a nil cause is not logged.
func unavailable(err error) *TokenError {
	return &TokenError{Code: Unavailable, Description: "No token can be issued now; try again.", RetryAfter: time.Second, cause: err}
}
