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
	audience = "spendhook" // of every access token of the built-in issuer

	scopeClaim   = "scope"        // space-separated, RFC 8693 section 4.2
	companyClaim = "company_uuid" // absent when the token is tied to no company
	clientClaim  = "client_id"    // RFC 8693 section 4.3
	confirmation = "cnf"          // RFC 7800
	thumbprint   = "x5t#S256"     // member of cnf, RFC 8705 section 3.1
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
// empty ClientID means no client. An empty Thumbprint ("x5t#S256") binds the token to no certificate.
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
