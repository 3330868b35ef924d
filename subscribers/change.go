package subscribers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"spendhook/events/eventtype"
	"spendhook/events/operational"
	"spendhook/internal/invalid"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
	"spendhook/internal/secret"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
)

// maxRounds bounds the retries of a change. In each round one of the concurrent changes of a
// subscriber succeeds, so maxRounds concurrent changes succeed.
const maxRounds = 200

var errContended = errors.New("change subscriber or signing keys: too many concurrent changes")

// Update changes the fields that in sets. ErrNotFound, ErrChanged, ErrConflict and ErrUnverified change nothing. Enabling a subscriber clears its disabled reason and its health. Disabling
// one sets ReasonManual; its retry set keeps the waiting deliveries and is not served until the
// subscriber is enabled.
func (s *Store) Update(ctx context.Context, company, id uuid.UUID, in Settings) (Subscriber, error) {
	if err := s.check(ctx, &invalid.Error{}, &in); err != nil {
		return Subscriber{}, err
	}
	return s.change(ctx, company, id, func(sub *Subscriber) error {
		if s.asksProof(sub, &in) && in.Verified == nil {
			return ErrUnverified
		}
		return s.apply(sub, &in)
	})
}

// apply applies settings that were checked.
func (s *Store) apply(sub *Subscriber, in *Settings) error {
	if len(in.Revisions) > 0 && !slices.Contains(in.Revisions, sub.Revision) {
		return ErrChanged
	}
	var problems invalid.Error
	in.apply(&problems, sub, s.now())
	return problems.OrNil()
}

func (s *Store) check(ctx context.Context, problems *invalid.Error, in *Settings) error {
	in.check(ctx, problems, &s.opts)
	if ctx.Err() != nil {
		return ctx.Err() // not a problem of the settings
	}
	if err := problems.OrNil(); err != nil {
		return err
	}
	if in.CallbackURL != nil {
		if err := s.opts.Policy.CheckHost(ctx, *in.CallbackURL); err != nil {
			return err
		}
	}
	if err := s.opts.Policy.CheckTokenHost(ctx, in.OAuth); err != nil {
		return err
	}
	return s.opts.Policy.CheckContactHosts(ctx, in.contacts)
}

// DisableFailing disables a subscriber with ReasonFailing. It reports false, and changes nothing, when
// the subscriber is already disabled.
func (s *Store) DisableFailing(ctx context.Context, company, id uuid.UUID) (bool, error) {
	return s.disableIf(ctx, company, id, ReasonFailing, func(*Subscriber) bool { return true })
}

// DisableGone disables a subscriber with ReasonGone, after its endpoint at callbackURL answered
// 410 to an attempt that started at the time began. It reports false, and changes nothing, when
// the subscriber is already disabled or was changed since: its URL may be another one.
func (s *Store) DisableGone(ctx context.Context, company, id uuid.UUID, callbackURL string, began time.Time) (bool, error) {
	return s.disableIf(ctx, company, id, ReasonGone, func(sub *Subscriber) bool {
		return sub.CallbackURL == callbackURL && !sub.UpdatedAt.After(began)
	})
}

func (s *Store) disableIf(ctx context.Context, company, id uuid.UUID, reason string, holds func(*Subscriber) bool) (bool, error) {
	changed := false
	_, err := s.change(ctx, company, id, func(sub *Subscriber) error {
		if changed = sub.Enabled && holds(sub); changed {
			sub.disable(reason, s.now())
		}
		return nil
	})
	return changed && err == nil, err
}

// AddEvent adds an event type or pattern to the company's subscriber with the URL. It does nothing if the
// subscriber has it. The error is ErrNotFound when no subscriber has the URL.
func (s *Store) AddEvent(ctx context.Context, company uuid.UUID, callbackURL, event string) (Subscriber, error) {
	var problems invalid.Error
	s.opts.Catalogue.CheckPattern(&problems, "event", event)
	return s.changeByURL(ctx, company, callbackURL, &problems, func(sub *Subscriber) error {
		if slices.Contains(sub.Events, event) {
			return nil
		}
		sub.Events = append(sub.Events, event)
		if len(sub.Events) > maxEvents {
			problems.Add("event", "TOO_MANY", "the subscriber already has %d events", maxEvents)
		}
		return problems.OrNil()
	})
}

// RemoveEvent removes an event type or pattern from the company's subscriber with the URL. It does nothing
// if the subscriber does not have it. A subscriber without types receives nothing. The error
// is ErrNotFound when no subscriber has the URL.
func (s *Store) RemoveEvent(ctx context.Context, company uuid.UUID, callbackURL, event string) (Subscriber, error) {
	var problems invalid.Error
	(*eventtype.Catalogue)(nil).CheckPattern(&problems, "event", event) // types that are no longer in the catalogue can be removed
	return s.changeByURL(ctx, company, callbackURL, &problems, func(sub *Subscriber) error {
		sub.Events = slices.DeleteFunc(sub.Events, func(e string) bool { return e == event })
		return nil
	})
}

// changeByURL is change for the subscriber with the URL, if there are no problems. It finds
// http URLs even if the policy no longer allows them.
func (s *Store) changeByURL(ctx context.Context, company uuid.UUID, raw string, problems *invalid.Error, f func(*Subscriber) error) (Subscriber, error) {
	normal := callback.Any.Normalize(problems, raw)
	if err := problems.OrNil(); err != nil {
		return Subscriber{}, err
	}
	id, err := s.findByURL(ctx, company, normal)
	if err != nil {
		return Subscriber{}, err
	}
	sub, err := s.change(ctx, company, id, func(sub *Subscriber) error {
		if sub.CallbackURL != normal { // the URL was changed since findByURL
			return ErrNotFound
		}
		return f(sub)
	})
	sub.UUID = id // also with an error, for the audit log
	return sub, err
}

// newSecret makes a signing secret of Standard Webhooks: "whsec_" and the base64 of 32 random
// bytes. The standard requires 24 to 64.
func newSecret() secret.Text {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the program instead
	return secret.Text("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
}

// maxSecrets bounds the signatures of a delivery.
const maxSecrets = 5

// RotateSecret adds a new current secret. Deliveries are also signed with the former one for
// StoreOptions.SecretOverlap. RotateSecret drops secrets that cannot be decrypted. The error may be
// ErrNotFound, or ErrTooManySecrets when maxSecrets sign deliveries.
func (s *Store) RotateSecret(ctx context.Context, company, id uuid.UUID) (Subscriber, error) {
	fresh := SigningSecret{Key: newSecret()}
	return s.change(ctx, company, id, func(sub *Subscriber) error {
		now := s.now()
		sub.Secrets = slices.DeleteFunc(sub.Secrets, func(k SigningSecret) bool { return k.Locked != nil || !k.liveAt(now) })
		if len(sub.Secrets) >= maxSecrets {
			return ErrTooManySecrets
		}
		end := now.Add(s.opts.SecretOverlap)
		for i := range sub.Secrets {
			if sub.Secrets[i].ExpiresAt == nil {
				sub.Secrets[i].ExpiresAt = &end
			}
		}
		sub.Secrets = slices.Insert(sub.Secrets, 0, fresh)
		return nil
	})
}

// pausedManually is the reason of a pause that the company asked for. The only other reason is
// DEAD, which record.lua of delivery/store gives.
const pausedManually = "MANUAL"

// Pause pauses a subscriber: from now on none of its deliveries is started until Resume. A
// paused subscriber keeps its first reason. ErrNotFound.
func (s *Store) Pause(ctx context.Context, company, id uuid.UUID) error {
	return s.pause(ctx, company, id, pausedManually)
}

// Resume ends a pause. It does nothing when the subscriber is not paused. ErrNotFound.
func (s *Store) Resume(ctx context.Context, company, id uuid.UUID) error {
	return s.pause(ctx, company, id, "")
}

// pause pauses a subscriber for a reason, or resumes it without one.
func (s *Store) pause(ctx context.Context, company, id uuid.UUID, reason string) error {
	p := partition.Of(company)
	found, err := pauseScript.Run(ctx, s.opts.Client, append(queues.Keys(p), layout.CompanyKey(company)),
		id.String(), partition.Prefix(p), company.String(), reason).Bool()
	switch {
	case err != nil:
		return fmt.Errorf("pause or resume subscriber: %w", err)
	case !found:
		return ErrNotFound
	}
	return nil
}

// change applies f to the stored subscriber and writes the result. If another change came
// first, it applies f to the new record; f may run many times. Nothing is written when f fails
// or changes nothing.
func (s *Store) change(ctx context.Context, company, id uuid.UUID, f func(*Subscriber) error) (Subscriber, error) {
	raw, err := s.read(ctx, company, id)
	if err != nil {
		return Subscriber{}, err
	}
	for range maxRounds {
		sub, current, err := s.try(ctx, company, id, raw, f)
		if err != nil {
			return Subscriber{}, err
		}
		if current == "" {
			return sub, nil
		}
		raw = current
	}
	return Subscriber{}, errContended
}

// try is one round of change. If the stored record has changed since raw was read, it writes
// nothing and returns the stored record as current.
func (s *Store) try(ctx context.Context, company, id uuid.UUID, raw string, f func(*Subscriber) error) (sub Subscriber, current string, err error) {
	before, err := s.codec.decode(company, id, raw)
	if err != nil {
		return sub, "", err
	}
	after, _ := s.codec.decode(company, id, raw) // not a copy: f may write into slices
	if err := f(&after); err != nil {
		return sub, "", err
	}
	if reflect.DeepEqual(before, after) {
		return after, "", nil
	}
	after.UpdatedAt = s.now()
	after.Secrets = slices.DeleteFunc(after.Secrets, func(k SigningSecret) bool { return !k.liveAt(after.UpdatedAt) })
	current, err = s.replace(ctx, raw, &before, &after)
	return after, current, err
}

func (s *Store) replace(ctx context.Context, raw string, before, after *Subscriber) (current string, err error) {
	next, err := s.codec.encode(after, rand.Text())
	if err != nil {
		return "", err
	}
	company, id := after.CompanyUUID, after.UUID
	switched := ""
	switch {
	case after.Enabled && !before.Enabled:
		switched = "enabled"
	case before.Enabled && !after.Enabled:
		switched = "disabled"
	}
	notice, err := s.disabledNotice(before, after)
	if err != nil {
		return "", err
	}
	p := partition.Of(company)
	args := []any{
		id.String(), raw, next, before.CallbackURL, after.CallbackURL, switched,
		partition.Prefix(p), company.String(), notice, script.Now(s.clock),
	}
	reply, err := updateScript.Run(ctx, s.opts.Client,
		append(queues.Keys(p), layout.CompanyKey(company), layout.URLsKey(company), layout.HealthKey(company, id)),
		append(append(args, after.serving()...), len(after.Contacts))...).StringSlice()
	if err != nil {
		return "", fmt.Errorf("change subscriber: %w", err)
	}
	switch reply[0] {
	case "GONE":
		return "", ErrNotFound
	case "TAKEN":
		return "", ErrConflict
	case "CHANGED":
		return reply[1], nil
	}
	after.Revision = revisionOf(next)
	return "", nil
}

// disabledNotice returns the notice of a change that disables a subscriber because of its
// endpoint; "" for all other changes.
func (s *Store) disabledNotice(before, after *Subscriber) (string, error) {
	if s.opts.Operational == nil || !before.Enabled || after.Enabled || after.DisabledReason == ReasonManual {
		return "", nil
	}
	return s.opts.Operational.Encode(operational.Event{
		ID:   "subscriber-disabled-" + after.UUID.String() + "-" + strconv.FormatInt(after.DisabledAt.UnixMilli(), 10),
		Type: eventtype.SubscriberDisabled, Company: after.CompanyUUID, At: *after.DisabledAt,
		Metadata: map[string]any{"subscriberUuid": after.UUID, "reason": after.DisabledReason},
	})
}
