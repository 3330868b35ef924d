package subscribers

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/internal/httpsig"
	"spendhook/internal/secret"
	"spendhook/subscribers/layout"
)

// KeyAlgorithm says how a company's key signs: a name of the HTTP Signature Algorithms registry (RFC 9421
// section 6.2.2).
type KeyAlgorithm string

// The algorithms for which a company has keys.
const (
	Ed25519 KeyAlgorithm = "ed25519"
	ES256   KeyAlgorithm = "ecdsa-p256-sha256"
)

// KeyState says what a key of a company is for.
type KeyState string

// The states of a key, in the order in which it has them.
const (
	KeyNext    KeyState = "NEXT"    // published, signs after the next rotation
	KeySigning KeyState = "SIGNING" // signs
	KeyRetired KeyState = "RETIRED" // published for receivers that have messages of it
)

const (
	// keyAhead is how long the next key is published before it may sign, unless another key was revoked:
	// twice the time for which receivers may cache the published keys.
	keyAhead = 10 * time.Minute
	// maxRetired is how many retired keys of an algorithm are published at most.
	maxRetired = 4
)

// SigningKey is a key with which a company's messages are signed. A company has, for each algorithm, one
// that signs, the next one, and those that were replaced within StoreOptions.SecretOverlap.
type SigningKey struct {
	ID        string // the thumbprint of the public key (RFC 7638)
	Algorithm KeyAlgorithm
	State     KeyState
	CreatedAt time.Time
	RetiresAt time.Time // no longer published after that; zero unless State is KeyRetired
	Private   crypto.Signer
}

// SigningKeys are the stored keys of a company. They are made with its first subscriber.
type SigningKeys struct {
	all    []storedKey // of each algorithm: retired ones, oldest first, that which signs, the next one
	locked error       // why they cannot be decrypted; else nil
}

// storedKey is the sealed form of a key. A key signs until it has an end, and the last one of its algorithm
// is the next one.
type storedKey struct {
	Algorithm KeyAlgorithm `json:"alg"`
	Private   []byte       `json:"key"` // the seed of Ed25519, or the scalar of P-256: 32 bytes
	Created   int64        `json:"at"`  // unix ms
	End       int64        `json:"end,omitzero"`
}

// open returns the keys that are not past their end at a time, in the order of SigningKeys. The error is
// ErrLocked when they cannot be decrypted.
func (k SigningKeys) open(now time.Time) ([]SigningKey, error) {
	if k.locked != nil {
		return nil, fmt.Errorf("signing keys: %w: %w", ErrLocked, k.locked)
	}
	var out []SigningKey
	for i, stored := range k.all {
		if stored.End != 0 && stored.End <= now.UnixMilli() {
			continue
		}
		key, err := stored.open()
		if err != nil {
			return nil, fmt.Errorf("signing keys: %w: %w", ErrLocked, err)
		}
		switch {
		case stored.End != 0:
			key.State, key.RetiresAt = KeyRetired, time.UnixMilli(stored.End).UTC()
		case slices.ContainsFunc(k.all[i+1:], func(s storedKey) bool { return s.Algorithm == stored.Algorithm }):
			key.State = KeySigning
		default:
			key.State = KeyNext
		}
		out = append(out, key)
	}
	return out, nil
}

// Signing returns the key of an algorithm that signs. The error is ErrLocked when it cannot be decrypted.
func (k SigningKeys) Signing(a KeyAlgorithm) (SigningKey, error) {
	if k.locked != nil {
		return SigningKey{}, fmt.Errorf("signing keys: %w: %w", ErrLocked, k.locked)
	}
	keys := ofAlgorithm(k.all, a, forever)
	if len(keys) == 0 {
		return SigningKey{}, fmt.Errorf("signing keys: %w: none of %s", ErrLocked, a)
	}
	key, err := keys[0].open()
	if err != nil {
		return SigningKey{}, fmt.Errorf("signing keys: %w: %w", ErrLocked, err)
	}
	key.State = KeySigning
	return key, nil
}

func newKey(a KeyAlgorithm, now time.Time) storedKey {
	k := storedKey{Algorithm: a, Created: now.UnixMilli()}
	if a == Ed25519 {
		k.Private = make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(k.Private) // never fails: it ends the program instead
		return k
	}
	private, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // as above
	k.Private, _ = private.Bytes()                                // fails only for another curve
	return k
}

func (k storedKey) open() (out SigningKey, err error) {
	out = SigningKey{Algorithm: k.Algorithm, CreatedAt: time.UnixMilli(k.Created).UTC()}
	switch {
	case k.Algorithm == ES256:
		if out.Private, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), k.Private); err != nil {
			return SigningKey{}, errors.New("a stored key is damaged")
		}
	case k.Algorithm == Ed25519 && len(k.Private) == ed25519.SeedSize:
		out.Private = ed25519.NewKeyFromSeed(k.Private)
	default:
		return SigningKey{}, errors.New("a stored key is damaged")
	}
	public, err := httpsig.PublicJWK(out.Private.Public())
	out.ID = public.Kid
	return out, err
}

var algorithms = []KeyAlgorithm{Ed25519, ES256}

// forever is past the end of every key that has one.
var forever = time.UnixMilli(math.MaxInt64)

// firstKeys returns the keys of a new company.
func firstKeys(now time.Time) (all []storedKey) {
	for _, a := range algorithms {
		all = append(all, newKey(a, now), newKey(a, now))
	}
	return all
}

// ofAlgorithm returns the keys of an algorithm that are not past their end at a time.
func ofAlgorithm(all []storedKey, a KeyAlgorithm, now time.Time) (out []storedKey) {
	for _, k := range all {
		if k.Algorithm == a && (k.End == 0 || k.End > now.UnixMilli()) {
			out = append(out, k)
		}
	}
	return out
}

// rotated returns the keys after a rotation: of each algorithm, the next one signs, and a new one follows.
func rotated(all []storedKey, now time.Time, overlap time.Duration) (out []storedKey, err error) {
	for _, a := range algorithms {
		keys := ofAlgorithm(all, a, now)
		signs, next := len(keys)-2, len(keys)-1
		if signs >= maxRetired || now.Sub(time.UnixMilli(keys[next].Created)) < keyAhead {
			return nil, ErrRotatedRecently
		}
		keys[signs].End = now.Add(max(overlap, keyAhead)).UnixMilli() // what waits in memory is still signed with it
		out = append(append(out, keys...), newKey(a, now))
	}
	return out, nil
}

// revoked returns the keys without the one with an id. If it was the one that signs, the next one signs.
func revoked(all []storedKey, id string, now time.Time) (out []storedKey, err error) {
	err = ErrNoSigningKey
	for _, a := range algorithms {
		keys := ofAlgorithm(all, a, now)
		for i, k := range keys {
			key, failed := k.open()
			if failed != nil {
				return nil, fmt.Errorf("signing keys: %w: %w", ErrLocked, failed)
			}
			if key.ID != id {
				continue
			}
			keys, err = slices.Delete(keys, i, i+1), nil
			if k.End == 0 { // it signed, or was to sign next
				keys = append(keys, newKey(a, now))
			}
			break
		}
		out = append(out, keys...)
	}
	return out, err
}

// signingKeysPlace binds sealed keys to their company.
func signingKeysPlace(company uuid.UUID) string {
	return "company/" + company.String() + "/signing-keys"
}

func (c codec) sealKeys(company uuid.UUID, all []storedKey) (sealed string, err error) {
	text, err := json.Marshal(all)
	if err == nil {
		err = c.seal(&sealed, nil, secret.Text(text), signingKeysPlace(company))
	}
	return sealed, err
}

func (c codec) openKeys(company uuid.UUID, sealed string) (k SigningKeys) {
	text, err := c.open(&sealed, signingKeysPlace(company))
	if err == nil && (json.Unmarshal([]byte(text.Reveal()), &k.all) != nil || !k.whole()) { // its error may quote a key
		err = errors.New("the stored keys are damaged")
	}
	k.locked = err
	return k
}

// whole reports whether each algorithm has a key that signs and a next one.
func (k SigningKeys) whole() bool {
	return !slices.ContainsFunc(algorithms, func(a KeyAlgorithm) bool {
		return len(ofAlgorithm(k.all, a, forever)) != 2
	})
}

// SigningKeys returns the keys of a company, or ErrNoSigningKey.
func (s *Store) SigningKeys(ctx context.Context, company uuid.UUID) ([]SigningKey, error) {
	_, stored, err := s.signingKeys(ctx, company)
	if err != nil {
		return nil, err
	}
	return stored.open(s.now())
}

func (s *Store) signingKeys(ctx context.Context, company uuid.UUID) (sealed string, k SigningKeys, err error) {
	sealed, err = s.field(ctx, layout.CompanyKey(company), layout.SigningKeysField)
	if errors.Is(err, ErrNotFound) {
		err = ErrNoSigningKey
	}
	if err != nil {
		return "", SigningKeys{}, err
	}
	return sealed, s.codec.openKeys(company, sealed), nil
}

// RotateSigningKeys has the next keys of a company sign what is dispatched from now on, makes new next ones, and returns all
// keys. Those that signed are published for StoreOptions.SecretOverlap. Keys that cannot be decrypted are replaced by others,
// which sign at once. The error may be ErrNoSigningKey or ErrRotatedRecently.
func (s *Store) RotateSigningKeys(ctx context.Context, company uuid.UUID) ([]SigningKey, error) {
	return s.changeKeys(ctx, company, keysRotated, func(stored SigningKeys, now time.Time) ([]storedKey, error) {
		if _, err := stored.open(now); errors.Is(err, ErrLocked) {
			return firstKeys(now), nil
		}
		return rotated(stored.all, now, s.opts.SecretOverlap)
	})
}

// RevokeSigningKey removes a key of a company: it is no longer published, and signs no delivery that is dispatched
// from now on. The next one signs in its place. The error may be ErrNoSigningKey or ErrLocked.
func (s *Store) RevokeSigningKey(ctx context.Context, company uuid.UUID, id string) error {
	_, err := s.changeKeys(ctx, company, keyRevoked, func(stored SigningKeys, now time.Time) ([]storedKey, error) {
		if _, err := stored.open(now); err != nil {
			return nil, err
		}
		return revoked(stored.all, id, now)
	})
	return err
}

// changeKeys replaces the keys of a company, counts that, and starts again when somebody else has replaced them meanwhile.
func (s *Store) changeKeys(ctx context.Context, company uuid.UUID, counted string, change func(SigningKeys, time.Time) ([]storedKey, error)) ([]SigningKey, error) {
	for range maxRounds {
		now := s.now()
		before, stored, err := s.signingKeys(ctx, company)
		if err != nil {
			return nil, err
		}
		after, err := change(stored, now)
		if err != nil {
			return nil, err
		}
		sealed, err := s.codec.sealKeys(company, after)
		if err != nil {
			return nil, err
		}
		done, err := resealScript.Run(ctx, s.opts.Client, []string{layout.CompanyKey(company)}, layout.SigningKeysField, before, sealed).Bool()
		if err != nil {
			return nil, fmt.Errorf("change signing keys: %w", err)
		}
		if done {
			s.keyChanges.WithLabelValues(counted).Inc()
			return SigningKeys{all: after}.open(now)
		}
	}
	return nil, errContended
}
