package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/pause"
)

const (
	jwksEvery   = 5 * time.Minute
	jwksRetry   = 10 * time.Second // after a failure, and for unknown key ids
	jwksTimeout = 5 * time.Second
	maxJWKS     = 1 << 20          // bytes
	issuerSkew  = 30 * time.Second // maximum difference between the clocks of the issuer and this machine
	jwksKeep    = 24 * time.Hour   // how long the last keys stay in use while no fetch succeeds
)

// Issuer says which tokens of another issuer are accepted. The first three are required.
type Issuer struct {
	Name     string // the "iss" of its tokens
	JWKSURL  string // address of its public keys
	Audience string // the "aud" that its tokens must have
	// Scopes are the scopes that tokens of this issuer may have; others are ignored.
	// ScopeClaim names the claim with the scopes: a list, or text separated by spaces.
	Scopes     []string
	ScopeClaim string // "" means "scope"
	// CompanyClaim names the claim with the company's UUID; "" means
	// "company_uuid". A token without it needs the scope platform or operator.
	CompanyClaim string
}

// externalIssuer verifies the tokens of another issuer with its public keys, which it
// caches. It is safe for concurrent use.
type externalIssuer struct {
	Issuer

	client  *http.Client
	now     func() time.Time
	logger  *slog.Logger
	metrics *metrics
	fetched atomic.Pointer[jwks]
	failing atomic.Bool
}

// jwks has the keys that were fetched last. It is immutable.
type jwks struct {
	keys map[string]jwk.Key // by id
	at   time.Time
}

func newExternalIssuer(opts Issuer, of VerifierOptions, metrics *metrics) (*externalIssuer, error) {
	if err := CheckScopes(opts.Scopes); err != nil {
		return nil, fmt.Errorf("issuer %s: %w", opts.Name, err)
	}
	opts.ScopeClaim = cmp.Or(opts.ScopeClaim, scopeClaim)
	opts.CompanyClaim = cmp.Or(opts.CompanyClaim, companyClaim)
	client := &http.Client{
		Timeout:       jwksTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	metrics.failures.WithLabelValues(opts.Name)
	metrics.age.WithLabelValues(opts.Name)
	return &externalIssuer{Issuer: opts, client: client, now: of.Now, logger: of.Logger, metrics: metrics}, nil
}

// run fetches the keys at intervals until ctx ends.
func (i *externalIssuer) run(ctx context.Context) {
	for {
		wait := jwksEvery
		if i.load(ctx) != nil {
			wait = jwksRetry
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// load downloads the keys. After an error the last keys stay in use.
func (i *externalIssuer) load(ctx context.Context) error {
	keys, err := i.download(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // a shutdown, or loadTimeout is over: no failure of the issuer
	}
	was := i.failing.Swap(err != nil)
	if err != nil {
		i.metrics.failures.WithLabelValues(i.Name).Inc()
		if !was {
			i.logger.Error("fetch of the keys of an issuer failed; the last keys stay in use for up to a day",
				"issuer", i.Name, "exception.message", err)
		}
		return err
	}
	if was {
		i.logger.Info("the keys of an issuer can be fetched again", "issuer", i.Name)
	}
	now := i.now()
	i.fetched.Store(&jwks{keys: keys, at: now})
	i.metrics.age.WithLabelValues(i.Name).Set(float64(now.Unix()))
	return nil
}

func (i *externalIssuer) download(ctx context.Context) (map[string]jwk.Key, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.JWKSURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d", i.JWKSURL, resp.StatusCode)
	}
	set, err := jwk.ParseReader(http.MaxBytesReader(nil, resp.Body, maxJWKS), jwk.WithIgnoreParseError(true))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.JWKSURL, err)
	}
	return verifyingKeys(set)
}

// verifyingKeys returns the public keys of a JWK set (RFC 7517) that have an id. It ignores
// symmetric keys. The library drops keys that it cannot read, and RSA keys of less than 2,048 bits.
func verifyingKeys(set jwk.Set) (map[string]jwk.Key, error) {
	keys := map[string]jwk.Key{}
	for n := range set.Len() {
		key, _ := set.Key(n)
		id, _ := key.KeyID()
		if _, asymmetric := key.(jwk.AsymmetricKey); !asymmetric || id == "" {
			continue
		}
		if public, err := key.PublicKey(); err == nil {
			keys[id] = public
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the JWK set has no public key with an id")
	}
	return keys, nil
}

func (i *externalIssuer) lookup(id string) (key jwk.Key, loaded bool) {
	set := i.fetched.Load()
	if set == nil || i.now().Sub(set.at) > jwksKeep {
		return nil, false
	}
	return set.keys[id], true
}

func (i *externalIssuer) rules() []jwt.ParseOption {
	return []jwt.ParseOption{jwt.WithAudience(i.Audience), jwt.WithAcceptableSkew(issuerSkew)}
}

// caller reads the claims of a token. Subject and client are prefixed with the issuer's
// name, so that they differ from those of all other issuers.
func (i *externalIssuer) caller(token jwt.Token) (*Caller, error) {
	c, err := readCaller(token, i.ScopeClaim, i.CompanyClaim)
	if err != nil || c.Subject == "" {
		return nil, ErrInvalidToken
	}
	c.Subject = i.Name + "|" + c.Subject
	if c.ClientID != "" {
		c.ClientID = i.Name + "|" + c.ClientID
	}
	c.Scopes = slices.DeleteFunc(c.Scopes, func(scope string) bool { return !slices.Contains(i.Scopes, scope) })
	if c.Company == nil && !c.May(ScopePlatform) {
		return nil, ErrInvalidToken // a wrong CompanyClaim must not give access to every company
	}
	return c, nil
}

// metrics are about the fetches of the keys of other issuers.
type metrics struct {
	failures *prometheus.CounterVec
	age      *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
		failures: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_jwks_refresh_failures_total",
			Help: "Failed fetches of the keys of another issuer.",
		}, []string{"issuer"}),
		age: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_jwks_fetched_timestamp_seconds",
			Help: "When the keys of another issuer were last fetched, in Unix time; 0 means never.",
		}, []string{"issuer"}),
	}
}
