package subscribers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/redisx"
	"spendhook/internal/seal/reseal"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/layout"
)

// Reseal seals every secret, header, client secret, URL of a contact, signing key and egress certificate that is not sealed under the
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

// Companies yields the companies with subscribers. It ends after an error.
func (s *Store) Companies(ctx context.Context) iter.Seq2[uuid.UUID, error] {
	return func(yield func(uuid.UUID, error) bool) {
		for p := range partition.Count {
			of, err := s.opts.Client.SMembers(ctx, layout.CompaniesKey(p)).Result()
			for i := 0; err == nil && i < len(of); i++ {
				var company uuid.UUID
				if company, err = uuid.Parse(of[i]); err == nil && !yield(company, nil) {
					return
				}
			}
			if err != nil {
				yield(uuid.Nil, fmt.Errorf("list companies: %w", err))
				return
			}
		}
	}
}

// CheckSigningKeys reads the signing keys of companies with subscribers, at most a given number, and returns how many
// it read, and how many of them cannot be decrypted.
func (s *Store) CheckSigningKeys(ctx context.Context, most int) (read, locked int, err error) {
	for company, err := range s.Companies(ctx) {
		if err != nil {
			return read, locked, err
		}
		if read >= most {
			break
		}
		_, keys, err := s.signingKeys(ctx, company)
		switch {
		case errors.Is(err, ErrNoSigningKey): // it was erased meanwhile
			continue
		case err != nil:
			return read, locked, err
		case keys.locked != nil:
			locked++
		}
		read++
	}
	return read, locked, nil
}

func (s *Store) resealCompany(ctx context.Context, key string, count *reseal.Count) error {
	_, text, _ := strings.Cut(key, "}:s:")
	company, err := uuid.Parse(text)
	if err != nil || key != layout.CompanyKey(company) {
		return nil //nolint:nilerr // a key of another kind
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
		Secrets  []SigningSecret    `json:"secrets"`
		Headers  []callback.Header  `json:"headers"`
		OAuth    *callback.OAuth    `json:"oauth"`
		Contacts []callback.Contact `json:"contacts"`
		Key      *string            `json:"key"`
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
	for _, c := range r.Contacts {
		if !c.IsMail() {
			all = append(all, c.Sealed)
		}
	}
	if r.Key != nil {
		all = append(all, *r.Key)
	}
	return all, nil
}
