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
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"spendhook/auth"
	"spendhook/auth/keys"
	"spendhook/internal/cursor"
	"spendhook/internal/invalid"
	"spendhook/internal/peer"
	"spendhook/storage"
)

const (
	clientPrefix, secretPrefix = "shc_", "shs_"
	maxCertificates            = 50
	maxName                    = 255
	// MaxOverlap bounds how long the secret before a rotation stays good.
	MaxOverlap = 30 * 24 * time.Hour

	reads      = 8 // of clients that prove who they are, from the database at once
	purgeSlack = 24 * time.Hour

	usedResolution = time.Minute
	maxUsed        = 10_000
)

var (
	clientID    = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
	thumbprints = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
)

// Store keeps the OAuth clients in the database. It is safe for concurrent use.
type Store struct {
	rows    clientRows
	now     func() time.Time
	turns   *peer.Turns
	revoked atomic.Pointer[map[string]bool]

	mu   sync.Mutex
	used map[string]time.Time // since the last Sync
}

// NewStore returns the clients of a database; nil now means time.Now.
func NewStore(db *storage.DB, now func() time.Time) *Store {
	if now == nil {
		now = time.Now //nolint:forbidigo // the nil default
	}
	c := &Store{rows: clientRows{db}, now: now, turns: peer.NewTurns(reads), used: map[string]time.Time{}}
	c.revoked.Store(&map[string]bool{})
	return c
}

// Revoked reports whether tokens of a client are refused, since it was disabled or
// deleted not long ago, as far as the last Sync knows; false for "".
func (c *Store) Revoked(id string) bool { return id != "" && (*c.revoked.Load())[id] }

// Sync learns which clients were disabled or deleted, while tokens of theirs
// may still be valid, and notes which were used. When it fails, what is known
// stays.
func (c *Store) Sync(ctx context.Context) error {
	alive := c.now().Add(-keys.TokenTTL - 2*keys.ClockSlack)
	ids, err := c.rows.revoked(ctx, alive)
	if err != nil {
		return err
	}
	revoked := make(map[string]bool, len(ids))
	for _, id := range ids {
		revoked[id] = true
	}
	c.revoked.Store(&revoked)
	if err := c.flushUsed(ctx); err != nil {
		return err
	}
	return c.rows.purge(ctx, alive.Add(-purgeSlack))
}

// Used remembers that a client was used, for the next Sync to note.
func (c *Store) Used(client Client) {
	now := c.now()
	if client.LastUsedAt != nil && now.Sub(*client.LastUsedAt) < usedResolution {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.used) < maxUsed { // while the database is away; what is left out is only told late
		c.used[client.ID] = now
	}
}

func (c *Store) flushUsed(ctx context.Context) error {
	c.mu.Lock()
	used := c.used
	c.used = map[string]time.Time{}
	c.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return c.rows.touch(ctx, used)
}

// Registration is what an operator says of a new client. One with certificates gets no
// token without presenting one of them.
type Registration struct {
	Name         string
	Company      *uuid.UUID // nil ties it to none
	Scopes       []string
	Certificates []string // "x5t#S256" of those it may present
	NoSecret     bool     // it authenticates by certificate only
}

func (n Registration) check() error {
	problems := &invalid.Error{}
	if strings.TrimSpace(n.Name) == "" || len(n.Name) > maxName || strings.ContainsFunc(n.Name, func(r rune) bool { return r < ' ' || r == '\uFFFD' }) {
		problems.Add("name", "INVALID", "must be 1 to %d bytes of text", maxName)
	}
	if len(n.Scopes) == 0 {
		problems.Add("scopes", "REQUIRED", "at least one is needed")
	}
	if err := auth.CheckScopes(n.Scopes); err != nil {
		problems.Add("scopes", "INVALID", "%s", err)
	}
	if n.Company != nil && (slices.Contains(n.Scopes, auth.ScopePlatform) || slices.Contains(n.Scopes, auth.ScopeOperator)) {
		problems.Add("scopes", "INVALID", "%s and %s reach beyond one company: they are not for a client of a company", auth.ScopePlatform, auth.ScopeOperator)
	}
	checkCertificates(problems, n.Certificates, !n.NoSecret)
	return problems.OrNil()
}

func checkCertificates(problems *invalid.Error, list []string, hasSecret bool) {
	if len(list) > maxCertificates {
		problems.Add("certificates", "TOO_MANY", "at most %d", maxCertificates)
	}
	for _, print := range list {
		if !thumbprints.MatchString(print) {
			problems.Add("certificates", "INVALID", "must be an x5t#S256 thumbprint, 43 characters of base64url")
		}
	}
	if !hasSecret && len(list) == 0 {
		problems.Add("certificates", "REQUIRED", "a client without a secret needs one")
	}
}

// Create makes a client. Its secret, "" for one without, is told here only. The
// error is an *invalid.Error for what a client cannot be.
func (c *Store) Create(ctx context.Context, n Registration) (client Client, secret string, err error) {
	if err := n.check(); err != nil {
		return client, "", err
	}
	id := make([]byte, 12)
	_, _ = rand.Read(id) // it never fails
	now := c.now()
	client = Client{
		ID: clientPrefix + hex.EncodeToString(id), Name: n.Name, Company: n.Company,
		Scopes: unique(n.Scopes), Certificates: unique(n.Certificates), CreatedAt: now, UpdatedAt: now,
	}
	if !n.NoSecret {
		secret, client.SecretHash = newSecret()
	}
	return client, secret, c.rows.create(ctx, client)
}

func unique(list []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// RotateSecret gives a client a new secret, told here only. The one it had is
// good for overlap more; the one before that no longer is. It returns
// storage.ErrNotFound for an unknown client.
func (c *Store) RotateSecret(ctx context.Context, id string, overlap time.Duration) (client Client, secret string, err error) {
	if overlap < 0 || overlap > MaxOverlap {
		return client, "", fmt.Errorf("the overlap must be 0 to %v", MaxOverlap)
	}
	secret, hash := newSecret()
	client, err = c.rows.change(ctx, id, func(s *Client) error {
		now := c.now()
		s.OldSecretHash, s.OldSecretUntil = s.SecretHash, now.Add(overlap)
		if overlap == 0 {
			s.OldSecretHash = ""
		}
		s.SecretHash, s.UpdatedAt = hash, now
		return nil
	})
	return client, secret, err
}

// SetCertificates replaces the list of certificates ("x5t#S256") of which a client
// must present one; with an empty one it may present any, or none, and needs its secret. A token
// that it got with one that is no longer listed is good until it expires. The
// error is an *invalid.Error for what the list cannot be, and storage.ErrNotFound
// for an unknown client.
func (c *Store) SetCertificates(ctx context.Context, id string, list []string) (Client, error) {
	problems := &invalid.Error{}
	if checkCertificates(problems, list, true); problems.OrNil() != nil {
		return Client{}, problems
	}
	return c.rows.change(ctx, id, func(s *Client) error {
		if checkCertificates(problems, list, s.SecretHash != ""); problems.OrNil() != nil {
			return problems
		}
		s.Certificates, s.UpdatedAt = unique(list), c.now()
		return nil
	})
}

// SetDisabled disables or enables a client. A disabled one gets no token, and
// its tokens are refused once every replica has looked (keys.SyncInterval). Enabled
// again, those that have not expired are good again. It returns
// storage.ErrNotFound for an unknown client.
func (c *Store) SetDisabled(ctx context.Context, id string, disabled bool) (Client, error) {
	return c.rows.change(ctx, id, func(s *Client) error {
		now := c.now()
		switch {
		case disabled == (s.RevokedAt != nil):
			return nil
		case disabled:
			s.RevokedAt = &now
		default:
			s.RevokedAt = nil
		}
		s.UpdatedAt = now
		return nil
	})
}

// Delete deletes a client, with the effect that SetDisabled has on its tokens.
func (c *Store) Delete(ctx context.Context, id string) error {
	return c.rows.delete(ctx, id, c.now())
}

// Get reads a client, or returns storage.ErrNotFound.
func (c *Store) Get(ctx context.Context, id string) (Client, error) {
	return c.rows.read(ctx, id)
}

// clientPlace is where a list goes on.
type clientPlace struct {
	CreatedAt int64
	ID        string
}

const clientList = "clients"

// List reads at most size clients, the first created first, from a place that the call
// before it named, or from the first, and says where the list goes on: "" at its end.
// cursor.ErrBad for a place of another list.
func (c *Store) List(ctx context.Context, at string, size int) (list []Client, next string, err error) {
	var place clientPlace
	var after *Client
	if err := cursor.Decode(at, clientList, nil, &place); err != nil {
		return nil, "", err
	}
	if at != "" {
		after = &Client{ID: place.ID, CreatedAt: time.UnixMilli(place.CreatedAt)}
	}
	list, err = c.rows.list(ctx, after, size+1)
	if err != nil || len(list) <= size {
		return list, "", err
	}
	last := list[size-1]
	return list[:size], cursor.Encode(clientList, nil, clientPlace{last.CreatedAt.UnixMilli(), last.ID}), nil
}
