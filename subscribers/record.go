package subscribers

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // see revisionOf
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/internal/seal"
	"spendhook/internal/secret"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/expression"
	"spendhook/subscribers/layout"
)

// codec converts between subscribers and their records in Redis, which are JSON with sealed
// secrets.
type codec struct{ keys *seal.Keyring }

// secretPlace, headerPlace, oauthPlace and contactPlace bind a sealed value to where it is kept.
func secretPlace(company, subscriber uuid.UUID) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/secret"
}

func headerPlace(company, subscriber uuid.UUID, name string) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/header/" + name
}

func oauthPlace(company, subscriber uuid.UUID) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/oauth"
}

func contactPlace(company, subscriber uuid.UUID) string {
	return "subscriber/" + company.String() + "/" + subscriber.String() + "/contact"
}

// encode seals every secret under the current key. It adds a random mark of the change, so that
// two changes to the same values at the same time give different records.
func (c codec) encode(s *Subscriber, change string) (string, error) {
	r := *s
	r.Change, r.Secrets, r.Headers, r.Contacts = change, slices.Clone(s.Secrets), slices.Clone(s.Headers), slices.Clone(s.Contacts)
	var failed error
	for i := range r.Secrets {
		k := &r.Secrets[i]
		failed = errors.Join(failed, c.seal(&k.Sealed, k.Locked, k.Key, secretPlace(s.CompanyUUID, s.UUID)))
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		failed = errors.Join(failed, c.seal(&h.Sealed, h.Locked, h.Value, headerPlace(s.CompanyUUID, s.UUID, h.Name)))
	}
	if s.OAuth != nil {
		r.OAuth = new(*s.OAuth)
		failed = errors.Join(failed, c.seal(&r.OAuth.Sealed, r.OAuth.Locked, r.OAuth.ClientSecret, oauthPlace(s.CompanyUUID, s.UUID)))
	}
	for i := range r.Contacts {
		if t := &r.Contacts[i]; !t.IsMail() {
			failed = errors.Join(failed, c.seal(&t.Sealed, t.Locked, t.URL, contactPlace(s.CompanyUUID, s.UUID)))
		}
	}
	raw, err := json.Marshal(r)
	if err = errors.Join(failed, err); err != nil {
		return "", fmt.Errorf("encode subscriber: %w", err)
	}
	return string(raw), nil
}

// seal seals plain for a place. It keeps the sealed text of a locked secret, which can be decrypted
// once its key is configured again.
func (c codec) seal(sealed *string, locked error, plain secret.Text, place string) (err error) {
	if locked == nil {
		*sealed, err = c.keys.Seal([]byte(plain.Reveal()), place)
	}
	return err
}

// open decrypts a sealed text. On success it clears the text.
func (c codec) open(sealed *string, place string) (secret.Text, error) {
	plain, err := c.keys.Open(*sealed, place)
	if err == nil {
		*sealed = ""
	}
	return secret.Text(plain), err
}

// decode decodes a record and decrypts its secrets. Secrets that cannot be decrypted are Locked.
func (c codec) decode(company, id uuid.UUID, raw string) (Subscriber, error) {
	s, err := parse(company, id, raw)
	for i := range s.Secrets {
		k := &s.Secrets[i]
		k.Key, k.Locked = c.open(&k.Sealed, secretPlace(company, id))
	}
	for i := range s.Headers {
		h := &s.Headers[i]
		h.Value, h.Locked = c.open(&h.Sealed, headerPlace(company, id, h.Name))
	}
	if o := s.OAuth; o != nil {
		o.ClientSecret, o.Locked = c.open(&o.Sealed, oauthPlace(company, id))
	}
	for i := range s.Contacts {
		if t := &s.Contacts[i]; !t.IsMail() {
			t.URL, t.Locked = c.open(&t.Sealed, contactPlace(company, id))
		}
	}
	return s, err
}

// parse decodes a record without decrypting its secrets.
func parse(company, id uuid.UUID, raw string) (Subscriber, error) {
	var s Subscriber
	if err := json.Unmarshal([]byte(raw), &s); err != nil || s.CallbackURL == "" || len(s.Secrets) == 0 {
		return Subscriber{}, fmt.Errorf("stored subscriber %s is damaged", id) // err may quote a secret
	}
	if s.Format != "" && !slices.Contains(formats, s.Format) {
		return Subscriber{}, fmt.Errorf("stored subscriber %s has the format %q, which this release does not know", id, s.Format)
	}
	if len(s.Signatures) > 0 && !areSignatures(s.Signatures) || s.SignatureAlgorithm != "" && !slices.Contains(algorithms, s.SignatureAlgorithm) {
		return Subscriber{}, fmt.Errorf("stored subscriber %s is signed in a way that this release does not know", id)
	}
	if !knownState(s.Verification) {
		return Subscriber{}, fmt.Errorf("stored subscriber %s has a state of verification that this release does not know", id)
	}
	s.UUID, s.CompanyUUID, s.Revision, s.Change = id, company, revisionOf(raw), ""
	return s, nil
}

// DecodeAll decodes the whole hash of a company (layout.CompanyKey): its subscribers, oldest
// first, with their own certificate or the one they share, the signing keys, and their version. A damaged
// subscriber is Locked, and so is one that a later release has written; the others are read.
func DecodeAll(keys *seal.Keyring, company uuid.UUID, hash map[string]string) ([]*Subscriber, int64) {
	version, _ := strconv.ParseInt(hash[layout.VersionField], 10, 64) // only our scripts write it
	certificateOf := func(subscriber uuid.UUID) *certificate.Certificate {
		c, err := certificate.Decode(keys, company, subscriber, hash[layout.CertificateFieldOf(subscriber)])
		if err != nil {
			return &certificate.Certificate{Locked: err}
		}
		return c
	}
	client := certificateOf(uuid.Nil)
	signing := codec{keys}.openKeys(company, hash[layout.SigningKeysField])
	all := decodeEach(company, hash, codec{keys}.decode)
	for _, s := range all {
		s.Certificate, s.SigningKeys = cmp.Or(certificateOf(s.UUID), client), signing
		s.filter, s.transform, s.orderedBy = reload(expression.Filter, s.Filter), reload(expression.Transform, s.Transform), reload(expression.Key, s.OrderedBy)
	}
	return all, version
}

// DecodeShown is DecodeAll for subscribers that are only shown: it decrypts nothing, and they are WithoutSecrets.
func DecodeShown(company uuid.UUID, hash map[string]string) []*Subscriber {
	return decodeEach(company, hash, func(company, id uuid.UUID, raw string) (Subscriber, error) {
		s, err := parse(company, id, raw)
		return s.WithoutSecrets(), err
	})
}

func decodeEach(company uuid.UUID, hash map[string]string, decode func(company, id uuid.UUID, raw string) (Subscriber, error)) []*Subscriber {
	all := make([]*Subscriber, 0, len(hash))
	for field, raw := range hash {
		id, err := uuid.Parse(field)
		if err != nil { // not a subscriber
			continue
		}
		s, err := decode(company, id, raw)
		if err != nil {
			s = Subscriber{UUID: id, CompanyUUID: company, Enabled: true, Locked: err}
		}
		all = append(all, &s)
	}
	slices.SortFunc(all, func(a, b *Subscriber) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), slices.Compare(a.UUID[:], b.UUID[:]))
	})
	return all
}

// revisionOf is the SHA-1 of a record: short enough for a header, and available in delete.lua.
func revisionOf(raw string) string {
	sum := sha1.Sum([]byte(raw)) //nolint:gosec // it tells changes apart, each of which has a random part
	return hex.EncodeToString(sum[:8])
}
