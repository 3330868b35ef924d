package auth

import (
	"context"
	"fmt"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"

	"spendhook/auth/keys"
)

// Mint returns an access token (JWT, ES256) for grant, valid from now. It refuses an unknown scope.
// The TTL must be a second, the resolution of the times of a token, to keys.MaxTTL.
func Mint(signer *keys.Signer, grant Grant, now time.Time) (string, error) {
	if err := grant.check(); err != nil {
		return "", err
	}
	token, err := claims(signer.Issuer(), grant, now).Build()
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	signed, err := signer.Sign(token)
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	return signed, nil
}

// ownIssuer verifies the tokens of the built-in issuer.
type ownIssuer struct{ keys *keys.Signer }

func (o ownIssuer) lookup(id string) (key jwk.Key, loaded bool) { return o.keys.Lookup(id) }

func (o ownIssuer) load(ctx context.Context) error { return o.keys.Sync(ctx) }

func (o ownIssuer) rules() []jwt.ParseOption { return []jwt.ParseOption{jwt.WithAudience(audience)} }

func (o ownIssuer) caller(token jwt.Token) (*Caller, error) {
	var scope string
	if readClaim(token, scopeClaim, &scope) != nil { // RFC 9068 allows no list of scopes
		return nil, ErrInvalidToken
	}
	return readCaller(token, scopeClaim, companyClaim)
}
