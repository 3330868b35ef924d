// Package subscribers holds who wants which events and where: the subscribers
// of each company, their signing secrets and health, and the registry that
// dispatch matches events against.
package subscribers

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
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
	Headers              []Header        // sent with every delivery, by name
	// Certificate is the company's, for receivers that ask for one; nil when it
	// has none. Only Registry sets it.
	Certificate *Certificate
	// Locked says that the stored record is damaged: then the subscriber counts as
	// Enabled, so that what is pending for it waits, but wants no event, and has
	// nothing else but its uuids. Only Registry gives out such a subscriber; Store
	// answers an error for it, and can delete it.
	Locked *Locked

	Unknown *jsontext.Value // fields of its record that a newer release wrote
}

// Header is a field that is sent with every delivery to a subscriber. Its name
// is in the canonical form of net/http.
type Header struct {
	Name   string
	Value  Secret
	Locked *Locked // else nil: then there is no Value

	Unknown *jsontext.Value // as of a Subscriber
}

// SigningSecret is a secret and the end of its life; nil while it is current.
type SigningSecret struct {
	Key       Secret
	ExpiresAt *time.Time
	Locked    *Locked // else nil: then there is no Key

	Unknown *jsontext.Value // as of a Subscriber
}

// Unusable says why nothing can be sent to the subscriber for now: its record, a
// secret, a header or the certificate does not open. Sending without would be
// refused, or worse, taken. nil is the usual case.
func (s *Subscriber) Unusable() error {
	if s.Locked != nil {
		return fmt.Errorf("record: %w", s.Locked.Err())
	}
	for _, secret := range s.Secrets {
		if secret.Locked != nil {
			return fmt.Errorf("signing secret: %w", secret.Locked.Err())
		}
	}
	for _, h := range s.Headers {
		if h.Locked != nil {
			return fmt.Errorf("header %s: %w", h.Name, h.Locked.Err())
		}
	}
	if s.Certificate != nil && s.Certificate.Locked != nil {
		return fmt.Errorf("egress certificate: %w", s.Certificate.Locked.Err())
	}
	return nil
}

// LiveSecrets returns the secrets to sign with at now, newest first.
func (s *Subscriber) LiveSecrets(now time.Time) []Secret {
	live := make([]Secret, 0, len(s.Secrets))
	for _, secret := range s.Secrets {
		if secret.liveAt(now) && secret.Locked == nil {
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
	Headers           map[string]Secret
}

// Update names what changes; what is nil stays. Of Headers, those named are set
// or, with nil, removed; the others stay.
type Update struct {
	Name, CallbackURL *string
	Events            *[]string
	Enabled           *bool
	Headers           map[string]*Secret
}
