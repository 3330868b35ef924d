package clients

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/netip"
	"slices"

	"spendhook/storage"
)

// The errors of Authenticate, beside storage.ErrUnavailable.
var (
	// ErrRefused means that the client is unknown or disabled, or that its credentials are
	// wrong. The error does not say which.
	ErrRefused = errors.New("the client is unknown, disabled, or its credentials are wrong")
	// ErrBusy means that too many requests wait to be authenticated.
	ErrBusy = errors.New("too many requests wait to be authenticated")
)

// Authenticate returns the enabled client with this id if the secret or the certificate
// ("x5t#S256") is right; "" stands for a missing one. A client with a list of certificates
// must present one of them, also with a secret. One request of each address is checked at a
// time; the others wait.
func (s *Store) Authenticate(ctx context.Context, id, secret, certificate string, from netip.Addr) (Client, error) {
	if !clientID.MatchString(id) {
		return Client{}, ErrRefused // no need to hide that the id is malformed
	}
	end, err := s.turns.Take(ctx, from)
	if err != nil {
		return Client{}, ErrBusy
	}
	client, err := s.Get(ctx, id)
	end()
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return client, err
	}
	bound := len(client.Certificates) > 0
	listed := bound && slices.Contains(client.Certificates, certificate)
	proven := listed && secret == "" || // tls_client_auth of RFC 8705 section 2, by thumbprint
		client.hasSecret(hashSecret(secret), s.now().Before(client.OldSecretUntil.Time))
	if err != nil || client.RevokedAt != nil || !proven || bound && !listed {
		return client, ErrRefused
	}
	return client, nil
}

// newSecret returns a client secret of 256 random bits and its stored hash.
func newSecret() (secret, hash string) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never returns an error: a failure ends the program
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return secret, hashSecret(secret)
}

// hashSecret returns the stored hash of a secret. A fast hash suffices: 256 random bits
// cannot be guessed.
func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// hasSecret reports whether hash is the hash of a valid secret of the client. It takes the
// same time for any number of secrets.
func (c Client) hasSecret(hash string, oldIsValid bool) bool {
	current := subtle.ConstantTimeCompare([]byte(hash), []byte(c.SecretHash))
	old := subtle.ConstantTimeCompare([]byte(hash), []byte(c.OldSecretHash))
	return current == 1 || old == 1 && oldIsValid
}
