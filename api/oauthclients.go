package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth/clients"
)

// ListClients is GET /api/v1/oauth-clients.
func (s *server) ListClients(ctx context.Context, q *request, p gen.ListClientsParams) (reply, error) {
	size := or(p.Size, defaultSize)
	list, next, err := s.opts.Clients.List(ctx, textOf(p.Cursor), size)
	return byCursor(size, list, next, shownClient), err
}

// GetClient is GET /api/v1/oauth-clients/{clientId}.
func (s *server) GetClient(ctx context.Context, _ *request, id gen.ClientPath) (reply, error) {
	client, err := s.opts.Clients.Get(ctx, id)
	return ok(shownClient(client)), err
}

// CreateClient is POST /api/v1/oauth-clients.
func (s *server) CreateClient(ctx context.Context, q *request, in gen.OAuthClientInput) (reply, error) {
	if n := len(in.Scopes); n == 0 || n > maxScopes {
		return reply{}, fieldProblem("scopes", "OUT_OF_RANGE", "must name 1 to %d scopes", maxScopes)
	}
	if err := authorizeAll(q.Caller, in.Scopes); err != nil {
		return reply{}, err
	}
	client, secret, err := s.opts.Clients.Create(ctx, clients.Registration{
		Name: in.Name, Company: in.CompanyUUID, Scopes: in.Scopes, Certificates: or(in.Certificates, nil), NoSecret: or(in.NoSecret, false),
	})
	q.auditTarget(in.CompanyUUID, "client", client.ID)
	rep := created(clientWithSecret{shownClient(client), secret}, "/api/v1/oauth-clients/"+client.ID)
	rep.secret = true
	return rep, err
}

// UpdateClient is PATCH /api/v1/oauth-clients/{clientId}.
func (s *server) UpdateClient(ctx context.Context, _ *request, id gen.ClientPath, in gen.OAuthClientUpdate) (reply, error) {
	var client clients.Client
	var err error
	if in.Certificates != nil {
		client, err = s.opts.Clients.SetCertificates(ctx, id, *in.Certificates)
	}
	if err == nil && in.Disabled != nil {
		client, err = s.opts.Clients.SetDisabled(ctx, id, *in.Disabled)
	}
	if err == nil && client.ID == "" { // the body changes nothing
		client, err = s.opts.Clients.Get(ctx, id)
	}
	return ok(shownClient(client)), err
}

// RotateClientSecret is POST /api/v1/oauth-clients/{clientId}/rotate-secret.
func (s *server) RotateClientSecret(ctx context.Context, _ *request, id gen.ClientPath, in gen.OAuthClientRotation) (reply, error) {
	overlap := time.Duration(or(in.OverlapSeconds, defaultOverlap)) * time.Second
	if overlap < 0 || overlap > clients.MaxOverlap {
		return reply{}, fieldProblem("overlapSeconds", "OUT_OF_RANGE", "must be 0 to %d", int(clients.MaxOverlap.Seconds()))
	}
	client, secret, err := s.opts.Clients.RotateSecret(ctx, id, overlap)
	return reply{status: http.StatusOK, content: clientWithSecret{shownClient(client), secret}, secret: true}, err
}

// maxScopes is how many scopes a client or a console session may have.
const maxScopes = 32

// defaultOverlap is in seconds.
const defaultOverlap = 86400

// DeleteClient is DELETE /api/v1/oauth-clients/{clientId}.
func (s *server) DeleteClient(ctx context.Context, _ *request, id gen.ClientPath) (reply, error) {
	return noContent(), s.opts.Clients.Delete(ctx, id)
}

func shownClient(c clients.Client) gen.OAuthClient {
	shown := gen.OAuthClient{
		ClientID: c.ID, Name: c.Name, CompanyUUID: (*uuid.UUID)(c.Company),
		Scopes: c.Scopes, Certificates: c.Certificates, HasSecret: c.SecretHash != "", Disabled: c.RevokedAt != nil,
		CreatedAt: c.CreatedAt.Time, UpdatedAt: c.UpdatedAt.Time,
	}
	if c.OldSecretHash != "" {
		shown.OldSecretUntil = &c.OldSecretUntil.Time
	}
	return shown
}

// clientWithSecret is the answer of create and of rotate. No other answer has the secret.
type clientWithSecret struct {
	gen.OAuthClient

	ClientSecret string `json:"clientSecret,omitzero"`
}
