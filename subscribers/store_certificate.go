package subscribers

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// ErrNoCertificate says that the company has no egress certificate.
var ErrNoCertificate = errors.New("company has no egress certificate")

// certificateRecord is a Certificate as Redis keeps it.
type certificateRecord struct {
	Chain     string `json:"chain"` // PEM, public
	Key       string `json:"key"`   // PKCS #8, sealed
	UpdatedAt int64  `json:"updatedAt"`
}

// SetCertificate gives the company an egress certificate, in place of the one
// that it may have. It holds for every dispatch that starts after the answer.
func (s *Store) SetCertificate(ctx context.Context, company uuid.UUID, in CertificateInput) (*Certificate, error) {
	c, err := in.parse(s.now())
	if err != nil {
		return nil, err
	}
	raw, err := s.vault.encodeCertificate(company, c)
	if err != nil {
		return nil, err
	}
	err = certificateScript.Run(ctx, s.opts.Client,
		[]string{companyKey(company), certificatesKey(partition.Of(company))},
		raw, company.String(), c.NotAfter.UnixMilli()).Err()
	if err != nil {
		return nil, fmt.Errorf("set egress certificate: %w", err)
	}
	return c, nil
}

// Certificate returns the company's egress certificate, or ErrNoCertificate.
func (s *Store) Certificate(ctx context.Context, company uuid.UUID) (*Certificate, error) {
	raw, err := s.opts.Client.HGet(ctx, companyKey(company), certificateField).Result()
	if errors.Is(err, redis.Nil) {
		return nil, ErrNoCertificate
	}
	if err != nil {
		return nil, fmt.Errorf("read egress certificate: %w", err)
	}
	return s.vault.decodeCertificate(company, raw)
}

// RemoveCertificate removes the company's egress certificate, or returns
// ErrNoCertificate.
func (s *Store) RemoveCertificate(ctx context.Context, company uuid.UUID) error {
	keys := []string{companyKey(company), certificatesKey(partition.Of(company)), urlsKey(company)}
	removed, err := uncertificateScript.Run(ctx, s.opts.Client, keys, company.String(), versionLife.Milliseconds()).Bool()
	if err != nil {
		return fmt.Errorf("remove egress certificate: %w", err)
	}
	if !removed {
		return ErrNoCertificate
	}
	return nil
}

// Expiring is a company whose egress certificate ends.
type Expiring struct {
	Company  uuid.UUID
	NotAfter time.Time
}

// maxExpiring bounds what ExpiringCertificates returns of each partition.
const maxExpiring = 100

// ExpiringCertificates counts the egress certificates of each partition that end
// before the time, those that have ended included, and returns some of them: of each
// partition the first hundred to end.
func (s *Store) ExpiringCertificates(ctx context.Context, before time.Time) (some []Expiring, byPartition []int64, err error) {
	counts := make([]*redis.IntCmd, partition.Count)
	ends := make([]*redis.ZSliceCmd, partition.Count)
	limit := "(" + strconv.FormatInt(before.UnixMilli(), 10)
	_, err = s.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range partition.Count {
			counts[p] = pipe.ZCount(ctx, certificatesKey(p), "-inf", limit)
			ends[p] = pipe.ZRangeByScoreWithScores(ctx, certificatesKey(p), &redis.ZRangeBy{Min: "-inf", Max: limit, Count: maxExpiring})
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read ends of egress certificates: %w", err)
	}
	byPartition = make([]int64, partition.Count)
	for p := range partition.Count {
		byPartition[p] = counts[p].Val()
		for _, z := range ends[p].Val() {
			member, _ := z.Member.(string)
			if company, err := uuid.Parse(member); err == nil {
				some = append(some, Expiring{company, time.UnixMilli(int64(z.Score)).UTC()})
			}
		}
	}
	return some, byPartition, nil
}

func (v vault) encodeCertificate(company uuid.UUID, c *Certificate) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.TLS.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	sealed, err := v.keys.Seal(der, certificatePlace(company))
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	r := certificateRecord{Key: sealed, UpdatedAt: c.UpdatedAt.UnixMilli()}
	for _, link := range c.TLS.Certificate {
		r.Chain += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: link}))
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	return string(raw), nil
}

// decodeCertificate returns nil for no certificate, and one that is Locked when
// its key does not open.
func (v vault) decodeCertificate(company uuid.UUID, raw string) (*Certificate, error) {
	if raw == "" {
		return nil, nil
	}
	damaged := fmt.Errorf("stored egress certificate of company %s is damaged", company)
	var r certificateRecord
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return nil, damaged
	}
	chain, err := readChain(r.Chain)
	if err != nil {
		return nil, damaged
	}
	c := newCertificate(chain, time.UnixMilli(r.UpdatedAt).UTC())
	der, locked := v.open(r.Key, certificatePlace(company))
	if locked != nil {
		c.TLS, c.Locked = nil, locked
		return c, nil
	}
	if c.TLS.PrivateKey, err = x509.ParsePKCS8PrivateKey([]byte(der)); err != nil {
		return nil, damaged
	}
	return c, nil
}
