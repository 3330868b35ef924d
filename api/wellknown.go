package api

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/subscribers/signingkey"
)

const cacheable = "public, max-age=300"

// GetJwks is GET /.well-known/jwks.json.
func (s *server) GetJwks(w http.ResponseWriter, r *http.Request) {
	s.do(w, r, func(context.Context, *caller) (reply, error) {
		if s.opts.Keys == nil {
			return reply{}, noIssuer()
		}
		keys := map[string]any{"keys": s.opts.Keys.JWKS()}
		return ok(keys).with("Cache-Control", cacheable), nil
	})
}

// GetWebhookKeys is GET /.well-known/webhook-keys/{companyUuid}.
func (s *server) GetWebhookKeys(w http.ResponseWriter, r *http.Request, company uuid.UUID) {
	s.do(w, r, func(ctx context.Context, _ *caller) (reply, error) {
		key, err := ed25519.PrivateKey(nil), signingkey.ErrNotFound
		if s.opts.SigningKeys != nil {
			key, err = s.opts.SigningKeys.Key(ctx, company)
		}
		if err != nil {
			return reply{}, err
		}
		return ok(shownKey(key)).with("Cache-Control", cacheable), nil
	})
}

func shownKey(key ed25519.PrivateKey) gen.WebhookKeys {
	public := key[len(key)-ed25519.PublicKeySize:]
	return gen.WebhookKeys{Keys: []gen.WebhookKey{{
		Algorithm: gen.WebhookKeyAlgorithmEd25519, PublicKey: "whpk_" + base64.StdEncoding.EncodeToString(public),
	}}}
}
