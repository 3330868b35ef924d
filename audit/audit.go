// Package audit keeps the audit log: the actor, address, action, target and time of each change. It
// is an append-only stream in Redis, shared by all replicas, with a retention. Entries that Redis does
// not take wait in a file.
package audit

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Outcome is how a change ended.
type Outcome string

// The outcomes. A refused request makes no change and has no entry.
const (
	Success Outcome = "success"
	Unknown Outcome = "unknown" // it failed or was cut off; the change may have been made
)

// Entry is one change. It holds no secret, and only the names of a body's fields. Its JSON is that of the API.
type Entry struct {
	ID          string     `json:"id"` // a UUID; of two entries with the same id one is a repeat
	At          time.Time  `json:"timestamp"`
	Actor       Actor      `json:"actor"`
	Action      string     `json:"action"` // kind and verb, as in "subscriber.create"
	Target      Target     `json:"target"`
	CompanyUUID *uuid.UUID `json:"companyUuid,omitzero"` // the company of the target
	Fields      []string   `json:"fields"`               // that were changed
	Detail      string     `json:"detail,omitempty"`
	Outcome     Outcome    `json:"outcome"`
	RequestID   string     `json:"requestId,omitempty"`
	Address     string     `json:"address,omitempty"`

	// RecordedAt is when the entry was added to the stream. List sets it.
	RecordedAt time.Time `json:"recordedAt,omitzero"`
}

// Actor is the client or user that made a change.
type Actor struct {
	Kind        string     `json:"kind"` // one of the kinds below
	Subject     string     `json:"subject"`
	ClientID    string     `json:"clientId,omitempty"`
	Issuer      string     `json:"issuer,omitempty"`
	CompanyUUID *uuid.UUID `json:"companyUuid,omitzero"`  // of the token
	Certificate string     `json:"certificate,omitempty"` // x5t#S256, RFC 8705
	Session     *uuid.UUID `json:"session,omitzero"`      // of the console
}

// The kinds of actors.
const (
	Client      = "client"  // with a token, through the API
	Console     = "console" // through the web console: the caller that requested the session's link
	CommandLine = "cli"     // with access to the machine: Subject is the user of the system
)

// Target names the changed resource.
type Target struct {
	Kind string   `json:"kind"`
	IDs  []string `json:"ids"`
}

// Filter says which entries to list; zero fields do not filter.
type Filter struct {
	Company  *uuid.UUID
	Actor    string     // a subject or client id
	Action   string     // one, or all of a kind: "subscriber"
	Target   string     // an id
	From, To *time.Time // recorded at, both inclusive
	Cursor   string     // Next of the page before
	Size     int        // 0 means 20
}

// Page is one page of a list, newest first. Next is "" at the end of the list; a
// page may be short, even empty, and still have a Next.
type Page struct {
	Items []Entry
	Next  string
}

func (f Filter) matches(e Entry) bool {
	return (f.Company == nil || e.CompanyUUID != nil && *e.CompanyUUID == *f.Company) &&
		(f.Actor == "" || f.Actor == e.Actor.Subject || f.Actor == e.Actor.ClientID) &&
		(f.Action == "" || f.Action == e.Action || strings.HasPrefix(e.Action, f.Action+".")) &&
		(f.Target == "" || slices.Contains(e.Target.IDs, f.Target))
}
