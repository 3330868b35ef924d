package subscribers

import (
	"crypto/rand"
	"encoding/base64"

	"spendhook/internal/secret"
)

// Secret is a signing secret of Standard Webhooks, "whsec_" and the base64 of its
// bytes, or the value of a header.
type Secret = secret.Text

// newSecret makes a secret of 32 random bytes (Standard Webhooks asks for
// 24 to 64).
func newSecret() Secret {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the program instead
	return Secret("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
}
