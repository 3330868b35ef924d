package api

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/httpsig"
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

// publishedKey returns a key as a JSON Web Key.
func publishedKey(k subscribers.SigningKey) (gen.WebhookKey, error) {
	public := k.Private.Public()
	key, err := httpsig.PublicJWK(public)
	if err != nil {
		return gen.WebhookKey{}, err
	}
	out := gen.WebhookKey{
		Kid: key.Kid, Kty: gen.WebhookKeyKty(key.Kty), Crv: gen.WebhookKeyCrv(key.Crv), X: key.X, Y: optional(key.Y),
		Use: gen.WebhookKeyUse(key.Use), Alg: gen.WebhookKeyAlg(key.Alg), Algorithm: gen.KeyAlgorithm(k.Algorithm),
	}
	if raw, ok := public.(ed25519.PublicKey); ok {
		out.PublicKey = new("whpk_" + base64.StdEncoding.EncodeToString(raw))
	}
	return out, nil
}

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
