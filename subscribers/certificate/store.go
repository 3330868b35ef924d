package certificate

import (
	"cmp"
	"context"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/seal"
	"spendhook/subscribers/layout"
)

// Errors that callers check for. Invalid input is an *invalid.Error.
var (
	// ErrNotFound says that the company, or the subscriber, has no egress certificate.
	ErrNotFound = errors.New("there is no egress certificate")
	// ErrNoSubscriber says that the company has no such subscriber.
	ErrNoSubscriber = errors.New("no subscriber for the egress certificate")
	// ErrTooMany says that as many subscribers of the company have a certificate of their own as may.
	ErrTooMany = errors.New("too many egress certificates")
	// ErrFull says that no memory is left for one more certificate; those that there are can be replaced.
	ErrFull = errors.New("no memory is left for one more egress certificate")
	// ErrDamaged says that a stored certificate cannot be read.
	ErrDamaged = errors.New("the stored egress certificate is damaged")
)

var (
	//go:embed lua/set.lua
	setLua string

	setScript = layout.NewScript(layout.VersionLua() + setLua)
)

// endsKey names the sorted set of the companies of a partition, and of their subscribers, that have
// an egress certificate, by its end in unix ms. Its members are made by member.
func endsKey(p int) string { return partition.Prefix(p) + "ec" }

func member(company, subscriber uuid.UUID) string {
	if subscriber == uuid.Nil {
		return company.String()
	}
	return company.String() + "/" + subscriber.String()
}

// place binds a sealed private key to its company or subscriber.
func place(company, subscriber uuid.UUID) string {
	return "company/" + member(company, subscriber) + "/egress-key"
}

// Store keeps egress certificates in Redis, beside the company's subscribers: each change
// raises their version. It is safe for concurrent use; its methods block for a round trip
// to Redis.
type Store struct {
	client     redis.UniversalClient
	keys       *seal.Keyring
	maxOwn     int
	full       func(company uuid.UUID) bool
	now        func() time.Time
	subscriber uuid.UUID // whose certificates they are; uuid.Nil: the companies'
}

// Options configures a Store. Client is required, and for all but ExpiringBefore Keyring, which seals private keys.
type Options struct {
	Client  redis.UniversalClient
	Keyring *seal.Keyring
	// MaxOwn is how many subscribers of a company may have a certificate of their own: a change of any subscriber has every
	// replica read all of them. 0 means 100.
	MaxOwn int
	Full   func(company uuid.UUID) bool // whether Redis has no memory left for more of a company; nil: never
	Now    func() time.Time             // nil: time.Now
}

// New returns a Store.
func New(o Options) *Store {
	return &Store{client: o.Client, keys: o.Keyring, maxOwn: cmp.Or(o.MaxOwn, 100), full: o.Full, now: clock.Or(o.Now)}
}

// Of returns the store of the certificate of one subscriber, which its deliveries present instead of the
// company's. It is removed with the subscriber.
func (s *Store) Of(subscriber uuid.UUID) *Store {
	of := *s
	of.subscriber = subscriber
	return &of
}

type record struct {
	Chain     string `json:"chain"` // PEM, public
	Key       string `json:"key"`   // PKCS #8, sealed
	UpdatedAt int64  `json:"updatedAt"`
}

// Set stores or replaces the egress certificate. Every match that starts after Set has returned uses the new
// certificate. The error may be ErrFull, and of a subscriber ErrNoSubscriber or ErrTooMany.
func (s *Store) Set(ctx context.Context, company uuid.UUID, in Input) (*Certificate, error) {
	c, err := in.parse(company, s.now().UTC().Truncate(time.Millisecond))
	if err != nil {
		return nil, err
	}
	raw, err := encode(s.keys, company, s.subscriber, c)
	if err != nil {
		return nil, err
	}
	return c, s.set(ctx, company, raw, c.NotAfter.UnixMilli())
}

// set stores raw, or removes the certificate, if any, when raw is "".
func (s *Store) set(ctx context.Context, company uuid.UUID, raw string, end int64) error {
	keys := []string{layout.CompanyKey(company), endsKey(partition.Of(company))}
	field, needed := layout.CertificateFieldOf(s.subscriber), ""
	if s.subscriber != uuid.Nil {
		needed = s.subscriber.String()
	}
	full := s.full != nil && s.full(company)
	done, err := setScript.Run(ctx, s.client, keys, raw, member(company, s.subscriber), end, field, needed, s.maxOwn, full).Int()
	switch {
	case err != nil:
		return fmt.Errorf("change egress certificate: %w", err)
	case done == 0:
		return ErrNoSubscriber
	case done == -1:
		return ErrTooMany
	case done < 0:
		return ErrFull
	}
	return nil
}

// Get returns the egress certificate, or ErrNotFound.
func (s *Store) Get(ctx context.Context, company uuid.UUID) (*Certificate, error) {
	raw, err := s.client.HGet(ctx, layout.CompanyKey(company), layout.CertificateFieldOf(s.subscriber)).Result()
	if errors.Is(err, redis.Nil) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read egress certificate: %w", err)
	}
	return Decode(s.keys, company, s.subscriber, raw)
}

// Remove removes the egress certificate, or returns ErrNotFound.
func (s *Store) Remove(ctx context.Context, company uuid.UUID) error {
	known, err := s.client.HExists(ctx, layout.CompanyKey(company), layout.CertificateFieldOf(s.subscriber)).Result()
	if err != nil {
		return fmt.Errorf("read egress certificate: %w", err)
	}
	if !known {
		return ErrNotFound
	}
	return s.set(ctx, company, "", 0)
}

// Expiring is a company or a subscriber with an egress certificate that expires soon or has expired.
type Expiring struct {
	Company    uuid.UUID
	Subscriber uuid.UUID // uuid.Nil: it is the company's certificate
	NotAfter   time.Time
}

// Bounds of what ExpiringBefore returns: of each partition, and of each company.
const (
	maxExpiring          = 100
	maxExpiringOfCompany = 5
)

// ExpiringBefore returns the egress certificates that expire before a time, also expired ones: of
// each partition the hundred that expire first, where only the first five of a company count. They are those of
// all companies and subscribers.
func (s *Store) ExpiringBefore(ctx context.Context, before time.Time) ([]Expiring, error) {
	span := redis.ZRangeBy{Min: "-inf", Max: "(" + strconv.FormatInt(before.UnixMilli(), 10), Count: maxExpiring}
	var all []Expiring
	taken := map[uuid.UUID]int{} // of each company
	var found [partition.Count]int
	unread := make([]int, partition.Count) // partitions
	for p := range unread {
		unread[p] = p
	}
	for ; len(unread) > 0; span.Offset += span.Count {
		pages, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, p := range unread {
				pipe.ZRangeByScoreWithScores(ctx, endsKey(p), &span)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read ends of egress certificates: %w", err)
		}
		var more []int
		for i, p := range unread {
			page := pages[i].(*redis.ZSliceCmd).Val()
			for _, z := range page {
				c, ok := expiringOf(z)
				if ok && found[p] < maxExpiring && taken[c.Company] < maxExpiringOfCompany {
					all = append(all, c)
					found[p]++
					taken[c.Company]++
				}
			}
			if len(page) == maxExpiring && found[p] < maxExpiring {
				more = append(more, p)
			}
		}
		unread = more
	}
	return all, nil
}

// expiringOf reads a member of endsKey. It reports whether it is one.
func expiringOf(z redis.Z) (c Expiring, ok bool) {
	company, subscriber, own := strings.Cut(z.Member.(string), "/")
	c.NotAfter = time.UnixMilli(int64(z.Score)).UTC()
	var err error
	if c.Company, err = uuid.Parse(company); err == nil && own {
		c.Subscriber, err = uuid.Parse(subscriber)
	}
	return c, err == nil
}

func encode(keys *seal.Keyring, company, subscriber uuid.UUID, c *Certificate) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.TLS.PrivateKey.(*oneByOne).Signer)
	if err != nil {
		return "", fmt.Errorf("encode egress certificate: %w", err)
	}
	sealed, err := keys.Seal(der, place(company, subscriber))
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

// Resealed returns a stored certificate with its key sealed under the current encryption key. It does
// not change a key that cannot be decrypted.
func Resealed(keys *seal.Keyring, company, subscriber uuid.UUID, raw string) (string, error) {
	c, err := Decode(keys, company, subscriber, raw)
	if err != nil || c.Locked != nil {
		return raw, err
	}
	return encode(keys, company, subscriber, c)
}

// Decode reads the stored certificate of a subscriber, or of the company for uuid.Nil; nil for none. The
// certificate is Locked when its key cannot be decrypted.
func Decode(keys *seal.Keyring, company, subscriber uuid.UUID, raw string) (*Certificate, error) {
	if raw == "" {
		return nil, nil
	}
	damaged := fmt.Errorf("%w: of company %s", ErrDamaged, member(company, subscriber))
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
	if der, c.Locked = keys.Open(r.Key, place(company, subscriber)); c.Locked != nil {
		c.TLS = nil
		return c, nil //nolint:nilerr // c says why
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil || c.setKey(company, key) != nil {
		return nil, damaged
	}
	return c, nil
}
