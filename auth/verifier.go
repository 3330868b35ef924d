package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/auth/keys"
	"spendhook/internal/clock"
	"spendhook/internal/peer"
)

const (
	maxToken     = 8 << 10 // bytes
	cachedTokens = 10_000
)

// ErrInvalidToken means that a token is refused. It does not give the reason, which would help
// to forge tokens.
var ErrInvalidToken = errors.New("the token is not valid")

// ErrUnavailable means that a token cannot be verified now: the keys of its issuer could not
// be fetched yet, or too many requests wait for verification.
var ErrUnavailable = errors.New("the token cannot be verified now")

// VerifierOptions say whose tokens are accepted.
type VerifierOptions struct {
	Keys     *keys.Signer // of the built-in issuer; nil accepts none of its tokens
	External []Issuer     // other issuers whose tokens are accepted
	// Revoked reports whether the tokens of a client are refused; nil refuses none.
	Revoked func(clientID string) bool

	Now        func() time.Time      // nil means time.Now
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // of the metrics; nil exports none
}

// Verifier checks access tokens: the signature, with a key of the issuer that
// the token names and an algorithm of the key's own or of its type, then "iss",
// "aud", "exp" and "nbf". It caches verified tokens by their hash while they and
// their keys are valid: a signature costs a hundred times more than a look-up. It verifies
// one new token of each address (peer.Address of the context) at a time; the others wait.
// It is safe for concurrent use.
type Verifier struct {
	issuers  map[string]*source // by the "iss" of their tokens
	external []*externalIssuer  // the other issuers, which are in issuers too
	revoked  func(clientID string) bool
	now      func() time.Time
	cache    *lru.Cache[[sha256.Size]byte, verified]
	turns    *peer.Turns
}

// verified is the result for a valid token: its caller, and the key that verified it.
type verified struct {
	caller *Caller
	issuer *source
	keyID  string
}

// NewVerifier returns a Verifier for these options. It has no key of another issuer
// until Run, or the first token, fetches the keys. The error is an unknown scope of an issuer.
func NewVerifier(opts VerifierOptions) (*Verifier, error) {
	opts.Now = clock.Or(opts.Now)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	if opts.Revoked == nil {
		opts.Revoked = func(string) bool { return false }
	}
	v := &Verifier{issuers: map[string]*source{}, revoked: opts.Revoked, now: opts.Now, turns: peer.NewTurns(runtime.GOMAXPROCS(0))}
	if opts.Keys != nil {
		v.issuers[opts.Keys.Issuer()] = &source{tokenIssuer: ownIssuer{opts.Keys}, now: opts.Now, every: keys.SyncInterval / 2}
	}
	metrics := newMetrics(opts.Registerer)
	for _, settings := range opts.External {
		issuer, err := newExternalIssuer(settings, opts, metrics)
		if err != nil {
			return nil, err
		}
		v.issuers[settings.Name] = &source{tokenIssuer: issuer, now: opts.Now, every: jwksRetry}
		v.external = append(v.external, issuer)
	}
	v.cache, _ = lru.New[[sha256.Size]byte, verified](cachedTokens) // fails only for a size < 1
	return v, nil
}

// Run fetches the keys of the other issuers, now and at intervals, until ctx ends.
func (v *Verifier) Run(ctx context.Context) {
	var issuers sync.WaitGroup
	for _, issuer := range v.external {
		issuers.Go(func() { issuer.run(ctx) })
	}
	issuers.Wait()
}

// Verify returns the Caller of an access token. The error is ErrInvalidToken, or
// ErrUnavailable when the token cannot be verified now. Verify may wait a second for a new
// key, and a second for its turn. All requests with the token share the Caller.
func (v *Verifier) Verify(ctx context.Context, token string) (*Caller, error) {
	if len(token) > maxToken {
		return nil, ErrInvalidToken
	}
	hash := sha256.Sum256([]byte(token))
	known, ok := v.cached(hash)
	if !ok {
		var err error
		if known, err = v.parse(ctx, token, hash); err != nil {
			return nil, err
		}
	}
	if v.revoked(known.caller.ClientID) {
		return nil, ErrInvalidToken
	}
	return known.caller, nil
}

// Accepts reports whether tokens of an issuer, signed with a key, are still accepted of a client: the key
// is not revoked, and the client, "" for none, is not disabled or deleted.
func (v *Verifier) Accepts(issuer, keyID, clientID string) bool {
	of := v.issuers[issuer]
	if of == nil || v.revoked(clientID) {
		return false
	}
	key, loaded := of.lookup(keyID)
	return key != nil || !loaded
}

// cached returns what is known of a token that is still valid.
func (v *Verifier) cached(hash [sha256.Size]byte) (known verified, ok bool) {
	if known, ok = v.cache.Get(hash); !ok {
		return known, false
	}
	key, _ := known.issuer.lookup(known.keyID)
	return known, key != nil && v.now().Before(known.caller.Expires)
}

// parse verifies a token that is not cached, and caches it.
func (v *Verifier) parse(ctx context.Context, token string, hash [sha256.Size]byte) (verified, error) {
	name, keyID, algorithm, err := readHeader(token)
	issuer := v.issuers[name]
	if err != nil || issuer == nil {
		return verified{}, ErrInvalidToken
	}
	key, loaded := issuer.find(ctx, keyID)
	switch {
	case key == nil && !loaded:
		return verified{}, ErrUnavailable
	case key == nil:
		return verified{}, ErrInvalidToken
	}
	if own, pinned := key.Algorithm(); pinned && own.String() != algorithm {
		return verified{}, ErrInvalidToken // the library ignores the token's algorithm and uses the key's own
	}
	set := jwk.NewSet()
	if err := set.AddKey(key); err != nil {
		return verified{}, err
	}
	end, err := v.turns.Take(ctx, peer.Address(ctx))
	if err != nil {
		return verified{}, ErrUnavailable
	}
	defer end()
	if known, ok := v.cached(hash); ok { // another request has verified it meanwhile
		return known, nil
	}
	parsed, err := jwt.Parse([]byte(token), append(issuer.rules(),
		jwt.WithKeySet(set, jws.WithInferAlgorithmFromKey(true)),
		jwt.WithResetValidators(true), // without the check of "iat", because clocks differ
		jwt.WithValidator(jwt.IsExpirationValid()),
		jwt.WithValidator(jwt.IsNbfValid()),
		jwt.WithRequiredClaim(jwt.ExpirationKey),
		jwt.WithIssuer(name),
		jwt.WithClock(jwt.ClockFunc(v.now)),
	)...)
	if err != nil {
		return verified{}, ErrInvalidToken // the library's text may repeat parts of the token
	}
	caller, err := issuer.caller(parsed)
	if err != nil {
		return verified{}, ErrInvalidToken
	}
	caller.KeyID = keyID
	known := verified{caller: caller, issuer: issuer, keyID: keyID}
	v.cache.Add(hash, known)
	return known, nil
}

// readHeader reads the unverified issuer, key id and algorithm of a token in the compact form, the
// only one that is accepted.
func readHeader(token string) (issuer, keyID, algorithm string, err error) {
	message, err := jws.Parse([]byte(token), jws.WithCompact())
	if err != nil {
		return "", "", "", err
	}
	protected := message.Signatures()[0].ProtectedHeaders()
	if protected.Has(jws.CriticalKey) {
		return "", "", "", ErrInvalidToken // an extension that we do not know, RFC 7515 section 4.1.11
	}
	keyID, _ = protected.KeyID()
	signedBy, _ := protected.Algorithm()
	var payload struct {
		Issuer string `json:"iss"`
	}
	err = json.Unmarshal(message.Payload(), &payload)
	return payload.Issuer, keyID, signedBy.String(), err
}
