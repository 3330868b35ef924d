package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"

	"spendhook/internal/pause"
)

const (
	jwksEvery   = 5 * time.Minute
	jwksRetry   = 10 * time.Second // after a failure, and for ids that are not known
	jwksTimeout = 5 * time.Second
	maxJWKS     = 1 << 20 // bytes
	maxJWKSKeys = 100
	minRSABits  = 2048
	issuerSkew  = 30 * time.Second // how far its clock may be from ours
	defaultKeep = 24 * time.Hour
)

// IssuerOptions configures NewIssuer. The first three are required.
type IssuerOptions struct {
	Issuer   string // the "iss" of its tokens
	JWKSURL  string // where its public keys are
	Audience string // the "aud" that its tokens must have
	// Scopes bound what a token of this issuer may carry; ScopeClaim names the
	// claim that says what it does: text, separated by spaces, or a list.
	Scopes     []string
	ScopeClaim string // "" means "scope"
	// CompanyClaim names the claim with the company's UUID; "" means
	// "company_uuid". A token without it needs the scope platform or operator.
	CompanyClaim string
	// Keep is how long the last fetched keys are used while they cannot be
	// fetched; 0 means a day.
	Keep time.Duration

	Client  *http.Client // nil means one that follows no redirect
	Now     func() time.Time
	Logger  *slog.Logger // nil discards
	Metrics *Metrics     // nil counts unseen
}

// Issuer is another issuer of tokens, of which we keep the public keys. It is
// safe for concurrent use.
type Issuer struct {
	opts    IssuerOptions
	fetched atomic.Pointer[jwks]
	failing atomic.Bool
	refresh throttle
}

// jwks is immutable.
type jwks struct {
	keys map[string]verifyingKey // by id
	at   time.Time
}

// NewIssuer knows no key until Run, or the first token, has fetched them. The
// error is a scope that no token can have.
func NewIssuer(opts IssuerOptions) (*Issuer, error) {
	if err := checkScopes(opts.Scopes); err != nil {
		return nil, fmt.Errorf("issuer %s: %w", opts.Issuer, err)
	}
	if opts.ScopeClaim == "" {
		opts.ScopeClaim = scopeClaim
	}
	if opts.CompanyClaim == "" {
		opts.CompanyClaim = companyClaim
	}
	if opts.Keep <= 0 {
		opts.Keep = defaultKeep
	}
	if opts.Client == nil {
		opts.Client = &http.Client{}
	}
	client := *opts.Client
	client.Timeout = jwksTimeout
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	opts.Client = &client
	if opts.Now == nil {
		opts.Now = time.Now //nolint:forbidigo // the nil default
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	opts.Metrics.watchIssuer(opts.Issuer)
	return &Issuer{opts: opts, refresh: throttle{every: jwksRetry}}, nil
}

// Run fetches the keys, now and then again, until ctx ends.
func (i *Issuer) Run(ctx context.Context) {
	for {
		wait := jwksEvery
		if i.fetch(ctx) != nil {
			wait = jwksRetry
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// fetch replaces the keys by what the address answers, and keeps them when that
// is nothing of use.
func (i *Issuer) fetch(ctx context.Context) error {
	set, err := i.download(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // stopping, or a request's short wait: says nothing
	}
	was := i.failing.Swap(err != nil)
	if err != nil {
		i.opts.Metrics.failures.WithLabelValues(i.opts.Issuer).Inc()
		if !was {
			i.opts.Logger.Error("the keys of an issuer cannot be fetched, the last ones go on being used",
				"issuer", i.opts.Issuer, "keep_ms", i.opts.Keep.Milliseconds(), "exception.message", err)
		}
		return err
	}
	if was {
		i.opts.Logger.Info("the keys of an issuer are fetched again", "issuer", i.opts.Issuer)
	}
	i.fetched.Store(set)
	i.opts.Metrics.fetched(i.opts.Issuer, set.at)
	return nil
}

func (i *Issuer) download(ctx context.Context) (*jwks, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.opts.JWKSURL, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := i.opts.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d", i.opts.JWKSURL, resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxJWKS {
		return nil, fmt.Errorf("%s answered more than %d bytes", i.opts.JWKSURL, maxJWKS)
	}
	keys, err := parseJWKS(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.opts.JWKSURL, err)
	}
	return &jwks{keys: keys, at: i.opts.Now()}, nil
}

// parseJWKS takes the keys of a JWK set (RFC 7517) that tokens may be signed
// with. A set with others beside them is fine, one without any is not.
func parseJWKS(text []byte) (map[string]verifyingKey, error) {
	set, err := jwk.Parse(text, jwk.WithIgnoreParseError(true))
	if err != nil {
		return nil, errors.New("is not a JWK set")
	}
	keys := map[string]verifyingKey{}
	for n := range min(set.Len(), maxJWKSKeys) {
		key, _ := set.Key(n)
		id, _ := key.KeyID()
		algorithms := algorithmsOf(key)
		if id == "" || len(algorithms) == 0 {
			continue
		}
		public, err := key.PublicKey()
		if err != nil {
			continue
		}
		keys[id] = verifyingKey{key: public, algorithms: algorithms}
	}
	if len(keys) == 0 {
		return nil, errors.New("has no key, with an id, for a signature that is accepted")
	}
	return keys, nil
}

// algorithmsOf are the signature algorithms that a key may be used for: those
// of its kind, and only its own when it names one. Symmetric keys have none.
func algorithmsOf(key jwk.Key) []jwa.SignatureAlgorithm {
	if usage, ok := key.KeyUsage(); ok && usage != string(jwk.ForSignature) {
		return nil
	}
	algorithms := algorithmsOfKind(key)
	own, named := key.Algorithm()
	if !named {
		return algorithms
	}
	for _, a := range algorithms {
		if a.String() == own.String() {
			return []jwa.SignatureAlgorithm{a}
		}
	}
	return nil
}

func algorithmsOfKind(key jwk.Key) []jwa.SignatureAlgorithm {
	switch k := key.(type) {
	case jwk.ECDSAPublicKey:
		switch curve, _ := k.Crv(); curve {
		case jwa.P256():
			return es256
		case jwa.P384():
			return []jwa.SignatureAlgorithm{jwa.ES384()}
		}
	case jwk.RSAPublicKey:
		if modulus, ok := k.N(); ok && len(modulus)*8 >= minRSABits {
			return []jwa.SignatureAlgorithm{jwa.RS256(), jwa.PS256()}
		}
	case jwk.OKPPublicKey:
		if curve, _ := k.Crv(); curve == jwa.Ed25519() {
			return []jwa.SignatureAlgorithm{jwa.EdDSA()}
		}
	}
	return nil
}

func (i *Issuer) issues(issuer string) bool { return issuer == i.opts.Issuer }

// find is the key of an id. One that is not known may be new: the keys are
// fetched, but not for everybody who makes up ids.
func (i *Issuer) find(ctx context.Context, id string) (verifyingKey, bool) {
	if key, ok := i.lookup(id); ok {
		return key, true
	}
	i.refresh.do(ctx, i.opts.Now(), func(ctx context.Context) { _ = i.fetch(ctx) }) // it counts and logs failures
	return i.lookup(id)
}

func (i *Issuer) lookup(id string) (verifyingKey, bool) {
	if !i.settled() {
		return verifyingKey{}, false
	}
	key, ok := i.fetched.Load().keys[id]
	return key, ok
}

func (i *Issuer) settled() bool {
	set := i.fetched.Load()
	return set != nil && i.opts.Now().Sub(set.at) <= i.opts.Keep
}

func (i *Issuer) rules() []jwt.ParseOption {
	return []jwt.ParseOption{jwt.WithAudience(i.opts.Audience), jwt.WithAcceptableSkew(issuerSkew)}
}

// caller reads the claims of a token. Its subject and client are those of this
// issuer: no other issuer's, nor our own, can be the same.
func (i *Issuer) caller(token jwt.Token) (*Caller, error) {
	c := &Caller{Issuer: i.opts.Issuer}
	var subject, client string
	subject, _ = token.Subject()
	c.Expires, _ = token.Expiration()
	err := errors.Join(
		claim(token, clientClaim, &client),
		company(token, i.opts.CompanyClaim, &c.Company),
		confirmed(token, &c.Thumbprint),
	)
	scopes, scopesErr := scopesIn(token, i.opts.ScopeClaim)
	if err := errors.Join(err, scopesErr); err != nil || subject == "" {
		return nil, ErrInvalidToken
	}
	c.Subject = i.opts.Issuer + "|" + subject
	if client != "" {
		c.ClientID = i.opts.Issuer + "|" + client
	}
	for _, scope := range scopes {
		if slices.Contains(i.opts.Scopes, scope) {
			c.Scopes = append(c.Scopes, scope)
		}
	}
	if c.Company == nil && !c.May(scopePlatform) && !c.May(scopeOperator) {
		return nil, ErrInvalidToken // a claim of another name must not open every company
	}
	return c, nil
}

// scopesIn reads a claim that is text, separated by spaces, or a list of texts.
func scopesIn(token jwt.Token, name string) ([]string, error) {
	if !token.Has(name) {
		return nil, nil
	}
	var value any
	if err := token.Get(name, &value); err != nil {
		return nil, ErrInvalidToken
	}
	switch value := value.(type) {
	case string:
		return strings.Fields(value), nil
	case []any:
		scopes := make([]string, 0, len(value))
		for _, item := range value {
			scope, ok := item.(string)
			if !ok {
				return nil, ErrInvalidToken
			}
			scopes = append(scopes, scope)
		}
		return scopes, nil
	}
	return nil, ErrInvalidToken
}
