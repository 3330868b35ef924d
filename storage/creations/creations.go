// Package creations makes creations idempotent: the transaction that creates a row records its uuid
// under the Idempotency-Key of the request.
package creations

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/clock"
	"spendhook/storage"
	"spendhook/storage/column"
)

// ErrKeyReused means that another request has used the Key of a Once.
var ErrKeyReused = errors.New("the Idempotency-Key was used for another request")

const (
	ttl        = 24 * time.Hour
	purgeBatch = 1000
)

// Once makes a creation idempotent. The transaction that creates a row also records the row
// under Key, for 24 h. The zero value records nothing.
type Once struct {
	// Key is the SHA-256 of the caller and its Idempotency-Key.
	Key [32]byte
	// Fingerprint is the SHA-256 of the request.
	Fingerprint [32]byte
}

// Creation is the uuid and the time of a row that a request creates, or has created.
type Creation struct {
	UUID      uuid.UUID
	CreatedAt int64 // milliseconds since 1970
	Again     bool  // an earlier request used the key
}

// Options configures New.
type Options struct {
	DB  *storage.DB      // required
	Now func() time.Time // nil: the real clock
}

// Store is the creations of a database. It is safe for concurrent use.
type Store struct {
	db  *storage.DB
	now func() time.Time
}

// New returns the creations of a database.
func New(o Options) *Store { return &Store{db: o.DB, now: clock.Or(o.Now)} }

type row struct {
	bun.BaseModel `bun:"table:creations,alias:c"`

	KeyHash     []byte     `bun:"key_hash,pk"`
	Fingerprint []byte     `bun:"fingerprint"`
	MadeUUID    column.Key `bun:"made_uuid"`
	CreatedAt   int64      `bun:"created_at"`
}

func (r *row) creation(again bool) Creation {
	return Creation{UUID: uuid.UUID(r.MadeUUID), CreatedAt: r.CreatedAt, Again: again}
}

// Claim returns the uuid and time for the row of a request: new ones, or those of the first request
// with the same Key. The error may be ErrKeyReused. If the transaction fails, nothing is recorded.
func (s *Store) Claim(ctx context.Context, tx bun.Tx, once Once) (Creation, error) {
	now := s.now()
	c := row{
		KeyHash: once.Key[:], Fingerprint: once.Fingerprint[:],
		MadeUUID: column.Key(uuid.New()), CreatedAt: now.UnixMilli(),
	}
	if once == (Once{}) {
		return c.creation(false), nil
	}
	result, err := tx.NewInsert().Model(&c).On("CONFLICT (key_hash) DO UPDATE").
		Set("fingerprint = excluded.fingerprint, made_uuid = excluded.made_uuid, created_at = excluded.created_at").
		Where("c.created_at <= ?", now.Add(-ttl).UnixMilli()).Exec(ctx)
	if err != nil {
		return Creation{}, err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return c.creation(false), err
	}
	var first row
	if err := tx.NewSelect().Model(&first).Where("key_hash = ?", c.KeyHash).Scan(ctx); err != nil {
		return Creation{}, err
	}
	if !bytes.Equal(first.Fingerprint, c.Fingerprint) {
		return Creation{}, ErrKeyReused
	}
	return first.creation(true), nil
}

// Purge deletes at most 1000 keys that are older than 24 h, and returns their number.
func (s *Store) Purge(ctx context.Context) (n int64, err error) {
	err = s.db.Write(ctx, "purge creations", func(ctx context.Context, tx bun.Tx) error {
		old := tx.NewSelect().Table("creations").Column("key_hash").
			Where("created_at <= ?", s.now().Add(-ttl).UnixMilli()).OrderExpr("created_at").Limit(purgeBatch)
		result, err := tx.NewDelete().Table("creations").Where("key_hash IN (?)", old).Exec(ctx)
		if err == nil {
			n, err = result.RowsAffected()
		}
		return err
	})
	return n, err
}
