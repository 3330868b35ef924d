package subscribers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redisx"
	"spendhook/internal/seal"
)

// Reseal seals everything of this store that is sealed under another key than the
// current one, and counts it. It may be ended at any moment and
// begun again: what is done stays done. What changes meanwhile is never
// overwritten; the change sealed it. It reads every company.
func (s *Store) Reseal(ctx context.Context, count *seal.Count) error {
	err := redisx.Scan(ctx, s.opts.Client, "sh:{*}:s:*", func(ctx context.Context, keys []string) error {
		for _, key := range keys {
			if err := s.resealCompany(ctx, key, count); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reseal subscribers: %w", err)
	}
	err = redisx.Scan(ctx, s.opts.Client, "sh:{*}:wk:*", func(ctx context.Context, keys []string) error {
		for _, key := range keys {
			if err := s.resealSigningKey(ctx, key, count); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reseal signing keys: %w", err)
	}
	return nil
}

// companyOf reads the company at the end of a key; ok is false for a key that
// is not one of ours.
func companyOf(key, infix string) (company uuid.UUID, ok bool) {
	_, text, _ := strings.Cut(key, infix)
	company, err := uuid.Parse(text)
	return company, err == nil
}

func (s *Store) resealCompany(ctx context.Context, key string, count *seal.Count) error {
	company, ok := companyOf(key, "}:s:")
	if !ok || key != companyKey(company) {
		return nil
	}
	hash, err := s.opts.Client.HGetAll(ctx, key).Result()
	if err != nil {
		return err
	}
	for field, raw := range hash {
		if field == versionField {
			continue
		}
		if err := s.resealField(ctx, company, field, raw, count); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) resealField(ctx context.Context, company uuid.UUID, field, raw string, count *seal.Count) error {
	err := count.Each(ctx, s.opts.Keyring, seal.Stored{
		Value: raw,
		Seals: recordSeals,
		Anew:  func(raw string) (string, error) { return s.resealed(company, field, raw) },
		Swap: func(ctx context.Context, old, fresh string) (bool, error) {
			return resealScript.Run(ctx, s.opts.Client, []string{companyKey(company)}, field, old, fresh).Bool()
		},
		Read: func(ctx context.Context) (string, error) {
			return found(s.opts.Client.HGet(ctx, companyKey(company), field).Result())
		},
	})
	if err != nil {
		return fmt.Errorf("company %s, %s: %w", company, field, err)
	}
	return nil
}

// resealed is a field of a company's hash with what opens sealed under the current key.
func (s *Store) resealed(company uuid.UUID, field, raw string) (string, error) {
	if field == certificateField {
		c, err := s.vault.decodeCertificate(company, raw)
		if err != nil || c.Locked != nil {
			return raw, err
		}
		return s.vault.encodeCertificate(company, c)
	}
	id, err := uuid.Parse(field)
	if err != nil {
		return "", fmt.Errorf("stored subscriber of %s has no uuid", company)
	}
	sub, err := s.vault.decode(company, id, raw)
	if err != nil {
		return "", err
	}
	return s.vault.encode(&sub, rand.Text())
}

// recordSeals finds what is sealed, or should be, in a subscriber's or a
// certificate's JSON.
func recordSeals(raw string) ([]string, error) {
	var r struct {
		Secrets []recordSecret `json:"secrets"`
		Headers []recordHeader `json:"headers"`
		Key     *string        `json:"key"`
	}
	if json.Unmarshal([]byte(raw), &r) != nil { // its error may quote a secret
		return nil, errors.New("what is stored is damaged")
	}
	var all []string
	for _, secret := range r.Secrets {
		all = append(all, secret.Key)
	}
	for _, h := range r.Headers {
		all = append(all, h.Value)
	}
	if r.Key != nil {
		all = append(all, *r.Key)
	}
	return all, nil
}

func (s *Store) resealSigningKey(ctx context.Context, key string, count *seal.Count) error {
	company, ok := companyOf(key, "}:wk:")
	if !ok || key != signingKey(company) {
		return nil
	}
	raw, err := found(s.opts.Client.Get(ctx, key).Result())
	if err != nil || raw == "" {
		return err
	}
	return count.Each(ctx, s.opts.Keyring, seal.Stored{
		Value: raw,
		Seals: func(raw string) ([]string, error) { return []string{raw}, nil },
		Anew: func(raw string) (string, error) {
			seed, locked := s.vault.open(raw, signingKeyPlace(company))
			return s.vault.seal(seed, locked, signingKeyPlace(company))
		},
		Swap: func(ctx context.Context, old, fresh string) (bool, error) {
			return resealKeyScript.Run(ctx, s.opts.Client, []string{key}, old, fresh).Bool()
		},
		Read: func(ctx context.Context) (string, error) { return found(s.opts.Client.Get(ctx, key).Result()) },
	})
}

// found is "" for what is not there.
func found(text string, err error) (string, error) {
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, err
}
