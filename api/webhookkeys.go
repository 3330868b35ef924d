package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"encoding/base64"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/subscribers"
)

// GetWebhookKeys is GET /.well-known/webhook-keys/{companyUuid}.
func (s *server) GetWebhookKeys(ctx context.Context, _ *request, company uuid.UUID) (reply, error) {
	keys, err := s.opts.Subscribers.SigningKeys(ctx, company)
	if err != nil {
		return reply{}, err
	}
	set := gen.WebhookKeys{Keys: make([]gen.WebhookKey, len(keys))}
	for i, k := range keys {
		if set.Keys[i], err = publishedKey(k); err != nil {
			return reply{}, err
		}
	}
	return ok(set).with("Cache-Control", cacheable), nil
}

// publishedKey returns a key as a JSON Web Key: members of RFC 7518 section 6.2.1, or of RFC 8037 section 2.
func publishedKey(k subscribers.SigningKey) (gen.WebhookKey, error) {
	out := gen.WebhookKey{Kid: k.ID, Use: gen.WebhookKeyUseSig, Algorithm: gen.KeyAlgorithm(k.Algorithm)}
	switch public := k.Private.Public().(type) {
	case ed25519.PublicKey:
		out.Kty, out.Crv, out.Alg, out.X = gen.WebhookKeyKtyOKP, gen.WebhookKeyCrvEd25519, gen.WebhookKeyAlgEdDSA, member(public)
		out.PublicKey = new("whpk_" + base64.StdEncoding.EncodeToString(public))
	case *ecdsa.PublicKey:
		point, err := public.Bytes() // 4, then both coordinates
		if err != nil {
			return out, err
		}
		half := len(point)/2 + 1
		out.Kty, out.Crv, out.Alg = gen.WebhookKeyKtyEC, gen.WebhookKeyCrvP256, gen.WebhookKeyAlgES256
		out.X, out.Y = member(point[1:half]), new(member(point[half:]))
	}
	return out, nil
}

// member encodes a coordinate of a JSON Web Key.
func member(coordinate []byte) string { return base64.RawURLEncoding.EncodeToString(coordinate) }

// ListWebhookKeys is GET /api/v1/webhook-keys.
func (s *server) ListWebhookKeys(ctx context.Context, q *request) (reply, error) {
	keys, err := s.opts.Subscribers.SigningKeys(ctx, q.company)
	if err != nil {
		return reply{}, err
	}
	return ok(listedKeys(keys)), nil
}

// RotateWebhookKeys is POST /api/v1/webhook-keys/rotate.
func (s *server) RotateWebhookKeys(ctx context.Context, q *request, _ gen.CompanyScope) (reply, error) {
	q.auditTarget(&q.company, "webhook-key", q.company.String())
	keys, err := s.opts.Subscribers.RotateSigningKeys(ctx, q.company)
	if err != nil {
		return reply{}, err
	}
	return ok(listedKeys(keys)), nil
}

// RevokeWebhookKey is DELETE /api/v1/webhook-keys/{kid}.
func (s *server) RevokeWebhookKey(ctx context.Context, q *request, kid string, _ gen.CompanyScope) (reply, error) {
	return noContent(), s.opts.Subscribers.RevokeSigningKey(ctx, q.company, kid)
}

func listedKeys(keys []subscribers.SigningKey) (out gen.CompanyKeys) {
	for _, k := range keys {
		listed := gen.CompanyKey{
			Kid: k.ID, Algorithm: gen.KeyAlgorithm(k.Algorithm), State: gen.CompanyKeyState(k.State), CreatedAt: k.CreatedAt,
		}
		if !k.RetiresAt.IsZero() {
			listed.RetiresAt = &k.RetiresAt
		}
		out.Keys = append(out.Keys, listed)
	}
	return out
}
