package auth

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

	"spendhook/internal/seal"
	"spendhook/storage"
)

// KeysOptions configures OpenKeys.
type KeysOptions struct {
	Store   KeyStore      // where all replicas find the keys; required
	Keyring *seal.Keyring // that seals them; required
	// Dir keeps the last known keys, sealed, for a start without the database.
	Dir string
	// Issuer is the "iss" of the tokens. Tokens with one of OldIssuers are
	// accepted too: they were minted before Issuer was changed.
	Issuer     string
	OldIssuers []string

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil discards
}

// Keys are the keys (ECDSA P-256) that sign this deployment's own access
// tokens. All replicas share them through the database; while it is away, each
// goes on with those it knows. Keys are safe for concurrent use.
type Keys struct {
	opts  KeysOptions
	known atomic.Pointer[keySet]

	sync    sync.Mutex // is held while known is replaced
	refresh throttle
}

// keySet is immutable. Its rows are in the order in which they sign.
type keySet struct {
	rows        []TokenKey
	keys        map[string]*signingKey // by id
	provisional bool                   // made here, while the database was never seen
}

// OpenKeys knows the keys of the data directory, or, when that has none, those
// of the database, whose first key it makes when it is empty. With neither, as
// on a first start while the database is away, it makes a key that the database
// gets later. Call Sync, now and then, to follow the database.
func OpenKeys(ctx context.Context, opts KeysOptions) (*Keys, error) {
	k := &Keys{opts: opts}
	if k.opts.Now == nil {
		k.opts.Now = time.Now //nolint:forbidigo // the nil default
	}
	if k.opts.Logger == nil {
		k.opts.Logger = slog.New(slog.DiscardHandler)
	}
	k.refresh.every = SyncInterval / 2
	k.known.Store(&keySet{})
	localErr := k.useLocal()
	if localErr != nil {
		k.opts.Logger.Warn("the last known token keys cannot be used", "exception.message", localErr)
	}
	err := k.Sync(ctx)
	switch away := errors.Is(err, storage.ErrUnavailable); {
	case away && localErr != nil:
		return nil, localErr
	case away && len(k.known.Load().rows) == 0:
		return k, k.provisional()
	case err != nil && !away:
		return nil, err
	}
	return k, nil
}

// useLocal knows the keys of the data directory.
func (k *Keys) useLocal() error {
	rows, err := readKeysFile(k.opts.Dir)
	if err != nil {
		return err
	}
	return k.use(rows)
}

// provisional makes the key of a deployment whose database was never seen.
func (k *Keys) provisional() error {
	key, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	rows := []TokenKey{key.row}
	if err := writeKeysFile(k.opts.Dir, rows); err != nil {
		return fmt.Errorf("keep the token key: %w", err)
	}
	k.known.Store(&keySet{rows: rows, keys: map[string]*signingKey{key.row.ID: key}, provisional: true})
	return nil
}

func (k *Keys) settled() bool { return !k.known.Load().provisional }

// use makes rows the known keys, of which it opens those that are new.
func (k *Keys) use(rows []TokenKey) error {
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
func (k *Keys) Sync(ctx context.Context) error {
	k.sync.Lock()
	defer k.sync.Unlock()
	rows, err := k.opts.Store.TokenKeys(ctx)
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
func (k *Keys) tidy(ctx context.Context, now time.Time) ([]TokenKey, error) {
	local := k.known.Load().rows
	if len(local) == 0 {
		key, err := newSigningKey(k.opts.Keyring, now)
		if err != nil {
			return nil, err
		}
		local = append(local, key.row)
	}
	return k.opts.Store.ChangeTokenKeys(ctx, func(rows []TokenKey) ([]TokenKey, error) {
		if len(rows) == 0 {
			rows = local
		}
		return prune(rows, now), nil
	})
}

// follow makes the database's keys the known ones, here and in the directory.
func (k *Keys) follow(rows []TokenKey) error {
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

// Issuer is the "iss" of the tokens.
func (k *Keys) Issuer() string { return k.opts.Issuer }

// JWKS lists the public keys (RFC 7517) of tokens that are valid, or soon will be.
func (k *Keys) JWKS() []jwk.Key {
	set, now := k.known.Load(), k.opts.Now()
	list := make([]jwk.Key, 0, len(set.rows))
	for i, row := range set.rows {
		if stateOf(set.rows, i, now) != KeyGone {
			list = append(list, set.keys[row.ID].public)
		}
	}
	return list
}

// KeyInfo describes a signing key to its operator.
type KeyInfo struct {
	ID        string     `json:"id"`
	State     KeyState   `json:"state"`
	CreatedAt time.Time  `json:"createdAt"`
	SignsFrom time.Time  `json:"signsFrom"`
	GoneAt    *time.Time `json:"goneAt,omitempty"` // nil while no other key follows
}

// List describes the known keys, in the order in which they sign.
func (k *Keys) List() []KeyInfo {
	rows, now := k.known.Load().rows, k.opts.Now()
	list := make([]KeyInfo, 0, len(rows))
	for i, row := range rows {
		info := KeyInfo{ID: row.ID, State: stateOf(rows, i, now), CreatedAt: row.CreatedAt, SignsFrom: row.SignsFrom}
		if at, ends := goneAt(rows, i); ends {
			info.GoneAt = &at
		}
		if info.State != KeyGone {
			list = append(list, info)
		}
	}
	return list
}

// Rotate adds a key, which signs once verifiers have had the time to learn it;
// in a hurry, once the replicas have. The tokens of the keys before stay valid.
// It returns errKeyWaiting or errTooManyKeys, and ErrUnavailable of storage.
func (k *Keys) Rotate(ctx context.Context, hurry bool) error {
	next, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	_, err = k.opts.Store.ChangeTokenKeys(ctx, func(rows []TokenKey) ([]TokenKey, error) {
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
func (k *Keys) Revoke(ctx context.Context, id string) error {
	fresh, err := newSigningKey(k.opts.Keyring, k.opts.Now())
	if err != nil {
		return err
	}
	_, err = k.opts.Store.ChangeTokenKeys(ctx, func(rows []TokenKey) ([]TokenKey, error) {
		return revoke(rows, id, fresh.row, k.opts.Now())
	})
	if err != nil {
		return err
	}
	return k.Sync(ctx)
}

// signingSince is when the key that signs began to.
func (k *Keys) signingSince() time.Time {
	rows := k.known.Load().rows
	return rows[signerAt(rows, k.opts.Now())].SignsFrom
}

// Mint returns an access token (JWT, ES256) for grant, valid from now. It
// refuses a scope that no token can have, and a TTL below a second, the
// resolution of a token's times. A TTL above TokenTTL is noted in the database,
// so that the key outlives the token; while the database is away it cannot be.
func (k *Keys) Mint(ctx context.Context, grant Grant) (string, error) {
	if err := grant.check(); err != nil {
		return "", err
	}
	set, now := k.known.Load(), k.opts.Now()
	signer := set.rows[signerAt(set.rows, now)]
	if expires := now.Add(grant.TTL); grant.TTL > TokenTTL && expires.After(signer.TokensUntil) {
		if err := k.note(ctx, signer.ID, expires); err != nil && !errors.Is(err, storage.ErrUnavailable) {
			return "", fmt.Errorf("mint token: %w", err)
		}
	}
	token, err := claims(k.opts.Issuer, grant, now).Build()
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	signed, err := jwt.Sign(token, jwt.WithKey(jwa.ES256(), set.keys[signer.ID].private))
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	return string(signed), nil
}

// note makes a key stay until its last token expires.
func (k *Keys) note(ctx context.Context, id string, expires time.Time) error {
	_, err := k.opts.Store.ChangeTokenKeys(ctx, func(rows []TokenKey) ([]TokenKey, error) {
		for i := range rows {
			if rows[i].ID == id && expires.After(rows[i].TokensUntil) {
				rows[i].TokensUntil = expires
			}
		}
		return rows, nil
	})
	return err
}

// issues reports whether tokens of the issuer are signed by these keys.
func (k *Keys) issues(issuer string) bool {
	return issuer == k.opts.Issuer || slices.Contains(k.opts.OldIssuers, issuer)
}

// find is the key with the id that a token names. One that is not known may be
// new: the database is asked, but not for everybody who makes up ids.
func (k *Keys) find(ctx context.Context, id string) (verifyingKey, bool) {
	if key, ok := k.lookup(id); ok {
		return key, true
	}
	k.refresh.do(ctx, k.opts.Now(), func(ctx context.Context) { _ = k.Sync(ctx) }) // the regular one logs failures
	return k.lookup(id)
}

func (k *Keys) lookup(id string) (verifyingKey, bool) {
	set := k.known.Load()
	i := slices.IndexFunc(set.rows, func(row TokenKey) bool { return row.ID == id })
	if i < 0 || stateOf(set.rows, i, k.opts.Now()) == KeyGone {
		return verifyingKey{}, false
	}
	return verifyingKey{key: set.keys[id].public, algorithms: es256}, true
}
