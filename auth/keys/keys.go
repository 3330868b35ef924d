// Package keys stores the keys that sign the access tokens of this deployment. It chooses the key that
// signs, and rotates and revokes keys. Package auth builds and verifies the tokens.
package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/clock"
	"spendhook/internal/seal"
	"spendhook/storage"
)

// Options configures Open.
type Options struct {
	Store   Store         // the keys, shared by all replicas; required
	Keyring *seal.Keyring // encrypts the keys; required
	// Dir keeps the last known keys, encrypted, for a start without the database.
	Dir    string
	Issuer string // the "iss" of the tokens

	Now        func() time.Time      // nil means time.Now
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // of the metric; nil exports none
}

// Signer signs access tokens with keys (ECDSA P-256) that all replicas share through the
// database. While the database is unavailable, each replica uses the keys that it has. A
// Signer is safe for concurrent use.
type Signer struct {
	opts  Options
	known atomic.Pointer[keySet]
	mu    sync.Mutex // held while Sync replaces known
}

// keySet is immutable. Its rows are in the order in which they sign.
type keySet struct {
	rows []Key
	keys map[string]*signingKey // by id
}

// Open reads the keys of the database, and creates the first key in an empty one. While the
// database is unavailable, it uses the keys of the data directory. On a first start there are none:
// the Signer signs nothing until Sync has reached the database. Call Sync at intervals to follow
// the database.
func Open(ctx context.Context, opts Options) (*Signer, error) {
	k := &Signer{opts: opts}
	k.opts.Now = clock.Or(k.opts.Now)
	k.opts.Logger = cmp.Or(k.opts.Logger, slog.New(slog.DiscardHandler))
	k.known.Store(&keySet{})
	rows, localErr := readKeysFile(opts.Dir)
	if localErr == nil {
		localErr = k.use(rows)
	}
	if localErr != nil {
		k.opts.Logger.Warn("load of the last known token keys failed", "exception.message", localErr)
	}
	if err := k.Sync(ctx); errors.Is(err, storage.ErrUnavailable) && localErr != nil {
		return nil, localErr
	} else if err != nil && !errors.Is(err, storage.ErrUnavailable) {
		return nil, err
	}
	promauto.With(opts.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_token_key_age_seconds",
		Help: "Age of the key that signs access tokens, since it began to sign.",
	}, func() float64 { return k.opts.Now().Sub(k.signingSince()).Seconds() })
	return k, nil
}

// use replaces the known keys by rows, and decrypts new ones.
func (k *Signer) use(rows []Key) error {
	set := &keySet{rows: rows, keys: make(map[string]*signingKey, len(rows))}
	before := k.known.Load()
	for _, row := range rows {
		if before.keys[row.ID] != nil && before.keys[row.ID].row.Sealed == row.Sealed {
			set.keys[row.ID] = before.keys[row.ID]
			continue
		}
		key, err := openKey(k.opts.Keyring, row)
		if err != nil {
			return err
		}
		set.keys[row.ID] = key
	}
	k.known.Store(set)
	return nil
}

// Sync loads the keys of the database, creates the first key there, and deletes expired keys. After
// an error the known keys stay in use.
func (k *Signer) Sync(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	rows, err := k.opts.Store.Read(ctx)
	if err != nil {
		return err
	}
	if now := k.opts.Now(); len(rows) == 0 || len(prune(rows, now)) < len(rows) {
		first, err := newSigningKey(k.opts.Keyring, now)
		if err != nil {
			return err
		}
		rows, err = k.opts.Store.Change(ctx, func(rows []Key) ([]Key, error) {
			if len(rows) == 0 {
				rows = []Key{first.row}
			}
			return prune(rows, now), nil
		})
		if err != nil {
			return err
		}
	}
	return k.follow(rows)
}

// follow replaces the known keys, and those in the data directory, by the rows of the database.
func (k *Signer) follow(rows []Key) error {
	if err := k.use(rows); err != nil {
		return err
	}
	kept, err := readKeysFile(k.opts.Dir)
	if err != nil || !slices.Equal(kept, rows) {
		if err := writeKeysFile(k.opts.Dir, rows); err != nil {
			return fmt.Errorf("store the last known token keys: %w", err)
		}
	}
	return nil
}

// Issuer returns the "iss" of the tokens that these keys sign.
func (k *Signer) Issuer() string { return k.opts.Issuer }

// JWKS lists the public keys (RFC 7517) of tokens that are valid, or soon will be. The error wraps
// storage.ErrUnavailable while no key is known.
func (k *Signer) JWKS() ([]jwk.Key, error) {
	set, now := k.known.Load(), k.opts.Now()
	if len(set.rows) == 0 {
		return nil, errNoKeys
	}
	list := make([]jwk.Key, 0, len(set.rows))
	for i, row := range set.rows {
		if stateOf(set.rows, i, now) != stateGone {
			list = append(list, set.keys[row.ID].public)
		}
	}
	return list, nil
}

// Info describes a signing key for an operator.
type Info struct {
	ID        string     `json:"id"`
	State     string     `json:"state"` // next, signing or retired
	CreatedAt time.Time  `json:"createdAt"`
	SignsFrom time.Time  `json:"signsFrom"`
	GoneAt    *time.Time `json:"goneAt,omitempty"` // nil while no key follows this one
}

// List describes the known keys, in the order in which they sign.
func (k *Signer) List() []Info {
	rows, now := k.known.Load().rows, k.opts.Now()
	list := make([]Info, 0, len(rows))
	for i, row := range rows {
		info := Info{ID: row.ID, State: string(stateOf(rows, i, now)), CreatedAt: row.CreatedAt.Time, SignsFrom: row.SignsFrom.Time}
		if at, ends := goneAt(rows, i); ends {
			info.GoneAt = &at
		}
		if info.State != string(stateGone) {
			list = append(list, info)
		}
	}
	return list
}

// Rotate adds a key. The key signs once verifiers have had time to fetch it. Tokens of earlier
// keys stay valid. The error may be errKeyWaiting or storage.ErrUnavailable.
func (k *Signer) Rotate(ctx context.Context) error {
	next, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	_, err = k.opts.Store.Change(ctx, func(rows []Key) ([]Key, error) {
		return rotate(rows, next.row, k.opts.Now())
	})
	if err != nil {
		return err
	}
	return k.Sync(ctx)
}

// Revoke removes a key. This replica refuses the tokens of the key at once. The other
// replicas refuse them within SyncInterval. If the key was the signing one, another key signs from now on.
// A replica that cannot reach the database still accepts the key. The error may be errNoKey or
// storage.ErrUnavailable.
func (k *Signer) Revoke(ctx context.Context, id string) error {
	fresh, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	_, err = k.opts.Store.Change(ctx, func(rows []Key) ([]Key, error) {
		return revoke(rows, id, fresh.row, k.opts.Now())
	})
	if err != nil {
		return err
	}
	return k.Sync(ctx)
}

// signingSince returns the time since which the current key signs, or now while no key is known.
func (k *Signer) signingSince() time.Time {
	rows, now := k.known.Load().rows, k.opts.Now()
	if len(rows) == 0 {
		return now
	}
	return rows[signerAt(rows, now)].SignsFrom.Time
}

// errNoKeys means that the Signer has never reached the database.
var errNoKeys = fmt.Errorf("%w: no token key is known yet", storage.ErrUnavailable)

// Sign signs a token as JWT (ES256). The error wraps storage.ErrUnavailable while no key is known.
func (k *Signer) Sign(token jwt.Token) (string, error) {
	set := k.known.Load()
	if len(set.rows) == 0 {
		return "", errNoKeys
	}
	signer := set.rows[signerAt(set.rows, k.opts.Now())]
	signed, err := jwt.Sign(token, jwt.WithKey(jwa.ES256(), set.keys[signer.ID].private))
	return string(signed), err
}

// Lookup returns the public key (ES256) with the id, or nil for an unknown id. loaded is
// false while no key is known; then an unknown key may exist. Otherwise only keys that were created
// since the last Sync are unknown.
func (k *Signer) Lookup(id string) (key jwk.Key, loaded bool) {
	set := k.known.Load()
	i := slices.IndexFunc(set.rows, func(row Key) bool { return row.ID == id })
	if i < 0 || stateOf(set.rows, i, k.opts.Now()) == stateGone {
		return nil, len(set.rows) > 0
	}
	return set.keys[id].public, true
}
