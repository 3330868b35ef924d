// Package session stores the one-time links of the console and the sessions that they open.
// Links and sessions are in Redis, so that all replicas share them.
package session

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// How long things last at most.
const (
	LinkLife    = time.Minute      // until a link is used
	MaxLifetime = 12 * time.Hour   // of a session
	IdleTime    = 30 * time.Minute // of an unused session
)

// ErrNotFound means that the link or session does not exist, or has ended.
var ErrNotFound = errors.New("no such link or session")

// ErrTooMany says that a company has as many links or sessions as it may.
var ErrTooMany = errors.New("too many links or sessions")

// Grant has the rights of a session.
type Grant struct {
	Company  *uuid.UUID    `json:"company,omitzero"` // nil: every company
	Scopes   []string      `json:"scopes"`
	ReadOnly bool          `json:"readOnly,omitzero"`
	Lifetime time.Duration `json:"lifetime"` // from the opening
	Asker    Asker         `json:"asker"`
}

// Asker is the caller that created a link.
type Asker struct {
	Subject     string `json:"subject"`
	ClientID    string `json:"clientId,omitempty"`
	Issuer      string `json:"issuer,omitempty"`
	Certificate string `json:"certificate,omitempty"` // x5t#S256, RFC 8705
}

// May reports whether the session may read with the scope.
func (g *Grant) May(scope string) bool { return slices.Contains(g.Scopes, scope) }

// MayChange reports whether the session may make changes with the scope.
func (g *Grant) MayChange(scope string) bool { return !g.ReadOnly && g.May(scope) }

// CheckLifetime reports whether a session may last so long.
func CheckLifetime(d time.Duration) bool { return d >= LinkLife && d <= MaxLifetime }

// Groups are the groups of API operations that scopes reach, as client
// certificates are configured for them.
func Groups(scopes []string) []string {
	var groups []string
	for _, scope := range scopes {
		group, _, _ := strings.Cut(scope, ":")
		switch group {
		case "platform": // reaches no operation by itself
			continue
		case "operator":
			group = "audit"
		}
		if !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	return groups
}

// Link is a link that was made.
type Link struct {
	ID        uuid.UUID
	Secret    string // the end of the link's address
	ExpiresAt time.Time
}

// Session is the session of a browser.
type Session struct {
	ID       uuid.UUID `json:"id"`
	OpenedAt time.Time `json:"openedAt"`
	// ExpiresAt is when it ends at the latest.
	ExpiresAt time.Time `json:"expiresAt"`
	Address   string    `json:"address,omitempty"` // that opened it
	// Certificate is the x5t#S256 of the browser's client certificate, which must
	// come with each request; "" when it was opened without one.
	Certificate string `json:"certificate,omitempty"`
	Grant       `json:"grant"`

	// IdleUntil is when it ends unless it is used.
	IdleUntil time.Time `json:"-"`
}

// Visitor is the browser that opens a link.
type Visitor struct{ Address, Certificate string }

// Filter says which sessions to list.
type Filter struct {
	Company *uuid.UUID // nil: all
	Asker   *Asker     // only those that it asked for, by issuer and client or subject; nil: all
	Cursor  string     // Page.Next of the page before
	Size    int        // 1..100; 0 means 20
}

// Page is a part of a list, the last to end first. Next is "" at the end of it; a
// page may be short before.
type Page struct {
	Items []Session
	Next  string
}

// sameAs reports whether two askers are the same credential.
func (a *Asker) sameAs(b *Asker) bool {
	return a.Issuer == b.Issuer && a.ClientID == b.ClientID && (a.ClientID != "" || a.Subject == b.Subject)
}
