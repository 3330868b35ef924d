package auth

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

	"spendhook/internal/cursor"
	"spendhook/internal/invalid"
	"spendhook/storage"
)

const (
	clientPrefix, secretPrefix = "shc_", "shs_"
	maxCertificates            = 50
	maxName                    = 255
	// MaxOverlap bounds how long the secret before a rotation stays good.
	MaxOverlap = 30 * 24 * time.Hour

	usedResolution = time.Minute
	maxUsed        = 10_000
)

var (
	clientID    = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
	thumbprints = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
)

// Clients are the OAuth clients. They are safe for concurrent use.
type Clients struct {
	rows    clientRows
	now     func() time.Time
	revoked atomic.Pointer[map[string]bool]

	mu   sync.Mutex
	used map[string]time.Time // since the last Sync
}

// NewClients are those of a database; nil now means time.Now.
func NewClients(db *storage.DB, now func() time.Time) *Clients {
	if now == nil {
		now = time.Now //nolint:forbidigo // the nil default
	}
	c := &Clients{rows: clientRows{db}, now: now, used: map[string]time.Time{}}
	c.revoked.Store(&map[string]bool{})
	return c
}

// isRevoked reports whether tokens of the client are refused, as far as the last
// Sync knows.
func (c *Clients) isRevoked(id string) bool { return id != "" && (*c.revoked.Load())[id] }

// Sync learns which clients were disabled or deleted, while tokens of theirs
// may still be valid, and notes which were used. When it fails, what is known
// stays.
func (c *Clients) Sync(ctx context.Context) error {
	alive := c.now().Add(-TokenTTL - 2*clockSlack)
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
	return c.rows.purge(ctx, alive.Add(-pruneSlack))
}

// touch remembers that a client was used, for the next Sync to note.
func (c *Clients) touch(client Client) {
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

func (c *Clients) flushUsed(ctx context.Context) error {
	c.mu.Lock()
	used := c.used
	c.used = map[string]time.Time{}
	c.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return c.rows.touch(ctx, used)
}

// NewClient is what an operator says of a client. One with certificates gets no
// token without presenting one of them.
type NewClient struct {
	Name         string
	Company      *uuid.UUID // nil ties it to none
	Scopes       []string
	Certificates []string // "x5t#S256" of those it may present
	NoSecret     bool     // it authenticates by certificate only
}

func (n NewClient) check() error {
	problems := &invalid.Error{}
	if strings.TrimSpace(n.Name) == "" || len(n.Name) > maxName || strings.ContainsFunc(n.Name, func(r rune) bool { return r < ' ' || r == '\uFFFD' }) {
		problems.Add("name", "INVALID", "must be 1 to %d bytes of text", maxName)
	}
	if len(n.Scopes) == 0 {
		problems.Add("scopes", "REQUIRED", "at least one is needed")
	}
	if err := checkScopes(n.Scopes); err != nil {
		problems.Add("scopes", "INVALID", "%s", err)
	}
	if n.Company != nil && (slices.Contains(n.Scopes, scopePlatform) || slices.Contains(n.Scopes, scopeOperator)) {
		problems.Add("scopes", "INVALID", "%s and %s reach beyond one company: they are not for a client of a company", scopePlatform, scopeOperator)
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
func (c *Clients) Create(ctx context.Context, n NewClient) (client Client, secret string, err error) {
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
func (c *Clients) RotateSecret(ctx context.Context, id string, overlap time.Duration) (client Client, secret string, err error) {
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
func (c *Clients) SetCertificates(ctx context.Context, id string, list []string) (Client, error) {
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
// its tokens are refused once every replica has looked (SyncInterval). Enabled
// again, those that have not expired are good again. It returns
// storage.ErrNotFound for an unknown client.
func (c *Clients) SetDisabled(ctx context.Context, id string, disabled bool) (Client, error) {
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
func (c *Clients) Delete(ctx context.Context, id string) error {
	return c.rows.delete(ctx, id, c.now())
}

// Get reads a client, or returns storage.ErrNotFound.
func (c *Clients) Get(ctx context.Context, id string) (Client, error) {
	return c.rows.read(ctx, id)
}

// ClientPage is a part of the list of clients.
type ClientPage struct {
	Items []Client
	Next  string // where the list goes on; "" at its end
}

// clientPlace is where a list goes on.
type clientPlace struct {
	CreatedAt int64
	ID        string
}

const clientList = "clients"

// List reads a page of at most size clients, the first created first, from a place that
// the page before it named, or from the first. cursor.ErrBad for a place of another list.
func (c *Clients) List(ctx context.Context, at string, size int) (ClientPage, error) {
	var place clientPlace
	var after *Client
	if err := cursor.Decode(at, clientList, nil, &place); err != nil {
		return ClientPage{}, err
	}
	if at != "" {
		after = &Client{ID: place.ID, CreatedAt: time.UnixMilli(place.CreatedAt)}
	}
	list, err := c.rows.list(ctx, after, size+1)
	if err != nil || len(list) <= size {
		return ClientPage{Items: list}, err
	}
	last := list[size-1]
	return ClientPage{Items: list[:size], Next: cursor.Encode(clientList, nil, clientPlace{last.CreatedAt.UnixMilli(), last.ID})}, nil
}

// Each calls do for every client, the first created first, until it errs.
func (c *Clients) Each(ctx context.Context, do func(Client) error) error {
	const page = 500
	var last *Client
	for {
		list, err := c.rows.list(ctx, last, page)
		if err != nil {
			return err
		}
		for _, client := range list {
			if err := do(client); err != nil {
				return err
			}
		}
		if len(list) < page {
			return nil
		}
		last = &list[page-1]
	}
}
