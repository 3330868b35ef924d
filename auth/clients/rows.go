package clients

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/column"
)

// Client is an OAuth client: a program that gets access tokens.
type Client struct {
	ID, Name string
	Company  *uuid.UUID // nil ties it to none
	Scopes   []string
	// Certificates are the "x5t#S256" of the certificates it may present.
	Certificates []string
	// SecretHash is "" for a client that has no secret. OldSecretHash is that
	// of the secret before, which is good until OldSecretUntil.
	SecretHash, OldSecretHash string
	OldSecretUntil            time.Time
	CreatedAt, UpdatedAt      time.Time
	LastUsedAt                *time.Time // to the minute; nil: never
	RevokedAt                 *time.Time // since when it is disabled; nil: it is enabled
}

// clientRows are the OAuth clients in the database.
type clientRows struct{ db *storage.DB }

type clientRow struct {
	bun.BaseModel `bun:"table:clients,alias:c"`

	ID             string      `bun:"id,pk"`
	Name           string      `bun:"name"`
	CompanyUUID    *column.Key `bun:"company_uuid"`
	Scopes         string      `bun:"scopes"`
	Certificates   string      `bun:"certificates"`
	SecretHash     string      `bun:"secret_hash"`
	OldSecretHash  string      `bun:"old_secret_hash"`
	OldSecretUntil int64       `bun:"old_secret_until"`
	CreatedAt      int64       `bun:"created_at"`
	UpdatedAt      int64       `bun:"updated_at"`
	LastUsedAt     *int64      `bun:"last_used_at"`
	RevokedAt      *int64      `bun:"revoked_at"`
	Deleted        bool        `bun:"deleted"`
}

func newClientRow(c Client) clientRow {
	r := clientRow{
		ID: c.ID, Name: c.Name, Scopes: strings.Join(c.Scopes, " "), Certificates: strings.Join(c.Certificates, " "),
		SecretHash: c.SecretHash, OldSecretHash: c.OldSecretHash, OldSecretUntil: c.OldSecretUntil.UnixMilli(),
		CreatedAt: c.CreatedAt.UnixMilli(), UpdatedAt: c.UpdatedAt.UnixMilli(),
		LastUsedAt: millis(c.LastUsedAt), RevokedAt: millis(c.RevokedAt),
	}
	if c.Company != nil {
		r.CompanyUUID = new(column.Key(*c.Company))
	}
	return r
}

func (r *clientRow) client() Client {
	return Client{
		ID: r.ID, Name: r.Name, Company: r.CompanyUUID.UUID(),
		Scopes: strings.Fields(r.Scopes), Certificates: strings.Fields(r.Certificates),
		SecretHash: r.SecretHash, OldSecretHash: r.OldSecretHash, OldSecretUntil: time.UnixMilli(r.OldSecretUntil).UTC(),
		CreatedAt: time.UnixMilli(r.CreatedAt).UTC(), UpdatedAt: time.UnixMilli(r.UpdatedAt).UTC(),
		LastUsedAt: column.FromMillis(r.LastUsedAt), RevokedAt: column.FromMillis(r.RevokedAt),
	}
}

func millis(t *time.Time) *int64 {
	if t == nil {
		return nil
	}
	return new(t.UnixMilli())
}

// create adds a client, whose id must be new.
func (s clientRows) create(ctx context.Context, c Client) error {
	row := newClientRow(c)
	return s.db.Write(ctx, "create client", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewInsert().Model(&row).Exec(ctx)
		return err
	})
}

// read reads a client, or returns storage.ErrNotFound.
func (s clientRows) read(ctx context.Context, id string) (Client, error) {
	var row clientRow
	err := s.db.Query(ctx, "read client", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model(&row).Where("id = ?", id).Where("NOT deleted").Scan(ctx)
	})
	return row.client(), err
}

// list lists at most limit clients, the first created first, that come after
// another one; nil means from the first.
func (s clientRows) list(ctx context.Context, after *Client, limit int) ([]Client, error) {
	var rows []clientRow
	err := s.db.Query(ctx, "list clients", func(ctx context.Context, db bun.IDB) error {
		q := db.NewSelect().Model(&rows).Where("NOT deleted").OrderExpr("created_at, id").Limit(int64(limit))
		if after != nil {
			q = q.Where("(created_at, id) > (?, ?)", after.CreatedAt.UnixMilli(), after.ID)
		}
		return q.Scan(ctx)
	})
	list := make([]Client, len(rows))
	for i := range rows {
		list[i] = rows[i].client()
	}
	return list, err
}

// change reads and locks a client, calls change, and stores and returns the result. change
// may be called more than once. The error is storage.ErrNotFound for an unknown client.
func (s clientRows) change(ctx context.Context, id string, change func(*Client) error) (Client, error) {
	var changed Client
	err := s.db.Write(ctx, "change client", func(ctx context.Context, tx bun.Tx) error {
		var row clientRow
		q := tx.NewSelect().Model(&row).Where("id = ?", id).Where("NOT deleted")
		if err := storage.Locked(q).Scan(ctx); err != nil {
			return err
		}
		c := row.client()
		if err := change(&c); err != nil {
			return err
		}
		row = newClientRow(c)
		changed = row.client()
		_, err := tx.NewUpdate().Model(&row).WherePK().Exec(ctx)
		return err
	})
	return changed, err
}

// delete deletes a client, or returns storage.ErrNotFound. The columns that revoked reads
// stay until purge.
func (s clientRows) delete(ctx context.Context, id string, now time.Time) error {
	return s.db.Write(ctx, "delete client", func(ctx context.Context, tx bun.Tx) error {
		gone, err := tx.NewUpdate().Model((*clientRow)(nil)).
			Set("deleted = ?", true).Set("revoked_at = ?", now.UnixMilli()).
			Set("secret_hash = ''").Set("old_secret_hash = ''").Set("certificates = ''").
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

// revoked lists the ids of the clients that were disabled or deleted
// after since, and have not been enabled again.
func (s clientRows) revoked(ctx context.Context, since time.Time) ([]string, error) {
	var ids []string
	err := s.db.Query(ctx, "list revoked clients", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model((*clientRow)(nil)).Column("id").
			Where("revoked_at > ?", since.UnixMilli()).Scan(ctx, &ids)
	})
	return ids, err
}

// purge removes the rows of clients that were deleted before the given time.
func (s clientRows) purge(ctx context.Context, before time.Time) error {
	return s.db.Write(ctx, "purge clients", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewDelete().Model((*clientRow)(nil)).
			Where("deleted").Where("revoked_at < ?", before.UnixMilli()).Exec(ctx)
		return err
	})
}

// touch notes when clients were last used.
func (s clientRows) touch(ctx context.Context, used map[string]time.Time) error {
	return s.db.Write(ctx, "touch clients", func(ctx context.Context, tx bun.Tx) error {
		for _, id := range slices.Sorted(maps.Keys(used)) { // sorted, so that two replicas lock rows in the same order and cannot deadlock
			at := used[id]
			_, err := tx.NewUpdate().Model((*clientRow)(nil)).Set("last_used_at = ?", at.UnixMilli()).
				Where("id = ?", id).Where("last_used_at IS NULL OR last_used_at < ?", at.UnixMilli()).Exec(ctx)
			if err != nil {
				return err
			}
		}
		return nil
	})
}
