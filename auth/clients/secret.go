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

// What Authenticate returns beside storage.ErrUnavailable.
var (
	// ErrRefused says that the client is unknown, disabled, or its credentials are
	// wrong; which it is, is not told.
	ErrRefused = errors.New("the client is unknown, disabled, or its credentials are wrong")
	// ErrBusy says that too many others wait to be authenticated.
	ErrBusy = errors.New("too many others wait to be authenticated")
)

// Authenticate finds the enabled client whose credentials these are: its id, with its
// secret or a certificate ("x5t#S256"), "" for what is not given. A client with a list of
// certificates has to present one of them, beside its secret when it gives one. One
// request of an address is looked up at a time; the others wait for their turn.
func (c *Store) Authenticate(ctx context.Context, id, secret, certificate string, from netip.Addr) (Client, error) {
	if !clientID.MatchString(id) {
		return Client{}, ErrRefused // the form of an id is no secret
	}
	end, err := c.turns.Take(ctx, from)
	if err != nil {
		return Client{}, ErrBusy
	}
	client, err := c.enabled(ctx, id)
	end()
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return client, err
	}
	bound := len(client.Certificates) > 0
	listed := bound && slices.Contains(client.Certificates, certificate)
	proven := listed && secret == "" || // tls_client_auth of RFC 8705 section 2, by thumbprint
		client.hasSecret(hashSecret(secret), c.now().Before(client.OldSecretUntil))
	if !proven || bound && !listed {
		return client, ErrRefused
	}
	return client, nil
}

// enabled reads an enabled client.
func (c *Store) enabled(ctx context.Context, id string) (Client, error) {
	client, err := c.rows.read(ctx, id)
	if err == nil && client.RevokedAt != nil {
		return Client{}, storage.ErrNotFound
	}
	return client, err
}

// newSecret returns a client secret of 256 random bits, and what is kept of it.
func newSecret() (secret, hash string) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random)
	return secret, hashSecret(secret)
}

// hashSecret is what is kept of a secret. A slow hash is for secrets that people
// choose: 256 random bits cannot be guessed.
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
