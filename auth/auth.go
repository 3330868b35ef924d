// Package auth authenticates callers. It verifies access tokens (JWTs of RFC 9068), its own
// and those of other issuers, and signs its own with the keys of package keys.
package auth

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Caller is the sender of a request, as its verified access token names it. It is
// immutable.
type Caller struct {
	Issuer   string     // the token's "iss"
	Subject  string     // the user or program of the token, unique over all issuers
	ClientID string     // the OAuth client, unique over all issuers; "" when the token names none
	Company  *uuid.UUID // nil when the token is tied to none
	Scopes   []string
	// Thumbprint is the "x5t#S256" of the client certificate that the token is
	// bound to (RFC 8705 section 3.1); "" when it is bound to none.
	Thumbprint string
	Expires    time.Time
}

// May reports whether the token carries scope.
func (c *Caller) May(scope string) bool { return slices.Contains(c.Scopes, scope) }
