package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"golang.org/x/sync/singleflight"

	"spendhook/auth/keys"
)

// Mint returns an access token (JWT, ES256) for grant, valid from now. It refuses a scope
// that no token can have, and a TTL below a second, the resolution of a token's times, or above
// keys.MaxTTL.
func Mint(signer *keys.Signer, grant Grant, now time.Time) (string, error) {
	if err := grant.check(); err != nil {
		return "", err
	}
	token, err := claims(signer.Issuers()[0], grant, now).Build()
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	signed, err := signer.Sign(token)
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	return signed, nil
}

// ownIssuer verifies our own tokens.
type ownIssuer struct {
	keys    *keys.Signer
	issuers []string
	now     func() time.Time
	refresh throttle
}

func newOwnIssuer(signer *keys.Signer, now func() time.Time) *ownIssuer {
	return &ownIssuer{
		keys: signer, issuers: signer.Issuers(), now: now, refresh: throttle{every: keys.SyncInterval / 2},
	}
}

func (o *ownIssuer) issues(issuer string) bool { return slices.Contains(o.issuers, issuer) }

// find returns the key with the id. For an unknown id it reads the database, because the key
// may be new, but at a bounded rate, because callers can invent ids.
func (o *ownIssuer) find(ctx context.Context, id string) jwk.Key {
	if key := o.lookup(id); key != nil {
		return key
	}
	o.refresh.do(ctx, o.now(), func(ctx context.Context) { _ = o.keys.Sync(ctx) }) // the Sync at intervals logs failures
	return o.lookup(id)
}

func (o *ownIssuer) lookup(id string) jwk.Key {
	key, _ := o.keys.Lookup(id)
	return key
}

func (o *ownIssuer) loaded() bool {
	_, loaded := o.keys.Lookup("")
	return loaded
}

func (o *ownIssuer) rules() []jwt.ParseOption { return []jwt.ParseOption{jwt.WithAudience(audience)} }

// caller reads the claims of a token of our own.
func (o *ownIssuer) caller(token jwt.Token) (*Caller, error) {
	c := &Caller{}
	c.Issuer, _ = token.Issuer()
	c.Subject, _ = token.Subject()
	c.Expires, _ = token.Expiration()
	var scope string
	if err := errors.Join(
		claim(token, scopeClaim, &scope),
		claim(token, clientClaim, &c.ClientID),
		company(token, companyClaim, &c.Company),
		confirmed(token, &c.Thumbprint),
	); err != nil {
		return nil, ErrInvalidToken
	}
	c.Scopes = strings.Fields(scope)
	return c, nil
}

// refreshTimeout bounds how long a request waits for keys that may be new.
const refreshTimeout = time.Second

// throttle runs a function at most once per interval. Callers that come while it runs wait
// for its result.
type throttle struct {
	every time.Duration

	calls singleflight.Group
	last  time.Time // begin of the last call; only a call uses it
}

// do calls run, or waits for a call under way. It does nothing if the last call began less
// than the interval ago.
func (t *throttle) do(ctx context.Context, now time.Time, run func(context.Context)) {
	done := t.calls.DoChan("", func() (any, error) {
		if t.last.IsZero() || now.Sub(t.last).Abs() >= t.every {
			t.last = now
			// run serves all waiting callers, so the first caller's cancellation must not end it.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
			defer cancel()
			run(ctx)
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}
