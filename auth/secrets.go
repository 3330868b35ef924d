package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
)

// newSecret returns a client secret of 256 random bits, and what is kept of it.
func newSecret() (secret, hash string) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return secret, hashSecret(secret)
}

// hashSecret is what is kept of a secret. A slow hash is for secrets that people
// choose: nobody finds one of 256 random bits by trying, however fast.
func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// hasSecret reports whether hash is that of one of a client's secrets. It takes
// as long for a client with two secrets, one or none.
func (c Client) hasSecret(hash string, oldIsGood bool) bool {
	current := subtle.ConstantTimeCompare([]byte(hash), []byte(c.SecretHash))
	old := subtle.ConstantTimeCompare([]byte(hash), []byte(c.OldSecretHash))
	return current == 1 || old == 1 && oldIsGood
}
