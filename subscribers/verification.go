package subscribers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/internal/invalid"
	"spendhook/subscribers/layout"
)

// Challenge says which callback URLs must be verified before they get deliveries: their receiver has answered a
// challenge (package challenge of the dispatcher).
type Challenge string

// The values of Challenge.
const (
	ChallengeOff Challenge = "off" // none; so does ""
	ChallengeNew Challenge = "new" // those of subscribers that are created, and URLs that are changed, from now on
	ChallengeAll Challenge = "all" // also those of the subscribers that exist
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

// Unverified reports whether a verification of the subscriber's URL was asked for, and it has none.
func (s *Subscriber) Unverified() bool {
	return s.Verification != nil && s.Verification.State != StateVerified
}

// MustVerify reports whether the subscriber may be sent nothing but a challenge.
func (s *Store) MustVerify(sub *Subscriber) bool { return s.opts.Challenge.on() && sub.Unverified() }

// asksProof reports whether a change needs a verified URL: it moves a subscriber that gets deliveries.
func (s *Store) asksProof(sub *Subscriber, in *Settings) bool {
	return s.opts.Challenge.on() && in.CallbackURL != nil && *in.CallbackURL != sub.CallbackURL && !sub.Unverified()
}

// Prepare returns the subscriber as Update would write it, and whether Update needs a Verification of its callback
// URL. It writes nothing; its errors are those of Update, but ErrConflict.
func (s *Store) Prepare(ctx context.Context, company, id uuid.UUID, in Settings) (next Subscriber, prove bool, err error) {
	if in.CallbackURL == nil || !s.opts.Challenge.on() {
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

// NoteChallenge stores the result of a challenge at a URL, and ends the wait of a subscriber that is verified now. A failure
// changes only a subscriber that is not verified. The error may be ErrNotFound, or ErrChanged when the subscriber has
// another URL.
func (s *Store) NoteChallenge(ctx context.Context, company, id uuid.UUID, url string, v Verification) (Subscriber, error) {
	return s.change(ctx, company, id, func(sub *Subscriber) error {
		switch {
		case sub.CallbackURL != url:
			return ErrChanged
		case v.State == StateVerified || sub.Unverified():
			sub.Verification = &v
		}
		return nil
	})
}

// shown returns the subscribers of a company without secrets.
func (s *Store) shown(ctx context.Context, company uuid.UUID) ([]*Subscriber, error) {
	hash, err := s.opts.Client.HGetAll(ctx, layout.CompanyKey(company)).Result()
	if err != nil {
		return nil, fmt.Errorf("read subscribers: %w", err)
	}
	return DecodeShown(company, hash), nil
}

// RequireVerification has the deliveries of each subscriber that was never asked for a verification wait for it, and returns how many
// these are. It reads every company, and may be interrupted and repeated. A damaged subscriber is left out.
func (s *Store) RequireVerification(ctx context.Context) (n int, err error) {
	err = s.eachCompany(ctx, func(company uuid.UUID) error {
		all, err := s.shown(ctx, company)
		if err != nil {
			return err
		}
		for _, sub := range all {
			if sub.Verification != nil || sub.Locked != nil {
				continue
			}
			changed := false
			_, err := s.change(ctx, company, sub.UUID, func(sub *Subscriber) error {
				if changed = sub.Verification == nil; changed {
					sub.Verification = &Verification{State: StateUnverified}
				}
				return nil
			})
			switch {
			case errors.Is(err, ErrNotFound): // deleted meanwhile
			case err != nil:
				return err
			case changed:
				n++
			}
		}
		return nil
	})
	return n, err
}

// CountUnverified returns how many subscribers wait for the verification of their callback URL in the first companies, at
// most a given number, and how many companies these are.
func (s *Store) CountUnverified(ctx context.Context, most int) (companies, n int, err error) {
	err = s.eachCompany(ctx, func(company uuid.UUID) error {
		if companies >= most {
			return errEnough
		}
		companies++
		all, err := s.shown(ctx, company)
		for _, sub := range all {
			if sub.Unverified() {
				n++
			}
		}
		return err
	})
	return companies, n, err
}

// proof is the argument of update.lua by which a subscriber begins to wait for its verification, or ends to.
func proof(before, after *Subscriber) string {
	switch {
	case after.Unverified() && !before.Unverified():
		return StateUnverified
	case before.Unverified() && !after.Unverified():
		return StateVerified
	}
	return ""
}

func knownState(v *Verification) bool {
	return v == nil || slices.Contains(verificationStates, v.State)
}
