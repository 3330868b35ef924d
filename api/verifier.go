package api

import (
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
)

const (
	scopeClaim   = "scope"        // space-separated, RFC 8693 section 4.2
	companyClaim = "company_uuid" // absent when the token is tied to none
	maxToken     = 8 << 10        // bytes
	cachedTokens = 10_000
)

func (k *KeyStore) claims(grant Grant, now time.Time) *jwt.Builder {
	b := jwt.NewBuilder().
		Issuer(k.issuer).
		Audience([]string{audience}).
		Subject(grant.Subject).
		JwtID(uuid.NewString()).
		IssuedAt(now).
		Expiration(now.Add(grant.TTL)).
		Claim(scopeClaim, strings.Join(grant.Scopes, " "))
	if grant.Company != nil {
		b = b.Claim(companyClaim, grant.Company.String())
	}
	return b
}

// caller is who sends a request, as the token says.
type caller struct {
	subject string
	company *uuid.UUID // nil when the token is tied to none
	scopes  []string
	expires time.Time
}

func (c *caller) may(scope string) bool { return slices.Contains(c.scopes, scope) }

// Verifier checks access tokens: the signature (ES256 with a key of the store
// and nothing else), "iss", "aud", "exp" and "nbf". It remembers the tokens it
// has verified, by their hash and until they expire, since a signature costs a
// hundred times what a look-up does. It is safe for concurrent use.
type Verifier struct {
	keys   jwk.Set
	issuer string
	now    func() time.Time
	cache  *lru.Cache[[sha256.Size]byte, *caller]
}

// NewVerifier accepts the tokens that keys mints; nil now means time.Now.
func NewVerifier(keys *KeyStore, now func() time.Time) *Verifier {
	if now == nil {
		now = time.Now //nolint:forbidigo // the nil default
	}
	cache, err := lru.New[[sha256.Size]byte, *caller](cachedTokens)
	set := jwk.NewSet()
	if err := errors.Join(err, set.AddKey(keys.public)); err != nil {
		panic(err) // only a cache of no size, or a key twice
	}
	return &Verifier{keys: set, issuer: keys.issuer, now: now, cache: cache}
}

var errToken = errors.New("the token is not valid")

func (v *Verifier) verify(token string) (*caller, error) {
	if len(token) > maxToken {
		return nil, errToken
	}
	hash := sha256.Sum256([]byte(token))
	if c, ok := v.cache.Get(hash); ok && v.now().Before(c.expires) {
		return c, nil
	}
	c, err := v.parse(token)
	if err != nil {
		v.cache.Remove(hash)
		return nil, err
	}
	v.cache.Add(hash, c)
	return c, nil
}

// parse verifies a token. The key set pins the algorithm: each key is only
// tried for the "alg" and "kid" that it has itself.
func (v *Verifier) parse(token string) (*caller, error) {
	parsed, err := jwt.Parse([]byte(token),
		jwt.WithKeySet(v.keys),
		jwt.WithResetValidators(true), // "iat" is no reason to refuse, clocks differ
		jwt.WithValidator(jwt.IsExpirationValid()),
		jwt.WithValidator(jwt.IsNbfValid()),
		jwt.WithRequiredClaim(jwt.ExpirationKey),
		jwt.WithIssuer(v.issuer),
		jwt.WithAudience(audience),
		jwt.WithClock(jwt.ClockFunc(v.now)),
	)
	if err != nil {
		return nil, errToken // the library's text may repeat parts of the token
	}
	return callerFrom(parsed)
}

func callerFrom(token jwt.Token) (*caller, error) {
	c := &caller{}
	c.subject, _ = token.Subject()
	c.expires, _ = token.Expiration()
	var scope string
	if err := claim(token, scopeClaim, &scope); err != nil {
		return nil, err
	}
	c.scopes = strings.Fields(scope)
	if !token.Has(companyClaim) {
		return c, nil
	}
	var text string
	if err := claim(token, companyClaim, &text); err != nil {
		return nil, err
	}
	company, err := uuid.Parse(text)
	if err != nil {
		return nil, errToken
	}
	c.company = &company
	return c, nil
}

// claim reads a text claim; an absent one leaves it empty.
func claim(token jwt.Token, name string, into *string) error {
	if token.Has(name) && token.Get(name, into) != nil {
		return errToken
	}
	return nil
}
