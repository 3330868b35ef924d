package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"github.com/alexedwards/argon2id"
	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	knownSecrets = 10_000
	// knownFor is longer than a token lives, so that a client which gets the
	// next token in time is never hashed again.
	knownFor = 2 * TokenTTL

	waitingChecks = 16
	checkWait     = time.Second // the answer must come within the API's 1.5 s
)

// unknownHash is what the secret of an unknown client is compared with, so that
// it takes as long as that of a known one. No secret is taken for having it.
const unknownHash = "$argon2id$v=19$m=7168,t=5,p=1$c3BlbmRob29rc3BlbmRobw$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// secrets compares client secrets with their hashes. What was right is
// remembered for a while, by its HMAC under a key of this process, together
// with the hash that it matched: a changed secret is never taken for a known
// one. It is safe for concurrent use.
type secrets struct {
	gate    *gate
	now     func() time.Time
	metrics *Metrics
	key     [32]byte
	known   *lru.Cache[[sha256.Size]byte, knownSecret]
}

type knownSecret struct {
	hash    string
	expires time.Time
}

func newSecrets(atOnce int, now func() time.Time, metrics *Metrics) *secrets {
	s := &secrets{gate: newGate(atOnce, waitingChecks, checkWait), now: now, metrics: metrics}
	_, _ = rand.Read(s.key[:]) // it never fails
	var err error
	if s.known, err = lru.New[[sha256.Size]byte, knownSecret](knownSecrets); err != nil {
		panic(err) // only a cache of no size
	}
	return s
}

func (s *secrets) mac(id, secret string) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, s.key[:])
	h.Write([]byte(id))
	h.Write([]byte{0}) // no id has one
	h.Write([]byte(secret))
	h.Sum(sum[:0])
	return sum
}

// recall is the hash that the secret of a client is known to match, or "".
func (s *secrets) recall(id, secret string) string {
	mac := s.mac(id, secret)
	k, ok := s.known.Get(mac)
	if !ok || !s.now().Before(k.expires) {
		return ""
	}
	return k.hash
}

func (s *secrets) remember(id, secret, hash string) {
	s.known.Add(s.mac(id, secret), knownSecret{hash: hash, expires: s.now().Add(knownFor)})
}

// matches hashes the secret, one at a time in this process, and may return
// errBusy instead.
func (s *secrets) matches(ctx context.Context, secret, hash string) (bool, error) {
	s.metrics.waiting.Inc()
	leave, err := s.gate.enter(ctx)
	s.metrics.waiting.Dec()
	if err != nil {
		return false, err
	}
	defer leave()
	began := s.now()
	defer func() { s.metrics.checks.Observe(s.now().Sub(began).Seconds()) }()
	return argon2id.ComparePasswordAndHash(secret, hash)
}
