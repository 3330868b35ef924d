package subscribers

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spendhook/internal/seal"
	"spendhook/internal/secret"
)

// ErrLocked is wrapped by the error of a secret that does not open with the
// configured encryption keys; beside it stands seal.ErrUnknownKey or
// seal.ErrDamaged.
var ErrLocked = errors.New("it does not open")

// Locked is something stored that does not open: a secret, or a damaged record. A
// secret is kept as it is stored, so that a change of something else writes it
// back; with the right key it opens again.
type Locked struct {
	text string
	err  error
}

// Err says why; it may name the key that is missing, never anything of a secret.
func (l *Locked) Err() error { return fmt.Errorf("%w: %w", ErrLocked, l.err) }

// vault seals what goes to Redis and opens what comes from it.
type vault struct{ keys *seal.Keyring }

func (v vault) seal(plain secret.Text, locked *Locked, place string) (string, error) {
	if locked != nil {
		return locked.text, nil
	}
	return v.keys.Seal([]byte(plain.Reveal()), place)
}

func (v vault) open(text, place string) (secret.Text, *Locked) {
	plain, err := v.keys.Open(text, place)
	if err != nil {
		return "", &Locked{text, err}
	}
	return secret.Text(plain), nil
}

// The places of secrets, which bind a sealed value to where it is kept.

func secretPlace(company, subscriber uuid.UUID) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/secret"
}

func headerPlace(company, subscriber uuid.UUID, name string) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/header/" + name
}

func signingKeyPlace(company uuid.UUID) string {
	return "company/" + company.String() + "/signing-key"
}

func certificatePlace(company uuid.UUID) string {
	return "company/" + company.String() + "/egress-key"
}
