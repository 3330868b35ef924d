// Package auth authenticates callers. It verifies access tokens (JWTs of RFC 9068) of the built-in
// issuer and of other issuers. It signs the tokens of the built-in issuer with the keys of package keys.
package auth

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwt"
)

// Caller is the sender of a request, as the verified access token names the sender. It is
// immutable.
type Caller struct {
	Issuer   string     // the token's "iss"
	KeyID    string     // of the key that signed the token
	Subject  string     // the user or program of the token, unique over all issuers
	ClientID string     // the OAuth client, unique over all issuers; "" when the token names none
	Company  *uuid.UUID // nil when the token is tied to no company
	Scopes   []string
	// Thumbprint is the "x5t#S256" of the client certificate that the token is
	// bound to (RFC 8705 section 3.1); "" when the token is bound to no certificate.
	Thumbprint string
	Expires    time.Time
}

// May reports whether the token carries scope. ScopeOperator is for the token's company, so a token of none needs
// ScopePlatform for it.
func (c *Caller) May(scope string) bool {
	return slices.Contains(c.Scopes, scope) && (scope != ScopeOperator || c.Company != nil || slices.Contains(c.Scopes, ScopePlatform))
}

// readCaller reads the claims of a verified token. The arguments name the claims with the scopes and
// the company. Each of these claims may be absent. An invalid value is an error.
func readCaller(token jwt.Token, scopeClaim, companyClaim string) (*Caller, error) {
	c := &Caller{}
	c.Issuer, _ = token.Issuer()
	c.Subject, _ = token.Subject()
	c.Expires, _ = token.Expiration()
	var company string
	var bound map[string]any
	var scopes any
	err := errors.Join(
		readClaim(token, clientClaim, &c.ClientID),
		readClaim(token, companyClaim, &company),
		readClaim(token, confirmation, &bound),
		readClaim(token, scopeClaim, &scopes),
	)
	if err == nil && token.Has(companyClaim) {
		c.Company = new(uuid.UUID)
		*c.Company, err = uuid.Parse(company)
		if *c.Company == uuid.Nil {
			return nil, ErrInvalidToken // some issuers write the nil UUID for "no company"
		}
	}
	var readable bool
	c.Scopes, readable = listScopes(scopes)
	c.Thumbprint, _ = bound[thumbprint].(string)
	if err != nil || !readable || token.Has(confirmation) && (c.Thumbprint == "" || len(bound) > 1) {
		return nil, ErrInvalidToken // another confirmation method than a certificate cannot be checked
	}
	return c, nil
}

// readClaim reads a claim; an absent one changes nothing.
func readClaim[T any](token jwt.Token, name string, into *T) error {
	if !token.Has(name) {
		return nil
	}
	return token.Get(name, into)
}

// listScopes reads scopes from text, in which spaces separate them, or from a list of texts.
func listScopes(claim any) (scopes []string, ok bool) {
	switch claim := claim.(type) {
	case nil:
		return nil, true
	case string:
		return strings.Fields(claim), true
	case []any:
		for _, item := range claim {
			scope, ok := item.(string)
			if !ok {
				return nil, false
			}
			scopes = append(scopes, scope)
		}
		return scopes, true
	}
	return nil, false
}
