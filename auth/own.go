package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwt"

	"spendhook/auth/keys"
)

// Mint returns an access token (JWT, ES256) for grant, valid from now. It refuses a scope
// that no token can have, and a TTL below a second, the resolution of a token's times.
func Mint(ctx context.Context, signer *keys.Signer, grant Grant, now time.Time) (string, error) {
	if err := grant.check(); err != nil {
		return "", err
	}
	token, err := claims(signer.Issuers()[0], grant, now).Build()
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	signed, err := signer.Sign(ctx, token)
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	return signed, nil
}

// ourselves is the issuer of our own tokens.
type ourselves struct {
	keys    *keys.Signer
	issuers []string
	now     func() time.Time
	refresh throttle
}

func newOurselves(signer *keys.Signer, now func() time.Time) *ourselves {
	return &ourselves{
		keys: signer, issuers: signer.Issuers(), now: now, refresh: throttle{every: keys.SyncInterval / 2},
	}
}

func (o *ourselves) issues(issuer string) bool { return slices.Contains(o.issuers, issuer) }

// find returns the key with the id. For an unknown id it reads the database, because the key
// may be new, but at a bounded rate, because callers can invent ids.
func (o *ourselves) find(ctx context.Context, id string) (verifyingKey, bool) {
	if key, ok := o.lookup(id); ok {
		return key, true
	}
	o.refresh.do(ctx, o.now(), func(ctx context.Context) { _ = o.keys.Sync(ctx) }) // the regular one logs failures
	return o.lookup(id)
}

func (o *ourselves) lookup(id string) (verifyingKey, bool) {
	key, _ := o.keys.Lookup(id)
	return verifyingKey{key: key, algorithms: es256}, key != nil
}

func (o *ourselves) settled() bool {
	_, settled := o.keys.Lookup("")
	return settled
}

func (o *ourselves) rules() []jwt.ParseOption { return []jwt.ParseOption{jwt.WithAudience(audience)} }

// caller reads the claims of a token of our own.
func (o *ourselves) caller(token jwt.Token) (*Caller, error) {
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
