// Package session stores the one-time links of the console and the sessions that they open. A login opens a session by a
// link, too.
// Links and sessions are in Redis, so that all replicas share them.
package session

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The longest durations.
const (
	LinkLife    = time.Minute      // of a link
	MaxLifetime = 12 * time.Hour   // of a session
	IdleTime    = 30 * time.Minute // between two uses of a session
)

// ErrNotFound means that the link or session does not exist, or has ended.
var ErrNotFound = errors.New("no such link or session")

// ErrTooMany means that a company has the maximum of links or sessions.
var ErrTooMany = errors.New("too many links or sessions")

// Grant has the rights of a session.
type Grant struct {
	Company  *uuid.UUID    `json:"company,omitzero"` // nil: every company
	Scopes   []string      `json:"scopes"`
	ReadOnly bool          `json:"readOnly,omitzero"`
	Lifetime time.Duration `json:"lifetime"` // of the session
	// Until is when the token of the asker expires, and with it the session; zero: never.
	Until time.Time `json:"until,omitzero"`
	// Bound means that the link opens only with the client certificate of the asker.
	Bound bool  `json:"bound,omitzero"`
	Asker Asker `json:"asker"`
}

// expiry is when a session that begins now ends at the latest.
func (g *Grant) expiry(now time.Time) time.Time {
	end := now.Add(g.Lifetime)
	if !g.Until.IsZero() && g.Until.Before(end) {
		return g.Until
	}
	return end
}

// Asker is the caller that created a link, or the user who signed in.
type Asker struct {
	Subject     string `json:"subject"`
	ClientID    string `json:"clientId,omitempty"`
	Issuer      string `json:"issuer,omitempty"`
	KeyID       string `json:"keyId,omitempty"`       // of the key that signed the token
	Certificate string `json:"certificate,omitempty"` // x5t#S256, RFC 8705
	Login       bool   `json:"login,omitzero"`        // signed in at the issuer, without a token of the API
	Email       string `json:"email,omitempty"`       // of a user who signed in; "" if unknown
}

// May reports whether the session may read with the scope. As in the API, operator needs platform without a company.
func (g *Grant) May(scope string) bool {
	return slices.Contains(g.Scopes, scope) && (scope != "operator" || g.Company != nil || slices.Contains(g.Scopes, "platform"))
}

// MayChange reports whether the session may make changes with the scope.
func (g *Grant) MayChange(scope string) bool { return !g.ReadOnly && g.May(scope) }

// CheckLifetime reports whether a session may have this lifetime.
func CheckLifetime(d time.Duration) bool { return d >= LinkLife && d <= MaxLifetime }

// Groups returns the groups of API operations that the scopes allow. Client certificates are
// configured for each group.
func Groups(scopes []string) []string {
	var groups []string
	for _, scope := range scopes {
		group, _, _ := strings.Cut(scope, ":")
		switch group {
		case "platform": // event types, and the names of companies
			group = "events"
		case "operator":
			group = "audit"
		}
		if !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	if slices.Contains(scopes, "operator") && slices.Contains(scopes, "platform") {
		groups = append(groups, "clients") // OAuth clients
	}
	return groups
}

// Link is a created link.
type Link struct {
	ID        uuid.UUID
	Secret    string // the end of the link's address
	ExpiresAt time.Time
}

// Session is the session of a browser.
type Session struct {
	ID       uuid.UUID `json:"id"`
	OpenedAt time.Time `json:"openedAt"`
	// ExpiresAt is when the session ends at the latest.
	ExpiresAt time.Time `json:"expiresAt"`
	Address   string    `json:"address,omitempty"` // of the browser that opened the session
	// Certificate is the x5t#S256 of the client certificate that each request must present. It is
	// "" if the session was opened without one.
	Certificate string `json:"certificate,omitempty"`
	Grant       `json:"grant"`

	// IdleUntil is when the session ends unless it is used before.
	IdleUntil time.Time `json:"-"`
}

// Visitor is the browser that opens a link.
type Visitor struct{ Address, Certificate string }

// Filter selects sessions of a list.
type Filter struct {
	Company *uuid.UUID // nil: all
	Asker   *Asker     // only sessions whose links this caller created; nil: all
	Cursor  string     // Page.Next of the page before
	Size    int        // 1..100; 0 means 20
}

// Page is a page of a list, in which the sessions that end last come first. Next is "" at the end
// of the list. Other pages may also be short.
type Page struct {
	Items []Session
	Next  string
}

// sameAs reports whether two askers are the same client, or the same subject without a client.
func (a *Asker) sameAs(b *Asker) bool {
	return a.Issuer == b.Issuer && a.ClientID == b.ClientID && (a.ClientID != "" || a.Subject == b.Subject)
}
