// Package sealtest has keyrings for tests.
package sealtest

import "spendhook/internal/seal"

// Keyring returns a ring with one key, which is the same in every call.
func Keyring() *seal.Keyring { return Ring("test") }

// Ring returns a ring of keys with these ids, the current one first. Keys with the same id are the
// same in every call.
func Ring(current string, older ...string) *seal.Keyring {
	others := make([]seal.Key, len(older))
	for i, id := range older {
		others[i] = key(id)
	}
	ring, err := seal.New(key(current), others...)
	if err != nil {
		panic(err)
	}
	return ring
}

func key(id string) seal.Key {
	k := seal.Key{ID: id}
	copy(k.Secret[:], "key for tests alone: "+id)
	return k
}
