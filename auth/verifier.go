package auth

import (
	"crypto/sha256"
	"errors"
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
	clientClaim  = "client_id"    // RFC 8693 section 4.3
	confirmation = "cnf"          // RFC 7800
	thumbprint   = "x5t#S256"     // its member, RFC 8705 section 3.1
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
	if grant.ClientID != "" {
		b = b.Claim(clientClaim, grant.ClientID)
	}
	if grant.Thumbprint != "" {
		b = b.Claim(confirmation, map[string]string{thumbprint: grant.Thumbprint})
	}
	return b
}

// Verifier checks access tokens: the signature (ES256 with a key of the store
// and nothing else), "iss", "aud", "exp" and "nbf". It remembers the tokens it
// has verified, by their hash and until they expire, since a signature costs a
// hundred times what a look-up does. It is safe for concurrent use.
type Verifier struct {
	keys   jwk.Set
	issuer string
	now    func() time.Time
	cache  *lru.Cache[[sha256.Size]byte, *Caller]
}

// NewVerifier accepts the tokens that keys mints; nil now means time.Now.
func NewVerifier(keys *KeyStore, now func() time.Time) *Verifier {
	if now == nil {
		now = time.Now //nolint:forbidigo // the nil default
	}
	cache, err := lru.New[[sha256.Size]byte, *Caller](cachedTokens)
	set := jwk.NewSet()
	if err := errors.Join(err, set.AddKey(keys.public)); err != nil {
		panic(err) // only a cache of no size, or a key twice
	}
	return &Verifier{keys: set, issuer: keys.issuer, now: now, cache: cache}
}

// ErrInvalidToken is every reason to refuse a token; which one it was is not
// told, since the answer would help to forge one.
var ErrInvalidToken = errors.New("the token is not valid")

// Verify returns whom an access token names, or ErrInvalidToken. The Caller is
// shared by all requests with the token and must not be modified.
func (v *Verifier) Verify(token string) (*Caller, error) {
	if len(token) > maxToken {
		return nil, ErrInvalidToken
	}
	hash := sha256.Sum256([]byte(token))
	if c, ok := v.cache.Get(hash); ok && v.now().Before(c.Expires) {
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
func (v *Verifier) parse(token string) (*Caller, error) {
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
		return nil, ErrInvalidToken // the library's text may repeat parts of the token
	}
	return callerFrom(parsed)
}

func callerFrom(token jwt.Token) (*Caller, error) {
	c := &Caller{}
	c.Issuer, _ = token.Issuer()
	c.Subject, _ = token.Subject()
	c.Expires, _ = token.Expiration()
	var scope string
	if err := claim(token, scopeClaim, &scope); err != nil {
		return nil, err
	}
	c.Scopes = strings.Fields(scope)
	if err := errors.Join(claim(token, clientClaim, &c.ClientID), confirmed(token, &c.Thumbprint)); err != nil {
		return nil, ErrInvalidToken
	}
	if !token.Has(companyClaim) {
		return c, nil
	}
	var text string
	if err := claim(token, companyClaim, &text); err != nil {
		return nil, err
	}
	company, err := uuid.Parse(text)
	if err != nil {
		return nil, ErrInvalidToken
	}
	c.Company = &company
	return c, nil
}

// claim reads a text claim; an absent one leaves it empty.
func claim(token jwt.Token, name string, into *string) error {
	if token.Has(name) && token.Get(name, into) != nil {
		return ErrInvalidToken
	}
	return nil
}

// confirmed reads the thumbprint that a token is bound to. A token that is
// bound to anything else is one that we cannot check.
func confirmed(token jwt.Token, into *string) error {
	if !token.Has(confirmation) {
		return nil
	}
	var members map[string]any
	if err := token.Get(confirmation, &members); err != nil {
		return ErrInvalidToken
	}
	text, ok := members[thumbprint].(string)
	if !ok || text == "" {
		return ErrInvalidToken
	}
	*into = text
	return nil
}
