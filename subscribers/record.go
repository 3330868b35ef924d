package subscribers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
)

// record is a Subscriber as Redis keeps it: with its secrets, times in unix
// ms, and without what the key and the field already say.
type record struct {
	Name           string         `json:"name"`
	CallbackURL    string         `json:"callbackUrl"` // read by delete.lua
	Events         []string       `json:"events"`
	Enabled        bool           `json:"enabled"`
	DisabledReason string         `json:"disabledReason,omitzero"`
	DisabledAt     int64          `json:"disabledAt,omitzero"`
	CreatedAt      int64          `json:"createdAt"`
	UpdatedAt      int64          `json:"updatedAt"`
	Secrets        []recordSecret `json:"secrets"`
	Change         string         `json:"change,omitzero"` // see encode
}

type recordSecret struct {
	Key       string `json:"key"`
	ExpiresAt int64  `json:"expiresAt,omitzero"`
}

// encode marks the record with the change that made it, so that two changes to
// the same values at the same time are still told apart.
func encode(s *Subscriber, change string) (string, error) {
	r := record{
		Name: s.Name, CallbackURL: s.CallbackURL, Events: s.Events,
		Enabled: s.Enabled, DisabledReason: s.DisabledReason, DisabledAt: toMillis(s.DisabledAt),
		CreatedAt: s.CreatedAt.UnixMilli(), UpdatedAt: s.UpdatedAt.UnixMilli(),
		Change: change,
	}
	for _, secret := range s.Secrets {
		r.Secrets = append(r.Secrets, recordSecret{secret.Key.Reveal(), toMillis(secret.ExpiresAt)})
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode subscriber: %w", err)
	}
	return string(raw), nil
}

func decode(company, id uuid.UUID, raw string) (Subscriber, error) {
	var r record
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return Subscriber{}, fmt.Errorf("stored subscriber %s is damaged", id) // err may quote a secret
	}
	s := Subscriber{
		UUID: id, CompanyUUID: company,
		Name: r.Name, CallbackURL: r.CallbackURL, Events: r.Events,
		Enabled: r.Enabled, DisabledReason: r.DisabledReason, DisabledAt: fromMillis(r.DisabledAt),
		CreatedAt: time.UnixMilli(r.CreatedAt).UTC(), UpdatedAt: time.UnixMilli(r.UpdatedAt).UTC(),
	}
	for _, secret := range r.Secrets {
		s.Secrets = append(s.Secrets, SigningSecret{Secret(secret.Key), fromMillis(secret.ExpiresAt)})
	}
	return s, nil
}

// toMillis and fromMillis map nil to 0.
func toMillis(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := time.UnixMilli(ms).UTC()
	return &t
}

// decodeAll reads the whole hash of a company: its subscribers, oldest first,
// and their version.
func decodeAll(company uuid.UUID, hash map[string]string) ([]*Subscriber, int64, error) {
	var version int64
	all := make([]*Subscriber, 0, len(hash))
	for field, raw := range hash {
		if field == VersionField {
			version, _ = strconv.ParseInt(raw, 10, 64) // only our scripts write it
			continue
		}
		id, err := uuid.Parse(field)
		if err != nil {
			return nil, 0, fmt.Errorf("stored subscriber of %s has no uuid", company)
		}
		s, err := decode(company, id, raw)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, &s)
	}
	slices.SortFunc(all, byAge)
	return all, version, nil
}

func byAge(a, b *Subscriber) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), slices.Compare(a.UUID[:], b.UUID[:]))
}
