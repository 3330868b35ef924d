package auth

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwt"

	"spendhook/auth/keys"
)

const (
	audience = "spendhook" // of every access token of our own

	scopeClaim   = "scope"        // space-separated, RFC 8693 section 4.2
	companyClaim = "company_uuid" // absent when the token is tied to none
	clientClaim  = "client_id"    // RFC 8693 section 4.3
	confirmation = "cnf"          // RFC 7800
	thumbprint   = "x5t#S256"     // its member, RFC 8705 section 3.1
)

// The scopes that a token may carry.
var knownScopes = []string{
	"subscribers:read", "subscribers:write", "events:read", "events:write",
	"deliveries:read", "deliveries:write", "cards:read", "cards:write",
	"reimbursements:read", "locations:read", "billing:read", ScopePlatform, ScopeOperator,
}

// The scopes that reach beyond one company.
const (
	ScopePlatform = "platform"
	ScopeOperator = "operator"
)

// KnownScopes lists the scopes that a token may carry.
func KnownScopes() []string { return slices.Clone(knownScopes) }

// CheckScopes reports a scope that no token may carry.
func CheckScopes(scopes []string) error {
	for _, scope := range scopes {
		if !slices.Contains(knownScopes, scope) {
			return fmt.Errorf("unknown scope %q, known are %q", scope, knownScopes)
		}
	}
	return nil
}

// Grant is the content of a minted token. A nil Company ties the token to no company. An
// empty ClientID means no client, an empty Thumbprint ("x5t#S256") no bound certificate.
type Grant struct {
	Subject    string
	ClientID   string
	Company    *uuid.UUID
	Scopes     []string
	Thumbprint string
	TTL        time.Duration
}

func (g Grant) check() error {
	if g.TTL < time.Second || g.TTL > keys.MaxTTL {
		return fmt.Errorf("ttl must be 1s to %v", keys.MaxTTL)
	}
	return CheckScopes(g.Scopes)
}

func claims(issuer string, grant Grant, now time.Time) *jwt.Builder {
	b := jwt.NewBuilder().
		Issuer(issuer).
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

// claim reads a text claim; an absent one leaves it empty.
func claim(token jwt.Token, name string, into *string) error {
	if token.Has(name) && token.Get(name, into) != nil {
		return ErrInvalidToken
	}
	return nil
}

// company reads a UUID claim; an absent one leaves it nil.
func company(token jwt.Token, name string, into **uuid.UUID) error {
	if !token.Has(name) {
		return nil
	}
	var text string
	if err := token.Get(name, &text); err != nil {
		return ErrInvalidToken
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return ErrInvalidToken
	}
	*into = &id
	return nil
}

// confirmed reads the thumbprint that a token is bound to. It refuses a token with any other
// confirmation, since the daemon could not check that one.
func confirmed(token jwt.Token, into *string) error {
	if !token.Has(confirmation) {
		return nil
	}
	var members map[string]any
	if err := token.Get(confirmation, &members); err != nil {
		return ErrInvalidToken
	}
	text, ok := members[thumbprint].(string)
	if !ok || text == "" || len(members) > 1 {
		return ErrInvalidToken
	}
	*into = text
	return nil
}
