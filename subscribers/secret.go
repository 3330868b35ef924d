package subscribers

import (
	"crypto/rand"
	"encoding/base64"

	"spendhook/internal/secret"
)

// newSecret makes a signing secret of Standard Webhooks: "whsec_" and the base64 of 32
// random bytes (of 24 to 64 that it asks for).
func newSecret() secret.Text {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the program instead
	return secret.Text("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
}
