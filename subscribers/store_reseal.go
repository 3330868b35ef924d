package subscribers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/internal/redisx"
	"spendhook/internal/seal/reseal"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/layout"
)

// Reseal seals every secret, header, client secret, signing key and egress certificate that is not sealed under the
// current key, and counts them. It reads every company. It may be interrupted at any time and repeated.
// It does not overwrite concurrent changes.
func (s *Store) Reseal(ctx context.Context, count *reseal.Count) error {
	err := redisx.Scan(ctx, s.opts.Client, "sh:{*}:s:*", func(ctx context.Context, key string) error {
		return s.resealCompany(ctx, key, count)
	})
	if err != nil {
		return fmt.Errorf("reseal subscribers: %w", err)
	}
	return nil
}

// companyOf returns the company of a key of layout.CompanyKey. It reports whether the key is one.
func companyOf(key string) (uuid.UUID, bool) {
	_, text, _ := strings.Cut(key, "}:s:")
	company, err := uuid.Parse(text)
	return company, err == nil && key == layout.CompanyKey(company)
}

var errEnough = errors.New("enough companies")

// CheckSigningKeys reads the signing keys of as many companies as there are, at most a given number, and returns
// how many it read, and how many of them cannot be decrypted.
func (s *Store) CheckSigningKeys(ctx context.Context, most int) (read, locked int, err error) {
	err = redisx.Scan(ctx, s.opts.Client, "sh:{*}:s:*", func(ctx context.Context, key string) error {
		company, ok := companyOf(key)
		if !ok {
			return nil
		}
		if read >= most {
			return errEnough
		}
		_, keys, err := s.signingKeys(ctx, company)
		switch {
		case errors.Is(err, ErrNoSigningKey): // it has a certificate only
			return nil
		case err != nil:
			return err
		case keys.locked != nil:
			locked++
		}
		read++
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return read, locked, err
}

func (s *Store) resealCompany(ctx context.Context, key string, count *reseal.Count) error {
	company, ok := companyOf(key)
	if !ok {
		return nil
	}
	hash, err := s.opts.Client.HGetAll(ctx, key).Result()
	if err != nil {
		return err
	}
	for field, raw := range hash {
		if field == layout.VersionField {
			continue
		}
		if err := s.resealField(ctx, company, field, raw, count); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) resealField(ctx context.Context, company uuid.UUID, field, raw string, count *reseal.Count) error {
	stored := reseal.Text(s.opts.Keyring, raw, signingKeysPlace(company))
	if field != layout.SigningKeysField {
		stored.Secrets = sealedSecrets
		stored.Reseal = func(raw string) (string, error) { return s.resealed(company, field, raw) }
	}
	stored.Swap = func(ctx context.Context, old, fresh string) (bool, error) {
		return resealScript.Run(ctx, s.opts.Client, []string{layout.CompanyKey(company)}, field, old, fresh).Bool()
	}
	if err := count.Reseal(ctx, s.opts.Keyring, stored); err != nil {
		return fmt.Errorf("company %s, %s: %w", company, field, err)
	}
	return nil
}

// resealed returns a field of a company's hash with its secrets sealed under the current key. It
// does not change secrets that cannot be decrypted.
func (s *Store) resealed(company uuid.UUID, field, raw string) (string, error) {
	if subscriber, ok := layout.ParseCertificateField(field); ok {
		return certificate.Resealed(s.opts.Keyring, company, subscriber, raw)
	}
	id, err := uuid.Parse(field)
	if err != nil {
		return "", fmt.Errorf("stored subscriber of %s has no uuid", company)
	}
	sub, err := s.codec.decode(company, id, raw)
	if err != nil {
		return "", err
	}
	return s.codec.encode(&sub, rand.Text())
}

// sealedSecrets lists the sealed values in the JSON of a subscriber or a certificate.
func sealedSecrets(raw string) ([]string, error) {
	var r struct {
		Secrets []SigningSecret   `json:"secrets"`
		Headers []callback.Header `json:"headers"`
		OAuth   *callback.OAuth   `json:"oauth"`
		Key     *string           `json:"key"`
	}
	if json.Unmarshal([]byte(raw), &r) != nil { // its error may quote a secret
		return nil, errors.New("the stored record is damaged")
	}
	var all []string
	for _, secret := range r.Secrets {
		all = append(all, secret.Sealed)
	}
	for _, h := range r.Headers {
		all = append(all, h.Sealed)
	}
	if r.OAuth != nil {
		all = append(all, r.OAuth.Sealed)
	}
	if r.Key != nil {
		all = append(all, *r.Key)
	}
	return all, nil
}
