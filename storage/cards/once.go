package cards

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
)

// ErrKeyReused means that another request has used the Key of a Once.
var ErrKeyReused = errors.New("the Idempotency-Key was used for another request")

// keyLifetime is the time for which a Key is kept.
const keyLifetime = 24 * time.Hour

// Once makes the creation of a card or job idempotent: the transaction also records the uuid of the card
// or job under Key, for 24 h. The zero value records nothing.
type Once struct {
	// Key is the SHA-256 of the caller and its Idempotency-Key.
	Key [32]byte
	// Fingerprint is the SHA-256 of the request.
	Fingerprint [32]byte
}

// creation has the uuid and the time of a card or job that a request creates or has created.
type creation struct {
	bun.BaseModel `bun:"table:creations,alias:c"`

	KeyHash     []byte       `bun:"key_hash,pk"`
	Fingerprint []byte       `bun:"fingerprint"`
	UUID        storage.Key  `bun:"made_uuid"`
	CreatedAt   storage.Time `bun:"created_at"`
}

// claim returns the uuid and the time of the card or job that a request creates. again reports that
// an earlier request with the same Key has created it. The error may be ErrKeyReused. If the
// transaction fails, nothing is recorded.
func (s *Store) claim(ctx context.Context, tx bun.Tx, once Once) (created creation, again bool, err error) {
	created = creation{
		KeyHash: once.Key[:], Fingerprint: once.Fingerprint[:], UUID: storage.Key(uuid.New()), CreatedAt: storage.At(s.now()),
	}
	if once == (Once{}) {
		return created, false, nil
	}
	result, err := tx.NewInsert().Model(&created).On("CONFLICT (key_hash) DO UPDATE").
		Where("c.created_at <= ?", storage.At(s.now().Add(-keyLifetime))).Exec(ctx)
	if err != nil {
		return created, false, err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return created, false, err
	}
	err = tx.NewSelect().Model(&created).WherePK().Scan(ctx)
	if err == nil && !bytes.Equal(created.Fingerprint, once.Fingerprint[:]) {
		err = ErrKeyReused
	}
	return created, true, err
}
