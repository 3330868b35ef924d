package keys

import (
	"errors"
	"slices"
	"time"

	"spendhook/storage"
)

const (
	// TokenTTL is how long the tokens of the token endpoint are valid.
	TokenTTL = time.Hour
	// MaxTTL is the maximum time that a token is valid.
	MaxTTL = 24 * time.Hour
	// SyncInterval is how often a daemon reads keys and clients from the database. Every
	// replica applies a rotation or a disabled client within this time.
	SyncInterval = 5 * time.Second
	// ClockSlack is how far the clocks of two replicas may differ.
	ClockSlack = 5 * time.Minute

	publishLead = 10 * time.Minute // twice as long as a JWKS may be cached
	pruneSlack  = 24 * time.Hour   // so that a replica whose clock is ahead deletes no key that others need
)

// state is a state of a signing key.
type state string

// The states, in their order. List omits keys in stateGone.
const (
	stateNext    state = "next"    // published, so that verifiers know it before its first token
	stateSigning state = "signing" // signs, and is published
	stateRetired state = "retired" // published until its last token has expired
	stateGone    state = "gone"
)

var (
	// errKeyWaiting means that the last rotation has not taken effect yet.
	errKeyWaiting = errors.New("the next key is already published and signs in at most ten minutes ('spendhook keys list')")
	// errNoKey means that no key has the id.
	errNoKey = errors.New("no token key has this id; 'spendhook keys list' shows the ids")
)

// signerAt returns the index of the key that signs: the last key whose SignsFrom has passed, or else
// the first key. The keys are in the order in which they sign.
func signerAt(keys []Key, now time.Time) int {
	for i, k := range slices.Backward(keys) {
		if !k.SignsFrom.After(now) {
			return i
		}
	}
	return 0
}

// goneAt returns when the last token of a key has expired; false for the last key.
func goneAt(keys []Key, i int) (time.Time, bool) {
	if i+1 >= len(keys) {
		return time.Time{}, false
	}
	return keys[i+1].SignsFrom.Add(MaxTTL + ClockSlack), true
}

func stateOf(keys []Key, i int, now time.Time) state {
	signer := signerAt(keys, now)
	switch at, ends := goneAt(keys, i); {
	case i > signer:
		return stateNext
	case i == signer:
		return stateSigning
	case ends && now.After(at):
		return stateGone
	default:
		return stateRetired
	}
}

// prune drops the keys whose last token expired more than pruneSlack ago.
func prune(keys []Key, now time.Time) []Key {
	kept := make([]Key, 0, len(keys))
	for i, k := range keys {
		if stateOf(keys, i, now.Add(-pruneSlack)) != stateGone {
			kept = append(kept, k)
		}
	}
	return kept
}

// rotate adds next, which signs after publishLead. Until then it adds no other key, so that the
// number of keys is bounded.
func rotate(keys []Key, next Key, now time.Time) ([]Key, error) {
	if len(keys)-1 > signerAt(keys, now) {
		return nil, errKeyWaiting
	}
	next.SignsFrom = storage.At(now.Add(publishLead))
	return append(keys, next), nil
}

// revoke drops a key. If it was the signing key, the waiting key signs from now on, or fresh
// when none waits; an older key never signs again. revoke also drops keys in stateGone, since
// without their successor they could become valid again.
func revoke(keys []Key, id string, fresh Key, now time.Time) ([]Key, error) {
	signer := signerAt(keys, now)
	kept, found := make([]Key, 0, len(keys)+1), false
	for i, k := range keys {
		switch {
		case stateOf(keys, i, now) == stateGone:
		case k.ID == id:
			found = true
		default:
			kept = append(kept, k)
		}
	}
	if !found {
		return nil, errNoKey
	}
	if keys[signer].ID != id {
		return kept, nil
	}
	if signer == len(keys)-1 {
		kept = append(kept, fresh)
	}
	next := len(kept) - 1
	kept[next].SignsFrom = storage.At(now)
	return kept, nil
}
