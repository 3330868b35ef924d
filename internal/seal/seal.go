// Package seal encrypts the secrets stored in Redis and SQL, so that a dump, a backup or a
// replica does not reveal them.
//
// A sealed value is printable text, "sealed1:<key id>:<base64url>": AES-256-GCM
// (NIST SP 800-38D) with a random nonce in front. The place of a value is its additional data,
// so that a value that was moved to another place does not open there. With random nonces a key
// may seal 2^32 values (SP 800-38D section 8.3), far more than one deployment has.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const prefix = "sealed1:"

var (
	// ErrUnknownKey is wrapped by the error of a value that was sealed under a
	// key that the ring does not have; the message names the key's id.
	ErrUnknownKey = errors.New("encryption key is not configured")
	// ErrDamaged means that a value was changed, or moved from another place.
	ErrDamaged = errors.New("sealed value is damaged or was moved")
)

// Keyring seals under its current key and opens under any of its keys. It is
// immutable and safe for concurrent use.
type Keyring struct {
	current string
	keys    map[string]cipher.AEAD
}

var keyID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// New returns a Keyring that seals under current and also opens what was
// sealed under the older keys.
func New(current Key, older ...Key) (*Keyring, error) {
	r := &Keyring{current: current.ID, keys: make(map[string]cipher.AEAD, 1+len(older))}
	for _, k := range append([]Key{current}, older...) {
		if r.keys[k.ID] != nil {
			return nil, fmt.Errorf("encryption key %s is given twice", k.ID)
		}
		block, err := aes.NewCipher(k.Secret[:])
		if err != nil {
			return nil, err
		}
		if r.keys[k.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// errNoKeyring is the error of a nil Keyring.
var errNoKeyring = errors.New("no encryption key is configured")

// CurrentID is the id of the key that new values are sealed under.
func (r *Keyring) CurrentID() string { return r.current }

// IDs are the ids of all keys, sorted.
func (r *Keyring) IDs() []string { return slices.Sorted(maps.Keys(r.keys)) }

// Seal encrypts plain for a place; Open needs the same place.
func (r *Keyring) Seal(plain []byte, place string) (string, error) {
	if r == nil {
		return "", errNoKeyring
	}
	text := r.keys[r.current].Seal(nil, nil, plain, []byte(place)) //nolint:gosec // the AEAD draws the nonce itself
	return prefix + r.current + ":" + base64.RawURLEncoding.EncodeToString(text), nil
}

// Open decrypts a sealed value. The error wraps ErrUnknownKey or ErrDamaged,
// and contains no part of the value.
func (r *Keyring) Open(sealed, place string) ([]byte, error) {
	if r == nil {
		return nil, errNoKeyring
	}
	id, text, err := split(sealed)
	if err != nil {
		return nil, err
	}
	key := r.keys[id]
	if key == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnknownKey, id)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%w (key %s)", ErrDamaged, id)
	}
	plain, err := key.Open(nil, nil, raw, []byte(place))
	if err != nil {
		return nil, fmt.Errorf("%w (key %s)", ErrDamaged, id)
	}
	return plain, nil
}

// IsSealed reports whether text has the form of a sealed value.
func IsSealed(text string) bool { return KeyID(text) != "" }

// KeyID is the id of the key that a value is sealed under; "" for a value that is not
// sealed.
func KeyID(value string) string {
	id, _, err := split(value)
	if err != nil {
		return ""
	}
	return id
}

func split(sealed string) (id, text string, err error) {
	rest, ok := strings.CutPrefix(sealed, prefix)
	id, text, found := strings.Cut(rest, ":")
	if !ok || !found || !keyID.MatchString(id) {
		return "", "", fmt.Errorf("%w: it does not have the form of a sealed value", ErrDamaged)
	}
	return id, text, nil
}

// Key is an AES-256 key with its id, which sealed values contain. Every print format shows only
// the id.
type Key struct {
	ID     string
	Secret [32]byte
}

// Format writes the id for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "key "+k.ID) }

var errKeyText = errors.New("an encryption key is 32 random bytes in base64, as from: openssl rand -base64 32")

// ParseKey reads 32 bytes in base64; white space around them is ignored. The key's id is derived
// from it, so that the same key has the same id wherever it is configured. The error never
// repeats the text.
func ParseKey(text string) (Key, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != 32 {
		return Key{}, errKeyText
	}
	return newKey([32]byte(raw)), nil
}

// newKey derives the id of a key from an HMAC under the key, which does not reveal the key.
func newKey(secret [32]byte) Key {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte("spendhook encryption key id"))
	return Key{ID: hex.EncodeToString(mac.Sum(nil)[:6]), Secret: secret}
}

// NewKeyText returns a new random key in the form that ParseKey reads.
func NewKeyText() string {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails: it ends the program instead
	return base64.StdEncoding.EncodeToString(secret[:])
}
