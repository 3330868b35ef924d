package clients

import (
	"context"
	"time"

	"github.com/uptrace/bun"

	"spendhook/storage"
)

// Client is an OAuth client: a program that gets access tokens.
type Client struct {
	bun.BaseModel `bun:"table:clients,alias:c"`

	ID      string       `bun:"id,pk"`
	Name    string       `bun:"name"`
	Company *storage.Key `bun:"company_uuid"` // nil: not tied to a company
	Scopes  []string     `bun:"scopes"`
	// Certificates are the "x5t#S256" of the certificates that the client may present.
	Certificates []string `bun:"certificates"`
	// SecretHash is "" for a client that has no secret. OldSecretHash is the hash of the previous
	// secret, which is valid until OldSecretUntil.
	SecretHash     string        `bun:"secret_hash"`
	OldSecretHash  string        `bun:"old_secret_hash"`
	OldSecretUntil storage.Time  `bun:"old_secret_until"`
	CreatedAt      storage.Time  `bun:"created_at"`
	UpdatedAt      storage.Time  `bun:"updated_at"`
	RevokedAt      *storage.Time `bun:"revoked_at"` // when the client was disabled; nil: enabled

	Deleted bool `bun:"deleted"` // Get and List return no deleted client
}

// insert adds a client, whose id must be new.
func (s *Store) insert(ctx context.Context, client Client) error {
	return s.db.Write(ctx, "create client", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewInsert().Model(&client).Exec(ctx)
		return err
	})
}

// Get reads a client, or returns storage.ErrNotFound.
func (s *Store) Get(ctx context.Context, id string) (client Client, err error) {
	err = s.db.Query(ctx, "read client", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model(&client).Where("id = ?", id).Where("NOT deleted").Scan(ctx)
	})
	return client, err
}

// listAfter lists at most limit clients, the first created first, that come after a place; nil
// means from the first.
func (s *Store) listAfter(ctx context.Context, place *clientPlace, limit int) (list []Client, err error) {
	err = s.db.Query(ctx, "list clients", func(ctx context.Context, db bun.IDB) error {
		q := db.NewSelect().Model(&list).Where("NOT deleted").OrderExpr("created_at, id").Limit(int64(limit))
		if place != nil {
			q = q.Where("(created_at, id) > (?, ?)", place.CreatedAt, place.ID)
		}
		return q.Scan(ctx)
	})
	return list, err
}

// change reads and locks a client, calls change, and stores and returns the result. change
// may be called more than once. The error is storage.ErrNotFound for an unknown client.
func (s *Store) change(ctx context.Context, id string, change func(*Client) error) (changed Client, err error) {
	err = s.db.Write(ctx, "change client", func(ctx context.Context, tx bun.Tx) error {
		changed = Client{}
		q := tx.NewSelect().Model(&changed).Where("id = ?", id).Where("NOT deleted")
		if err := storage.Locked(q, "").Scan(ctx); err != nil {
			return err
		}
		if err := change(&changed); err != nil {
			return err
		}
		_, err := tx.NewUpdate().Model(&changed).WherePK().Exec(ctx)
		return err
	})
	return changed, err
}

// Delete deletes a client, or returns storage.ErrNotFound. Every replica refuses its tokens
// within keys.SyncInterval. The columns that revokedSince reads stay until purge.
func (s *Store) Delete(ctx context.Context, id string) error {
	return s.db.Write(ctx, "delete client", func(ctx context.Context, tx bun.Tx) error {
		gone, err := tx.NewUpdate().Model((*Client)(nil)).
			Set("deleted = ?", true).Set("revoked_at = ?", s.now().UnixMilli()).
			Set("secret_hash = ''").Set("old_secret_hash = ''").Set("certificates = '[]'").
			Where("id = ?", id).Where("NOT deleted").Exec(ctx)
		if err != nil {
			return err
		}
		n, err := gone.RowsAffected()
		if err == nil && n == 0 {
			err = storage.ErrNotFound
		}
		return err
	})
}

// revokedSince lists the ids of the clients that were disabled or deleted
// after since, and have not been enabled again.
func (s *Store) revokedSince(ctx context.Context, since time.Time) ([]string, error) {
	var ids []string
	err := s.db.Query(ctx, "list revoked clients", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model((*Client)(nil)).Column("id").
			Where("revoked_at > ?", since.UnixMilli()).Scan(ctx, &ids)
	})
	return ids, err
}

// purge removes the rows of clients that were deleted before the given time.
func (s *Store) purge(ctx context.Context, before time.Time) error {
	return s.db.Write(ctx, "purge clients", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewDelete().Model((*Client)(nil)).
			Where("deleted").Where("revoked_at < ?", before.UnixMilli()).Exec(ctx)
		return err
	})
}
