package auth

import (
	"context"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"golang.org/x/sync/singleflight"
)

// tokenIssuer is an issuer whose tokens are accepted: an ownIssuer or an externalIssuer.
type tokenIssuer interface {
	// lookup returns the public key with an id, or nil. While the keys of the issuer are not
	// loaded, an unknown key may be valid.
	lookup(id string) (key jwk.Key, loaded bool)
	// load loads the keys now. The keys are also loaded at intervals.
	load(ctx context.Context) error
	// rules returns checks beside those of the signature and the expiry.
	rules() []jwt.ParseOption
	caller(token jwt.Token) (*Caller, error)
}

// loadTimeout bounds how long a request waits for keys that may be new.
const loadTimeout = time.Second

// source finds the keys of an issuer.
type source struct {
	tokenIssuer

	now   func() time.Time
	every time.Duration // minimum time between loads for unknown ids
	calls singleflight.Group
	last  time.Time // start of the last load for an unknown id; accessed within calls only
}

// find returns the key as lookup does. For an unknown id it first loads the keys, because the key may
// be new. The rate of these loads is bounded, because callers can invent ids.
func (s *source) find(ctx context.Context, id string) (key jwk.Key, loaded bool) {
	if key, loaded := s.lookup(id); key != nil {
		return key, loaded
	}
	done := s.calls.DoChan("", func() (any, error) {
		if now := s.now(); s.last.IsZero() || now.Sub(s.last).Abs() >= s.every {
			s.last = now
			// The load serves all waiting callers: the cancellation of one must not end it.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
			defer cancel()
			_ = s.load(ctx) // the loads at intervals log failures
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	return s.lookup(id)
}
