// Package vault seals the secrets of subscribers that Redis keeps, and preserves those
// that do not open.
package vault

import (
	"errors"
	"fmt"

	"spendhook/internal/seal"
	"spendhook/internal/secret"
)

// ErrLocked means that a secret does not open with the configured encryption keys. The error
// also wraps seal.ErrUnknownKey or seal.ErrDamaged.
var ErrLocked = errors.New("it does not open")

// Locked is a stored secret or record that does not open. The sealed text of a secret is kept,
// so that a change of other fields writes it back unchanged; with the right key it opens again.
type Locked struct {
	text string
	err  error
}

// Damaged is a record that cannot be read, and why.
func Damaged(err error) *Locked { return &Locked{err: err} }

// Err is the reason. It may name the missing key, but never contains any part of a secret.
func (l *Locked) Err() error { return fmt.Errorf("%w: %w", ErrLocked, l.err) }

// Vault seals what goes to Redis and opens what comes from it. It is safe for
// concurrent use.
type Vault struct{ keys *seal.Keyring }

// New returns a Vault with these keys.
func New(keys *seal.Keyring) Vault { return Vault{keys} }

// Seal seals plain for its place; Open needs the same place. If locked is not nil, Seal
// returns its stored text.
func (v Vault) Seal(plain secret.Text, locked *Locked, place string) (string, error) {
	if locked != nil {
		return locked.text, nil
	}
	return v.keys.Seal([]byte(plain.Reveal()), place)
}

// Open opens a sealed text; what does not open is locked.
func (v Vault) Open(text, place string) (secret.Text, *Locked) {
	plain, err := v.keys.Open(text, place)
	if err != nil {
		return "", &Locked{text, err}
	}
	return secret.Text(plain), nil
}
