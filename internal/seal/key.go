package seal

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Key is an AES-256 key with its id, which sealed values contain. Every print format shows only
// the id.
type Key struct {
	ID     string
	Secret [32]byte
}

// Format writes the id for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "key "+k.ID) }

var errKeyText = errors.New("an encryption key is 32 random bytes in base64 or hex, as from: openssl rand -base64 32")

// ParseKey reads 32 bytes in base64 (either alphabet, padded or not) or hex;
// white space around them is ignored. The key's id is derived from it, so that
// the same key has the same id wherever it is configured. The error never
// repeats the text.
func ParseKey(text string) (Key, error) {
	raw, err := decodeKey(strings.TrimSpace(text))
	if err != nil {
		return Key{}, err
	}
	return newKey([32]byte(raw)), nil
}

func decodeKey(text string) ([]byte, error) {
	if raw, err := hex.DecodeString(text); err == nil && len(raw) == 32 {
		return raw, nil
	}
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	raw, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || len(raw) != 32 {
		return nil, errKeyText
	}
	return raw, nil
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
