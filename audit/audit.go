// Package audit keeps the audit log: the actor, address, action, target and time of each change. The log
// is an append-only sorted set in Redis, shared by all replicas, with a retention. Entries that Redis does
// not accept wait in a file.
package audit

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Outcome is how a change ended.
type Outcome string

// The outcomes. A refused request makes no change and has no entry, but for a challenge of a receiver that failed.
const (
	Success Outcome = "success"
	Unknown Outcome = "unknown" // the request failed or was interrupted; the change may have been made
)

// Entry is one change. It has the names of the fields of the body, but no values and no secret. The
// API answers with its JSON.
type Entry struct {
	ID          string     `json:"id"` // a UUID
	At          time.Time  `json:"timestamp"`
	Actor       Actor      `json:"actor"`
	Action      string     `json:"action"` // kind and verb, as in "subscriber.create"
	Target      Target     `json:"target"`
	CompanyUUID *uuid.UUID `json:"companyUuid,omitzero"` // the company of the target
	Fields      []string   `json:"fields"`               // the changed fields
	Detail      string     `json:"detail,omitempty"`
	Outcome     Outcome    `json:"outcome"`
	RequestID   string     `json:"requestId,omitempty"`
	Address     string     `json:"address,omitempty"`

	// RecordedAt is when the entry was added to the log. List sets it.
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
	Console     = "console" // through the web console; Subject is the caller that requested the link of the session
	CommandLine = "cli"     // with access to the machine; Subject is the user of the operating system
	Contact     = "contact" // with a link that was sent to it; Subject is its address
	Service     = "service" // this service itself; Subject is the part of it: "canary"
	Admin       = "admin"   // through the admin listener; Subject is the user of its password, or "-"
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
	Action   string     // an action, or a kind such as "subscriber" for all its actions
	Target   string     // an id
	From, To *time.Time // the time of recording, both inclusive
	Cursor   string     // Next of the previous page
	Size     int        // 0 means 20
}

// Page is one page of a list, newest first. Next is "" at the end of the list. A page may be short,
// even empty, and still have a Next.
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
