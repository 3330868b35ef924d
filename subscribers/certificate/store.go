package certificate

import (
	"context"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/seal"
	"spendhook/subscribers/layout"
)

// ErrNotFound says that the company has no egress certificate.
var ErrNotFound = errors.New("company has no egress certificate")

var (
	//go:embed lua/set.lua
	setLua string

	setScript = layout.NewScript(layout.VersionLua() + setLua)
)

// endsKey names the sorted set of the companies of a partition that have
// an egress certificate, by its end in unix ms.
func endsKey(p int) string { return partition.Prefix(p) + "ec" }

// place binds a sealed private key to its company.
func place(company uuid.UUID) string { return "company/" + company.String() + "/egress-key" }

// Store keeps egress certificates in Redis, beside the company's subscribers: each change
// raises their version. It is safe for concurrent use; its methods block for a round trip
// to Redis.
type Store struct {
	client redis.UniversalClient
	keys   *seal.Keyring
	now    func() time.Time
}

// New returns a Store that seals private keys under the keyring; now is time.Now when nil.
func New(client redis.UniversalClient, keyring *seal.Keyring, now func() time.Time) *Store {
	return &Store{client: client, keys: keyring, now: clock.Or(now)}
}

type record struct {
	Chain     string `json:"chain"` // PEM, public
	Key       string `json:"key"`   // PKCS #8, sealed
	UpdatedAt int64  `json:"updatedAt"`
}

// Set stores or replaces the company's egress certificate. Every match that starts after Set has
// returned uses the new certificate. Invalid input is an *invalid.Error.
func (s *Store) Set(ctx context.Context, company uuid.UUID, in Input) (*Certificate, error) {
	c, err := in.parse(s.now().UTC().Truncate(time.Millisecond))
	if err != nil {
		return nil, err
	}
	raw, err := encode(s.keys, company, c)
	if err != nil {
		return nil, err
	}
	return c, s.set(ctx, company, raw, c.NotAfter.UnixMilli())
}

// set stores raw, or removes the certificate, if any, when raw is "".
func (s *Store) set(ctx context.Context, company uuid.UUID, raw string, end int64) error {
	keys := []string{layout.CompanyKey(company), endsKey(partition.Of(company))}
	if err := setScript.Run(ctx, s.client, keys, raw, company.String(), end).Err(); err != nil {
		return fmt.Errorf("change egress certificate: %w", err)
	}
	return nil
}

// Get returns the company's egress certificate, or ErrNotFound.
func (s *Store) Get(ctx context.Context, company uuid.UUID) (*Certificate, error) {
	raw, err := s.client.HGet(ctx, layout.CompanyKey(company), layout.CertificateField).Result()
	if errors.Is(err, redis.Nil) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read egress certificate: %w", err)
	}
	return Decode(s.keys, company, raw)
}

// Remove removes the company's egress certificate, or returns ErrNotFound.
func (s *Store) Remove(ctx context.Context, company uuid.UUID) error {
	known, err := s.client.HExists(ctx, layout.CompanyKey(company), layout.CertificateField).Result()
	if err != nil {
		return fmt.Errorf("read egress certificate: %w", err)
	}
	if !known {
		return ErrNotFound
	}
	return s.set(ctx, company, "", 0)
}

// Expiring is a company with an egress certificate that expires soon or has expired.
type Expiring struct {
	Company  uuid.UUID
	NotAfter time.Time
}

// maxExpiring bounds what ExpiringBefore returns of each partition.
const maxExpiring = 100

// ExpiringBefore returns the egress certificates that expire before a time, also expired ones: of
// each partition the hundred that expire first.
func (s *Store) ExpiringBefore(ctx context.Context, before time.Time) ([]Expiring, error) {
	span := &redis.ZRangeBy{Min: "-inf", Max: "(" + strconv.FormatInt(before.UnixMilli(), 10), Count: maxExpiring}
	ends, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range partition.Count {
			pipe.ZRangeByScoreWithScores(ctx, endsKey(p), span)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read ends of egress certificates: %w", err)
	}
	var all []Expiring
	for _, c := range ends {
		for _, z := range c.(*redis.ZSliceCmd).Val() {
			if company, err := uuid.Parse(z.Member.(string)); err == nil {
				all = append(all, Expiring{company, time.UnixMilli(int64(z.Score)).UTC()})
			}
		}
	}
	return all, nil
}

func encode(keys *seal.Keyring, company uuid.UUID, c *Certificate) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.TLS.PrivateKey.(*oneByOne).Signer)
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	sealed, err := keys.Seal(der, place(company))
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	r := record{Key: sealed, UpdatedAt: c.UpdatedAt.UnixMilli()}
	for _, link := range c.TLS.Certificate {
		r.Chain += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: link}))
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	return string(raw), nil
}

// Resealed returns a stored certificate with its key sealed under the current encryption key. It
// does not change a key that cannot be decrypted.
func Resealed(keys *seal.Keyring, company uuid.UUID, raw string) (string, error) {
	c, err := Decode(keys, company, raw)
	if err != nil || c.Locked != nil {
		return raw, err
	}
	return encode(keys, company, c)
}

// Decode reads a stored certificate; nil for none. The certificate is Locked when its key cannot be
// decrypted.
func Decode(keys *seal.Keyring, company uuid.UUID, raw string) (*Certificate, error) {
	if raw == "" {
		return nil, nil
	}
	damaged := fmt.Errorf("stored egress certificate of company %s is damaged", company)
	var r record
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return nil, damaged
	}
	chain, err := readChain(r.Chain)
	if err != nil {
		return nil, damaged
	}
	c := newCertificate(chain, time.UnixMilli(r.UpdatedAt).UTC())
	var der []byte
	if der, c.Locked = keys.Open(r.Key, place(company)); c.Locked != nil {
		c.TLS = nil
		return c, nil //nolint:nilerr // c says why
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil || c.setKey(key) != nil {
		return nil, damaged
	}
	return c, nil
}
