// Package subscribers holds who wants which events and where: the subscribers
// of each company, their signing secrets and health, and the registry that
// dispatch matches events against.
package subscribers

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

// The errors that callers branch on. Invalid input is an *invalid.Error.
var (
	// ErrNotFound says that the company has no such subscriber.
	ErrNotFound = errors.New("subscriber not found")
	// ErrConflict says that another subscriber of the company has the URL.
	ErrConflict = errors.New("callback URL already in use")
	// ErrQuota says that the company has as many subscribers as it may.
	ErrQuota = errors.New("too many subscribers")
)

// The reasons for which a subscriber is disabled; there are no others.
const (
	ReasonManual  = "MANUAL"  // its company disabled it
	ReasonGone    = "GONE"    // its endpoint answered 410
	ReasonFailing = "FAILING" // it failed for too long with no success
)

// Subscriber is one endpoint of a company and the events that it wants.
// Times are UTC with milliseconds. DisabledReason and DisabledAt are set
// exactly while it is not Enabled.
type Subscriber struct {
	UUID, CompanyUUID    uuid.UUID
	Name                 string
	CallbackURL          string // as NormalizeURL leaves it, unique in the company
	Events               []string
	Enabled              bool
	DisabledReason       string
	DisabledAt           *time.Time
	CreatedAt, UpdatedAt time.Time
	Secrets              []SigningSecret // newest first
}

// SigningSecret is a secret and the end of its life; nil while it is current.
type SigningSecret struct {
	Key       Secret
	ExpiresAt *time.Time
}

// LiveSecrets returns the secrets to sign with at now, newest first.
func (s *Subscriber) LiveSecrets(now time.Time) []Secret {
	live := make([]Secret, 0, len(s.Secrets))
	for _, secret := range s.Secrets {
		if secret.liveAt(now) {
			live = append(live, secret.Key)
		}
	}
	return live
}

func (s SigningSecret) liveAt(now time.Time) bool {
	return s.ExpiresAt == nil || now.Before(*s.ExpiresAt)
}

// Wants reports whether eventType is in the list of events. It does not look
// at Enabled: what a disabled subscriber wants is held for it.
func (s *Subscriber) Wants(eventType string) bool {
	return slices.Contains(s.Events, eventType)
}

// Create describes a new subscriber. Enabled nil means true.
type Create struct {
	CompanyUUID       uuid.UUID
	Name, CallbackURL string
	Events            []string
	Enabled           *bool
}

// Update names what changes; what is nil stays.
type Update struct {
	Name, CallbackURL *string
	Events            *[]string
	Enabled           *bool
}
