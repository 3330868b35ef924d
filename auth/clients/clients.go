// Package clients keeps the OAuth clients, the programs that get access tokens: their
// ids, scopes, secrets and certificates.
package clients

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"spendhook/auth"
	"spendhook/auth/keys"
	"spendhook/internal/clientcert"
	"spendhook/internal/clock"
	"spendhook/internal/cursor"
	"spendhook/internal/invalid"
	"spendhook/internal/peer"
	"spendhook/storage"
)

const (
	clientPrefix, secretPrefix = "shc_", "shs_"
	maxCertificates            = 50
	maxName                    = 255
	// MaxOverlap bounds how long the old secret stays valid after a rotation.
	MaxOverlap = 30 * 24 * time.Hour

	reads      = 8 // concurrent database reads that authenticate clients
	purgeSlack = 24 * time.Hour
)

var clientID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// Store keeps the OAuth clients in the database. It is safe for concurrent use.
type Store struct {
	db      *storage.DB
	now     func() time.Time
	turns   *peer.Turns
	revoked atomic.Pointer[map[string]bool]
}

// NewStore returns the clients of a database; nil now means time.Now.
func NewStore(db *storage.DB, now func() time.Time) *Store {
	s := &Store{db: db, now: clock.Or(now), turns: peer.NewTurns(reads)}
	s.revoked.Store(&map[string]bool{})
	return s
}

// Revoked reports whether the tokens of a client are refused, because the last Sync found
// the client recently disabled or deleted. It returns false for "".
func (s *Store) Revoked(id string) bool { return id != "" && (*s.revoked.Load())[id] }

// Sync reads the clients that were disabled or deleted while their tokens may still be
// valid, and removes those that were deleted long ago. After an error the clients of the last
// Sync stay revoked.
func (s *Store) Sync(ctx context.Context) error {
	expired := s.now().Add(-keys.TokenTTL - 2*keys.ClockSlack) // tokens issued before are expired
	ids, err := s.revokedSince(ctx, expired)
	if err != nil {
		return err
	}
	revoked := make(map[string]bool, len(ids))
	for _, id := range ids {
		revoked[id] = true
	}
	s.revoked.Store(&revoked)
	return s.purge(ctx, expired.Add(-purgeSlack))
}

// Registration describes a new client. A client with certificates must present one of them
// to get a token.
type Registration struct {
	Name         string
	Company      *uuid.UUID // nil: not tied to a company
	Scopes       []string
	Certificates []string // "x5t#S256" of the certificates that the client may present
	NoSecret     bool     // the client authenticates by certificate only
}

func (r Registration) check() error {
	problems := &invalid.Error{}
	if strings.TrimSpace(r.Name) == "" || len(r.Name) > maxName || strings.ContainsFunc(r.Name, func(c rune) bool { return c < ' ' || c == '\uFFFD' }) {
		problems.Add("name", "INVALID", "must be 1 to %d bytes of text", maxName)
	}
	if len(r.Scopes) == 0 {
		problems.Add("scopes", "REQUIRED", "must name at least one scope")
	}
	if err := auth.CheckScopes(r.Scopes); err != nil {
		problems.Add("scopes", "INVALID", "%s", err)
	}
	if r.Company != nil && (slices.Contains(r.Scopes, auth.ScopePlatform) || slices.Contains(r.Scopes, auth.ScopeOperator)) {
		problems.Add("scopes", "INVALID", "%s and %s reach beyond one company: they are not for a client of a company", auth.ScopePlatform, auth.ScopeOperator)
	}
	if r.Company == nil && slices.Contains(r.Scopes, auth.ScopeOperator) && !slices.Contains(r.Scopes, auth.ScopePlatform) {
		problems.Add("scopes", "INVALID", "%s is for the company of a token: without one, a client needs %s, too", auth.ScopeOperator, auth.ScopePlatform)
	}
	checkCertificates(problems, r.Certificates, !r.NoSecret)
	return problems.OrNil()
}

func checkCertificates(problems *invalid.Error, list []string, hasSecret bool) {
	if len(list) > maxCertificates {
		problems.Add("certificates", "TOO_MANY", "must have at most %d certificates", maxCertificates)
	}
	for _, thumbprint := range list {
		if !clientcert.IsThumbprint(thumbprint) {
			problems.Add("certificates", "INVALID", "must be an x5t#S256 thumbprint, 43 characters of base64url")
		}
	}
	if !hasSecret && len(list) == 0 {
		problems.Add("certificates", "REQUIRED", "a client without a secret needs a certificate")
	}
}

// Create creates a client and returns its secret, which cannot be read later; "" for a
// client without a secret. The error is an *invalid.Error for invalid fields.
func (s *Store) Create(ctx context.Context, r Registration) (client Client, secret string, err error) {
	if err := r.check(); err != nil {
		return client, "", err
	}
	id := make([]byte, 12)
	_, _ = rand.Read(id) // never returns an error: a failure ends the program
	now := storage.At(s.now())
	client = Client{
		ID: clientPrefix + hex.EncodeToString(id), Name: r.Name, Company: (*storage.Key)(r.Company),
		Scopes: unique(r.Scopes), Certificates: unique(r.Certificates), CreatedAt: now, UpdatedAt: now,
	}
	if !r.NoSecret {
		secret, client.SecretHash = newSecret()
	}
	return client, secret, s.insert(ctx, client)
}

func unique(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// RotateSecret creates a new secret for a client and returns it. The current secret stays
// valid for the overlap. An older secret is invalid from now on. The error is
// storage.ErrNotFound for an unknown client.
func (s *Store) RotateSecret(ctx context.Context, id string, overlap time.Duration) (client Client, secret string, err error) {
	if overlap < 0 || overlap > MaxOverlap {
		return client, "", fmt.Errorf("the overlap must be 0 to %v", MaxOverlap)
	}
	secret, hash := newSecret()
	client, err = s.change(ctx, id, func(c *Client) error {
		now := s.now()
		c.OldSecretHash, c.OldSecretUntil = c.SecretHash, storage.At(now.Add(overlap))
		if overlap == 0 {
			c.OldSecretHash = ""
		}
		c.SecretHash, c.UpdatedAt = hash, storage.At(now)
		return nil
	})
	return client, secret, err
}

// SetCertificates replaces the certificates ("x5t#S256") of which a client must present one.
// With an empty list the client needs its secret and may present any certificate. Tokens
// that are bound to a removed certificate stay valid until they expire. The error is an
// *invalid.Error for an invalid list, and storage.ErrNotFound for an unknown client.
func (s *Store) SetCertificates(ctx context.Context, id string, list []string) (Client, error) {
	problems := &invalid.Error{}
	if checkCertificates(problems, list, true); problems.OrNil() != nil {
		return Client{}, problems
	}
	return s.change(ctx, id, func(c *Client) error {
		if checkCertificates(problems, list, c.SecretHash != ""); problems.OrNil() != nil {
			return problems
		}
		c.Certificates, c.UpdatedAt = unique(list), storage.At(s.now())
		return nil
	})
}

// SetDisabled disables or enables a client. A disabled client gets no token, and every
// replica refuses its tokens within keys.SyncInterval. Once the client is enabled again, its
// unexpired tokens are valid again. The error is storage.ErrNotFound for an unknown client.
func (s *Store) SetDisabled(ctx context.Context, id string, disabled bool) (Client, error) {
	return s.change(ctx, id, func(c *Client) error {
		now := storage.At(s.now())
		switch {
		case disabled == (c.RevokedAt != nil):
			return nil
		case disabled:
			c.RevokedAt = &now
		default:
			c.RevokedAt = nil
		}
		c.UpdatedAt = now
		return nil
	})
}

// clientPlace is the position in a list after which the next page begins.
type clientPlace struct {
	CreatedAt int64
	ID        string
}

const clientList = "clients"

// List reads at most size clients, the oldest first, from the cursor at; "" begins with the
// first. next is the cursor of the next page, "" at the end. The error is cursor.ErrBad for
// a cursor of another list.
func (s *Store) List(ctx context.Context, at string, size int) (list []Client, next string, err error) {
	var place *clientPlace
	if err := cursor.Decode(at, clientList, nil, &place); err != nil {
		return nil, "", err
	}
	list, err = s.listAfter(ctx, place, size+1)
	if err != nil || len(list) <= size {
		return list, "", err
	}
	last := list[size-1]
	return list[:size], cursor.Encode(clientList, nil, clientPlace{last.CreatedAt.UnixMilli(), last.ID}), nil
}
