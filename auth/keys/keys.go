// Package keys holds the keys that sign this deployment's own access tokens: where they
// are kept, which of them signs when, and how they are rotated and revoked. What a token
// says is package auth's.
package keys

import (
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

	"spendhook/internal/seal"
	"spendhook/storage"
)

// Options configures Open.
type Options struct {
	Store   Store         // where all replicas find the keys; required
	Keyring *seal.Keyring // that seals them; required
	// Dir keeps the last known keys, sealed, for a start without the database.
	Dir string
	// Issuer is the "iss" of the tokens. Tokens with one of OldIssuers are
	// accepted too: they were minted before Issuer was changed.
	Issuer     string
	OldIssuers []string

	Now        func() time.Time      // nil means time.Now
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // of the age of the signing key; nil shows it nowhere
}

// Signer signs access tokens with the keys (ECDSA P-256) that all replicas share
// through the database; while it is away, each goes on with those it knows. It is
// safe for concurrent use.
type Signer struct {
	opts  Options
	known atomic.Pointer[keySet]
	sync  sync.Mutex // is held while known is replaced
}

// keySet is immutable. Its rows are in the order in which they sign.
type keySet struct {
	rows        []Key
	keys        map[string]*signingKey // by id
	provisional bool                   // made here, while the database was never seen
}

// Open knows the keys of the data directory, or, when that has none, those
// of the database, whose first key it makes when it is empty. With neither, as
// on a first start while the database is away, it makes a key that the database
// gets later. Call Sync, now and then, to follow the database.
func Open(ctx context.Context, opts Options) (*Signer, error) {
	k := &Signer{opts: opts}
	if k.opts.Now == nil {
		k.opts.Now = time.Now //nolint:forbidigo // the nil default
	}
	if k.opts.Logger == nil {
		k.opts.Logger = slog.New(slog.DiscardHandler)
	}
	k.known.Store(&keySet{})
	localErr := k.useLocal()
	if localErr != nil {
		k.opts.Logger.Warn("the last known token keys cannot be used", "exception.message", localErr)
	}
	if err := k.first(ctx, localErr); err != nil {
		return nil, err
	}
	promauto.With(opts.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_token_key_age_seconds",
		Help: "How long the key that signs access tokens has done so.",
	}, func() float64 { return k.opts.Now().Sub(k.signingSince()).Seconds() })
	return k, nil
}

// first looks into the database. Without it, the keys of the data directory have to do.
func (k *Signer) first(ctx context.Context, localErr error) error {
	err := k.Sync(ctx)
	switch away := errors.Is(err, storage.ErrUnavailable); {
	case away && localErr != nil:
		return localErr
	case away && len(k.known.Load().rows) == 0:
		return k.provisional()
	case away:
		return nil
	}
	return err
}

// useLocal knows the keys of the data directory.
func (k *Signer) useLocal() error {
	rows, err := readKeysFile(k.opts.Dir)
	if err != nil {
		return err
	}
	return k.use(rows)
}

// provisional makes the key of a deployment whose database was never seen.
func (k *Signer) provisional() error {
	key, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	rows := []Key{key.row}
	if err := writeKeysFile(k.opts.Dir, rows); err != nil {
		return fmt.Errorf("keep the token key: %w", err)
	}
	k.known.Store(&keySet{rows: rows, keys: map[string]*signingKey{key.row.ID: key}, provisional: true})
	return nil
}

// use makes rows the known keys, of which it opens those that are new.
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

// Sync takes over what the database has, and drops there what is long gone.
// When it fails, the known keys go on being used.
func (k *Signer) Sync(ctx context.Context) error {
	k.sync.Lock()
	defer k.sync.Unlock()
	rows, err := k.opts.Store.Read(ctx)
	if err != nil {
		return err
	}
	now := k.opts.Now()
	if len(rows) == 0 || len(prune(rows, now)) < len(rows) {
		if rows, err = k.tidy(ctx, now); err != nil {
			return err
		}
	}
	return k.follow(rows)
}

// tidy gives the database its first key, or those of the data directory, and
// prunes it.
func (k *Signer) tidy(ctx context.Context, now time.Time) ([]Key, error) {
	local := k.known.Load().rows
	if len(local) == 0 {
		key, err := newSigningKey(k.opts.Keyring, now)
		if err != nil {
			return nil, err
		}
		local = append(local, key.row)
	}
	return k.opts.Store.Change(ctx, func(rows []Key) ([]Key, error) {
		if len(rows) == 0 {
			rows = local
		}
		return prune(rows, now), nil
	})
}

// follow makes the database's keys the known ones, here and in the directory.
func (k *Signer) follow(rows []Key) error {
	if err := k.use(rows); err != nil {
		return err
	}
	kept, err := readKeysFile(k.opts.Dir)
	if err != nil || !slices.Equal(kept, rows) {
		if err := writeKeysFile(k.opts.Dir, rows); err != nil {
			return fmt.Errorf("keep the token keys: %w", err)
		}
	}
	return nil
}

// Issuers are the "iss" of tokens that these keys sign: first that of new tokens, then
// what it was before.
func (k *Signer) Issuers() []string { return append([]string{k.opts.Issuer}, k.opts.OldIssuers...) }

// JWKS lists the public keys (RFC 7517) of tokens that are valid, or soon will be.
func (k *Signer) JWKS() []jwk.Key {
	set, now := k.known.Load(), k.opts.Now()
	list := make([]jwk.Key, 0, len(set.rows))
	for i, row := range set.rows {
		if stateOf(set.rows, i, now) != stateGone {
			list = append(list, set.keys[row.ID].public)
		}
	}
	return list
}

// Info describes a signing key to its operator.
type Info struct {
	ID        string     `json:"id"`
	State     string     `json:"state"` // next, signing or retired
	CreatedAt time.Time  `json:"createdAt"`
	SignsFrom time.Time  `json:"signsFrom"`
	GoneAt    *time.Time `json:"goneAt,omitempty"` // nil while no other key follows
}

// List describes the known keys, in the order in which they sign.
func (k *Signer) List() []Info {
	rows, now := k.known.Load().rows, k.opts.Now()
	list := make([]Info, 0, len(rows))
	for i, row := range rows {
		info := Info{ID: row.ID, State: string(stateOf(rows, i, now)), CreatedAt: row.CreatedAt, SignsFrom: row.SignsFrom}
		if at, ends := goneAt(rows, i); ends {
			info.GoneAt = &at
		}
		if info.State != string(stateGone) {
			list = append(list, info)
		}
	}
	return list
}

// Rotate adds a key, which signs once verifiers have had the time to learn it;
// in a hurry, once the replicas have. The tokens of the keys before stay valid.
// It returns errKeyWaiting or errTooManyKeys, and ErrUnavailable of storage.
func (k *Signer) Rotate(ctx context.Context, hurry bool) error {
	next, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	_, err = k.opts.Store.Change(ctx, func(rows []Key) ([]Key, error) {
		return rotate(rows, next.row, k.opts.Now(), hurry)
	})
	if err != nil {
		return err
	}
	return k.Sync(ctx)
}

// Revoke ends a key: its tokens are refused here at once, and by every replica
// once it has looked (SyncInterval). When it is the one that signs, another one
// does from now. A daemon that cannot reach the database goes on with the key. It
// returns errNoKey, and ErrUnavailable of storage.
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

// signingSince is when the key that signs began to.
func (k *Signer) signingSince() time.Time {
	rows := k.known.Load().rows
	return rows[signerAt(rows, k.opts.Now())].SignsFrom
}

// Sign signs a token as JWT (ES256). A token that expires later than TokenTTL from now is
// noted in the database, so that the key outlives it; while the database is away it
// cannot be.
func (k *Signer) Sign(ctx context.Context, token jwt.Token) (string, error) {
	set, now := k.known.Load(), k.opts.Now()
	signer := set.rows[signerAt(set.rows, now)]
	if expires, _ := token.Expiration(); expires.After(now.Add(TokenTTL)) && expires.After(signer.TokensUntil) {
		if err := k.note(ctx, signer.ID, expires); err != nil && !errors.Is(err, storage.ErrUnavailable) {
			return "", err
		}
	}
	signed, err := jwt.Sign(token, jwt.WithKey(jwa.ES256(), set.keys[signer.ID].private))
	return string(signed), err
}

// note makes a key stay until its last token expires.
func (k *Signer) note(ctx context.Context, id string, expires time.Time) error {
	_, err := k.opts.Store.Change(ctx, func(rows []Key) ([]Key, error) {
		for i := range rows {
			if rows[i].ID == id && expires.After(rows[i].TokensUntil) {
				rows[i].TokensUntil = expires
			}
		}
		return rows, nil
	})
	return err
}

// Lookup is the public key (ES256) with the id that a token names; nil when it is not
// known. All keys are known to this replica, apart from those that are new since the
// last Sync, unless settled is false: then the database was never seen.
func (k *Signer) Lookup(id string) (key jwk.Key, settled bool) {
	set := k.known.Load()
	i := slices.IndexFunc(set.rows, func(row Key) bool { return row.ID == id })
	if i < 0 || stateOf(set.rows, i, k.opts.Now()) == stateGone {
		return nil, !set.provisional
	}
	return set.keys[id].public, true
}
