package subscribers

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // see revisionOf
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/vault"
)

// record is a Subscriber as stored in Redis: JSON with sealed secrets.
type record struct {
	Subscriber

	Secrets []recordSecret `json:"secrets"`
	Headers []recordHeader `json:"headers,omitempty"`
	Change  string         `json:"change,omitzero"` // see encode
}

type recordSecret struct {
	Key       string     `json:"key"` // sealed
	ExpiresAt *time.Time `json:"expiresAt,omitzero"`

	Unknown *jsontext.Value `json:",embed"`
}

type recordHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"` // sealed

	Unknown *jsontext.Value `json:",embed"`
}

type codec struct{ vault.Vault }

// secretPlace and headerPlace bind a sealed value to where it is kept.
func secretPlace(company, subscriber uuid.UUID) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/secret"
}

func headerPlace(company, subscriber uuid.UUID, name string) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/header/" + name
}

// encode seals every secret under the current key. It adds a random mark of the change, so that
// two changes to the same values at the same time give different records.
func (c codec) encode(s *Subscriber, change string) (string, error) {
	r := record{Subscriber: *s, Change: change}
	for _, secret := range s.Secrets {
		text, err := c.Seal(secret.Key, secret.Locked, secretPlace(s.CompanyUUID, s.UUID))
		if err != nil {
			return "", fmt.Errorf("encode subscriber: %w", err)
		}
		r.Secrets = append(r.Secrets, recordSecret{text, secret.ExpiresAt, secret.Unknown})
	}
	for _, h := range s.Headers {
		text, err := c.Seal(h.Value, h.Locked, headerPlace(s.CompanyUUID, s.UUID, h.Name))
		if err != nil {
			return "", fmt.Errorf("encode subscriber: %w", err)
		}
		r.Headers = append(r.Headers, recordHeader{h.Name, text, h.Unknown})
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode subscriber: %w", err)
	}
	return string(raw), nil
}

// decode decodes a record and opens its secrets. Secrets that do not open are Locked.
func (c codec) decode(company, id uuid.UUID, raw string) (Subscriber, error) {
	var r record
	if err := json.Unmarshal([]byte(raw), &r); err != nil || r.CallbackURL == "" || len(r.Secrets) == 0 {
		return Subscriber{}, fmt.Errorf("stored subscriber %s is damaged", id) // err may quote a secret
	}
	s := r.Subscriber
	s.UUID, s.CompanyUUID, s.Revision = id, company, revisionOf(raw)
	for _, secret := range r.Secrets {
		key, locked := c.Open(secret.Key, secretPlace(company, id))
		s.Secrets = append(s.Secrets, SigningSecret{
			Key: key, ExpiresAt: secret.ExpiresAt, Locked: locked, Unknown: secret.Unknown,
		})
	}
	for _, h := range r.Headers {
		value, locked := c.Open(h.Value, headerPlace(company, id, h.Name))
		s.Headers = append(s.Headers, callback.Header{Name: h.Name, Value: value, Locked: locked, Unknown: h.Unknown})
	}
	return s, nil
}

// DecodeAll decodes the whole hash of a company (layout.CompanyKey): its subscribers, oldest
// first, with the certificate they share, and their version. A damaged subscriber is Locked;
// the others are read.
func DecodeAll(v vault.Vault, company uuid.UUID, hash map[string]string) ([]*Subscriber, int64) {
	version, _ := strconv.ParseInt(hash[layout.VersionField], 10, 64) // only our scripts write it
	shown, err := certificate.Decode(v, company, hash[layout.CertificateField])
	if err != nil {
		shown = &certificate.Certificate{Locked: vault.Damaged(err)}
	}
	all := make([]*Subscriber, 0, len(hash))
	for field, raw := range hash {
		id, err := uuid.Parse(field)
		if err != nil { // not a subscriber
			continue
		}
		s, err := codec{v}.decode(company, id, raw)
		if err != nil {
			s = Subscriber{UUID: id, CompanyUUID: company, Enabled: true, Locked: vault.Damaged(err)}
		}
		s.Certificate = shown
		if s.Filter != "" {
			s.expression = sync.OnceValues(s.compile)
		}
		all = append(all, &s)
	}
	slices.SortFunc(all, byAge)
	return all, version
}

// revisionOf is the SHA-1 of a record: short enough for a header, and available in delete.lua.
func revisionOf(raw string) string {
	sum := sha1.Sum([]byte(raw)) //nolint:gosec // it tells changes apart, each of which has a random part
	return hex.EncodeToString(sum[:8])
}

func byAge(a, b *Subscriber) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), slices.Compare(a.UUID[:], b.UUID[:]))
}
