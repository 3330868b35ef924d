package auth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"spendhook/storage"
)

// EndpointOptions configures NewEndpoint.
type EndpointOptions struct {
	Keys    *Keys    // required
	Clients *Clients // required
	// SecretChecks is how many client secrets are hashed at once, each for
	// some 15 ms of a CPU and in 7 MiB; 0 means 1.
	SecretChecks int

	Now     func() time.Time // nil means time.Now
	Logger  *slog.Logger     // nil discards
	Metrics *Metrics         // nil counts unseen
}

// Endpoint is the token endpoint: it issues access tokens to clients (RFC 6749
// section 4.4). It is safe for concurrent use.
type Endpoint struct {
	opts    EndpointOptions
	secrets *secrets
	limit   *failureLimit
}

// NewEndpoint returns the token endpoint of keys and clients.
func NewEndpoint(opts EndpointOptions) *Endpoint {
	if opts.SecretChecks <= 0 {
		opts.SecretChecks = 1
	}
	if opts.Now == nil {
		opts.Now = time.Now //nolint:forbidigo // the nil default
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	opts.Metrics.watchKeys(opts.Keys)
	return &Endpoint{opts: opts, secrets: newSecrets(opts.SecretChecks, opts.Now, opts.Metrics), limit: newFailureLimit()}
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

// authenticate finds the client whose credentials these are. A certificate that
// comes with a secret does not replace it; the token will be bound to it.
func (e *Endpoint) authenticate(ctx context.Context, c credentials, r TokenRequest) (Client, *TokenError) {
	if !clientID.MatchString(c.id) {
		return Client{}, invalidClient() // the form of an id is no secret
	}
	var client Client
	var refusal *TokenError
	if c.secret == "" {
		client, refusal = e.byCertificate(ctx, c.id, r)
	} else {
		client, refusal = e.bySecret(ctx, c, r)
	}
	if refusal != nil {
		return client, refusal
	}
	if r.Certificate != "" && len(client.Certificates) > 0 && !slices.Contains(client.Certificates, r.Certificate) {
		return client, invalidClient() // a client with a list has no other certificates
	}
	return client, nil
}

// byCertificate is tls_client_auth of RFC 8705 section 2, by thumbprint.
func (e *Endpoint) byCertificate(ctx context.Context, id string, r TokenRequest) (Client, *TokenError) {
	giveBack, refusal := e.attempt(id, r)
	if refusal != nil {
		return Client{}, refusal
	}
	client, err := e.client(ctx, id)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return client, invalidClient()
	case err != nil:
		giveBack()
		return client, unavailable(err)
	case !slices.Contains(client.Certificates, r.Certificate):
		return client, invalidClient()
	}
	giveBack()
	return client, nil
}

func (e *Endpoint) bySecret(ctx context.Context, c credentials, r TokenRequest) (Client, *TokenError) {
	recalled := e.secrets.recall(c.id, c.secret)
	giveBack := func() {}
	if recalled == "" {
		var refusal *TokenError
		if giveBack, refusal = e.attempt(c.id, r); refusal != nil {
			return Client{}, refusal
		}
	}
	client, err := e.client(ctx, c.id)
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		giveBack()
		return client, unavailable(err)
	}
	hash, err := e.check(ctx, c.secret, recalled, e.hashes(client))
	switch {
	case err != nil:
		giveBack()
		return client, unavailable(err)
	case hash == "":
		return client, invalidClient()
	}
	giveBack()
	e.secrets.remember(c.id, c.secret, hash)
	return client, nil
}

// attempt counts an attempt to authenticate, or refuses it unseen.
func (e *Endpoint) attempt(id string, r TokenRequest) (giveBack func(), refusal *TokenError) {
	giveBack, wait := e.limit.take(r.Address, id, e.opts.Now())
	if giveBack == nil {
		refusal = refuse(TooManyFailures, "Too many attempts to authenticate have failed.")
		refusal.RetryAfter = wait
	}
	return giveBack, refusal
}

// client reads an enabled client.
func (e *Endpoint) client(ctx context.Context, id string) (Client, error) {
	client, err := e.opts.Clients.Get(ctx, id)
	if err == nil && client.RevokedAt != nil {
		return Client{}, storage.ErrNotFound
	}
	return client, err
}

// hashes are those that a client's secret may have.
func (e *Endpoint) hashes(client Client) []string {
	var list []string
	if client.SecretHash != "" {
		list = append(list, client.SecretHash)
	}
	if client.OldSecretHash != "" && e.opts.Now().Before(client.OldSecretUntil) {
		list = append(list, client.OldSecretHash)
	}
	if len(list) == 0 {
		list = append(list, unknownHash)
	}
	return list
}

// check is the hash of those that the secret has, "" when it has none of them.
// A secret that is known to be of a hash has no other one, so it is not hashed.
func (e *Endpoint) check(ctx context.Context, secret, recalled string, hashes []string) (string, error) {
	if slices.Contains(hashes, recalled) {
		return recalled, nil
	}
	if recalled != "" {
		return "", nil
	}
	for _, hash := range hashes {
		ok, err := e.secrets.matches(ctx, secret, hash)
		if err != nil {
			return "", err
		}
		if ok && hash != unknownHash {
			return hash, nil
		}
	}
	return "", nil
}

// unavailable is for what is no fault of the request.
func unavailable(err error) *TokenError {
	if errors.Is(err, errBusy) {
		return &TokenError{Code: Busy, Description: "Too many clients authenticate at once; try again.", RetryAfter: time.Second}
	}
	return &TokenError{Code: Unavailable, Description: "No token can be issued now; try again.", RetryAfter: time.Second, cause: err}
}
