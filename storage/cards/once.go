package cards

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/uptrace/bun"

	"spendhook/storage/column"
)

// ErrKeyReused means that another request has used the Key of a Once.
var ErrKeyReused = errors.New("the Idempotency-Key was used for another request")

const (
	onceTTL    = 24 * time.Hour
	purgeBatch = 1000
)

// Once lets a creation be asked for any number of times and be done once: what
// was made is recorded under Key in the transaction that makes it, for 24 h.
// The zero value records nothing.
type Once struct {
	// Key is the SHA-256 of the caller and its Idempotency-Key.
	Key [32]byte
	// Fingerprint is the SHA-256 of the request.
	Fingerprint [32]byte
}

type creationRow struct {
	bun.BaseModel `bun:"table:creations,alias:c"`

	KeyHash     []byte     `bun:"key_hash,pk"`
	Fingerprint []byte     `bun:"fingerprint"`
	MadeUUID    column.Key `bun:"made_uuid"`
	CreatedAt   int64      `bun:"created_at"`

	again bool // it was made before
}

// claim gives the creation its uuid and time: new ones, or those that it had
// when it was first done. A transaction that fails takes its claim back.
func (s *Store) claim(ctx context.Context, tx bun.Tx, once Once) (creationRow, error) {
	now := s.now()
	c := creationRow{
		KeyHash: once.Key[:], Fingerprint: once.Fingerprint[:],
		MadeUUID: column.Key(s.newID()), CreatedAt: now.UnixMilli(),
	}
	if once == (Once{}) {
		return c, nil
	}
	result, err := tx.NewInsert().Model(&c).On("CONFLICT (key_hash) DO UPDATE").
		Set("fingerprint = excluded.fingerprint, made_uuid = excluded.made_uuid, created_at = excluded.created_at").
		Where("c.created_at <= ?", now.Add(-onceTTL).UnixMilli()).Exec(ctx)
	if err != nil {
		return c, err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return c, err
	}
	first := creationRow{again: true}
	if err := tx.NewSelect().Model(&first).Where("key_hash = ?", c.KeyHash).Scan(ctx); err != nil {
		return c, err
	}
	if !bytes.Equal(first.Fingerprint, c.Fingerprint) {
		return c, ErrKeyReused
	}
	return first, nil
}

// PurgeCreations forgets at most 1000 keys of more than 24 h ago. It returns
// how many.
func (s *Store) PurgeCreations(ctx context.Context) (n int64, err error) {
	err = s.db.Write(ctx, "purge creations", func(ctx context.Context, tx bun.Tx) error {
		old := tx.NewSelect().Table("creations").Column("key_hash").
			Where("created_at <= ?", s.now().Add(-onceTTL).UnixMilli()).OrderExpr("created_at").Limit(purgeBatch)
		result, err := tx.NewDelete().Table("creations").Where("key_hash IN (?)", old).Exec(ctx)
		if err == nil {
			n, err = result.RowsAffected()
		}
		return err
	})
	return n, err
}
