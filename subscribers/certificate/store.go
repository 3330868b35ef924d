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
	"spendhook/internal/secret"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/vault"
)

// ErrNotFound says that the company has no egress certificate.
var ErrNotFound = errors.New("company has no egress certificate")

var (
	//go:embed lua/set.lua
	setLua string
	//go:embed lua/remove.lua
	removeLua string

	setScript    = layout.NewScript(layout.VersionLua() + setLua)
	removeScript = layout.NewScript(layout.VersionLua() + removeLua)
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
	vault  vault.Vault
	now    func() time.Time
}

// New returns a Store that seals private keys under the keyring; now is time.Now when nil.
func New(client redis.UniversalClient, keyring *seal.Keyring, now func() time.Time) *Store {
	return &Store{client: client, vault: vault.New(keyring), now: clock.Or(now)}
}

type record struct {
	Chain     string `json:"chain"` // PEM, public
	Key       string `json:"key"`   // PKCS #8, sealed
	UpdatedAt int64  `json:"updatedAt"`
}

// Set stores the company's egress certificate, in place of the present one. Every match that
// starts after Set has returned uses the new certificate. Invalid input is an *invalid.Error.
func (s *Store) Set(ctx context.Context, company uuid.UUID, in Input) (*Certificate, error) {
	c, err := in.parse(s.now().UTC().Truncate(time.Millisecond))
	if err != nil {
		return nil, err
	}
	raw, err := encode(s.vault, company, c)
	if err != nil {
		return nil, err
	}
	err = setScript.Run(ctx, s.client,
		[]string{layout.CompanyKey(company), endsKey(partition.Of(company))},
		raw, company.String(), c.NotAfter.UnixMilli()).Err()
	if err != nil {
		return nil, fmt.Errorf("set egress certificate: %w", err)
	}
	return c, nil
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
	return Decode(s.vault, company, raw)
}

// Remove removes the company's egress certificate, or returns ErrNotFound.
func (s *Store) Remove(ctx context.Context, company uuid.UUID) error {
	keys := []string{layout.CompanyKey(company), endsKey(partition.Of(company)), layout.URLsKey(company)}
	removed, err := removeScript.Run(ctx, s.client, keys, company.String(), layout.VersionLife.Milliseconds()).Bool()
	if err != nil {
		return fmt.Errorf("remove egress certificate: %w", err)
	}
	if !removed {
		return ErrNotFound
	}
	return nil
}

// Expiring is a company with an egress certificate that expires soon or has expired.
type Expiring struct {
	Company  uuid.UUID
	NotAfter time.Time
}

// maxExpiring bounds what ExpiringBefore returns of each partition.
const maxExpiring = 100

// ExpiringBefore counts the egress certificates that end before a time, those that have ended
// included, and returns some of them: of each partition the first hundred to end.
func (s *Store) ExpiringBefore(ctx context.Context, before time.Time) (some []Expiring, count int64, err error) {
	counts := make([]*redis.IntCmd, partition.Count)
	ends := make([]*redis.ZSliceCmd, partition.Count)
	limit := "(" + strconv.FormatInt(before.UnixMilli(), 10)
	_, err = s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range partition.Count {
			counts[p] = pipe.ZCount(ctx, endsKey(p), "-inf", limit)
			ends[p] = pipe.ZRangeByScoreWithScores(ctx, endsKey(p), &redis.ZRangeBy{Min: "-inf", Max: limit, Count: maxExpiring})
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read ends of egress certificates: %w", err)
	}
	for p := range partition.Count {
		count += counts[p].Val()
		for _, z := range ends[p].Val() {
			member, _ := z.Member.(string)
			if company, err := uuid.Parse(member); err == nil {
				some = append(some, Expiring{company, time.UnixMilli(int64(z.Score)).UTC()})
			}
		}
	}
	return some, count, nil
}

func encode(v vault.Vault, company uuid.UUID, c *Certificate) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.TLS.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	sealed, err := v.Seal(secret.Text(der), nil, place(company))
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

// Resealed returns a stored certificate with its key sealed under the current encryption key. A
// key that does not open stays as it is.
func Resealed(v vault.Vault, company uuid.UUID, raw string) (string, error) {
	c, err := Decode(v, company, raw)
	if err != nil || c.Locked != nil {
		return raw, err
	}
	return encode(v, company, c)
}

// Decode reads a stored certificate: nil for none, and one that is Locked when
// its key does not open.
func Decode(v vault.Vault, company uuid.UUID, raw string) (*Certificate, error) {
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
	der, locked := v.Open(r.Key, place(company))
	if locked != nil {
		c.TLS, c.Locked = nil, locked
		return c, nil
	}
	if c.TLS.PrivateKey, err = x509.ParsePKCS8PrivateKey([]byte(der)); err != nil {
		return nil, damaged
	}
	return c, nil
}
