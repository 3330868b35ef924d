package subscribers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/internal/invalid"
	"spendhook/internal/partition"
	"spendhook/subscribers/layout"
)

// Challenge says which subscribers get no deliveries until their receiver has answered a challenge (package challenge
// of the dispatcher).
type Challenge string

// The values of Challenge.
const (
	ChallengeOff Challenge = "off" // none; "" is the same
	ChallengeNew Challenge = "new" // those that are created or moved to another URL from now on
	ChallengeAll Challenge = "all" // all
)

func (c Challenge) on() bool { return c == ChallengeNew || c == ChallengeAll }

// The states of a Verification.
const (
	StateUnverified = "unverified" // its receiver has not been asked yet
	StateVerified   = "verified"
	StateFailed     = "failed" // its receiver did not answer as it must
)

var verificationStates = []string{StateUnverified, StateVerified, StateFailed}

// ErrUnverified says that the receiver has not answered a challenge.
var ErrUnverified = errors.New("the callback URL is not verified")

// Verification says whether the receiver at a subscriber's callback URL has agreed to get its deliveries.
type Verification struct {
	State  string     `json:"state"`
	At     *time.Time `json:"at,omitzero"`     // of the last challenge; nil: there was none
	Reason string     `json:"reason,omitzero"` // why the last challenge failed
	// PerMinute is the rate of attempts that the receiver allows; 0: it names none.
	PerMinute int `json:"perMinute,omitzero"`

	Unknown *jsontext.Value `json:",embed"` // as of a Subscriber
}

// Unverified reports whether the subscriber's deliveries wait for the verification of its callback URL.
func (s *Subscriber) Unverified() bool {
	return s.Verification != nil && s.Verification.State != StateVerified
}

// movesReceiver reports whether a change needs another verification: of another URL, or by another kind of challenge.
func (in *Settings) movesReceiver(sub *Subscriber) bool {
	return in.CallbackURL != nil && *in.CallbackURL != sub.CallbackURL ||
		in.Format != nil && (*in.Format == FormatCloudEvents) != (sub.Format == FormatCloudEvents)
}

// asksProof reports whether a change needs a verification first: it moves the receiver of a subscriber that gets deliveries.
func (s *Store) asksProof(sub *Subscriber, in *Settings) bool {
	return s.opts.Challenge.on() && !sub.Unverified() && in.movesReceiver(sub)
}

// Prepare returns the subscriber as Update would write it, and whether Update needs a Verification of its receiver. It
// writes nothing; its errors are those of Update, but ErrConflict.
func (s *Store) Prepare(ctx context.Context, company, id uuid.UUID, in Settings) (next Subscriber, prove bool, err error) {
	if in.CallbackURL == nil && in.Format == nil || !s.opts.Challenge.on() {
		return Subscriber{}, false, nil
	}
	if next, err = s.Get(ctx, company, id); err != nil {
		return next, false, err
	}
	if err := s.check(ctx, &invalid.Error{}, &in); err != nil {
		return next, false, err
	}
	prove = s.asksProof(&next, &in)
	return next, prove, s.apply(&next, &in)
}

// NoteChallenge stores the result of the challenge of a subscriber. A failure changes only one that waits for its
// verification. The error may be ErrNotFound, or ErrChanged when the receiver is another one now.
func (s *Store) NoteChallenge(ctx context.Context, asked *Subscriber, v Verification) (Subscriber, error) {
	was := Settings{CallbackURL: &asked.CallbackURL, Format: &asked.Format}
	return s.change(ctx, asked.CompanyUUID, asked.UUID, func(sub *Subscriber) error {
		switch {
		case was.movesReceiver(sub):
			return ErrChanged
		case v.State == StateVerified || sub.Unverified():
			sub.Verification = &v
		}
		return nil
	})
}

// ApplyChallenge brings the subscribers that exist in line with Options.Challenge, and returns how many it changed. With
// ChallengeAll it reads all of them, and those that were never asked for a verification wait for it. With ChallengeOff
// none waits any longer. It may be interrupted and repeated. A damaged subscriber is left as it is.
func (s *Store) ApplyChallenge(ctx context.Context) (n int, err error) {
	switch s.opts.Challenge {
	case ChallengeNew:
		return 0, nil
	case ChallengeAll:
		err = s.requireVerification(ctx, &n)
	default:
		err = s.endVerification(ctx, &n)
	}
	if err != nil {
		return n, fmt.Errorf("apply subscribers.challenge: %w", err)
	}
	return n, nil
}

func (s *Store) requireVerification(ctx context.Context, n *int) error {
	for company, err := range s.Companies(ctx) {
		if err != nil {
			return err
		}
		hash, err := s.opts.Client.HGetAll(ctx, layout.CompanyKey(company)).Result()
		if err != nil {
			return err
		}
		for _, sub := range DecodeShown(company, hash) {
			if sub.Verification != nil || sub.Locked != nil {
				continue
			}
			if err := s.setWaiting(ctx, company, sub.UUID, true, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) endVerification(ctx context.Context, n *int) (err error) {
	for p := range partition.Count {
		waiting, readErr := s.opts.Client.SMembers(ctx, layout.UnverifiedKey(p)).Result()
		if readErr != nil {
			return readErr
		}
		for _, member := range waiting {
			company, sub, _ := strings.Cut(member, "/")
			companyID, parseErr := uuid.Parse(company)
			id, otherErr := uuid.Parse(sub)
			err = errors.Join(err, parseErr, otherErr, s.setWaiting(ctx, companyID, id, false, n))
		}
	}
	return err
}

// setWaiting has the deliveries of a subscriber wait for its verification if it was never asked for, or no longer.
func (s *Store) setWaiting(ctx context.Context, company, id uuid.UUID, waits bool, n *int) error {
	changed := false
	_, err := s.change(ctx, company, id, func(sub *Subscriber) error {
		changed = true
		switch {
		case waits && sub.Verification == nil:
			sub.Verification = &Verification{State: StateUnverified}
		case !waits && sub.Unverified():
			sub.Verification = nil
		default:
			changed = false
		}
		return nil
	})
	if errors.Is(err, ErrNotFound) { // deleted meanwhile
		return nil
	}
	if err == nil && changed {
		*n++
	}
	return err
}

// CountUnverified returns how many subscribers wait for the verification of their callback URL.
func (s *Store) CountUnverified(ctx context.Context) (n int64, err error) {
	for p := range partition.Count {
		of, err := s.opts.Client.SCard(ctx, layout.UnverifiedKey(p)).Result()
		if err != nil {
			return n, fmt.Errorf("count subscribers that are not verified: %w", err)
		}
		n += of
	}
	return n, nil
}

func knownState(v *Verification) bool {
	return v == nil || slices.Contains(verificationStates, v.State)
}
