package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth/clients"
)

// ListClients is GET /api/v1/oauth-clients.
func (s *server) ListClients(w http.ResponseWriter, r *http.Request, p gen.ListClientsParams) {
	s.aboutClients(w, r, s.do, func(ctx context.Context, _ *caller) (reply, error) {
		size := or(p.Size, defaultSize)
		list, next, err := s.opts.Clients.List(ctx, textOf(p.Cursor), size)
		return byCursor(r, size, list, next, shownClient), err
	})
}

// GetClient is GET /api/v1/oauth-clients/{clientId}.
func (s *server) GetClient(w http.ResponseWriter, r *http.Request, id gen.ClientPath) {
	s.aboutClients(w, r, s.do, func(ctx context.Context, _ *caller) (reply, error) {
		client, err := s.opts.Clients.Get(ctx, id)
		return ok(shownClient(client)), err
	})
}

// CreateClient is POST /api/v1/oauth-clients.
func (s *server) CreateClient(w http.ResponseWriter, r *http.Request, _ gen.CreateClientParams) {
	s.aboutClients(w, r, s.once, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.OAuthClientInput](r)
		if err != nil {
			return reply{}, err
		}
		if n := len(in.Scopes); n == 0 || n > maxClientScopes {
			return reply{}, fieldProblem("scopes", "OUT_OF_RANGE", "must name 1 to %d scopes", maxClientScopes)
		}
		if err := authorizeAll(c, in.Scopes); err != nil {
			return reply{}, err
		}
		client, secret, err := s.opts.Clients.Create(ctx, clients.Registration{
			Name: in.Name, Company: in.CompanyUUID, Scopes: in.Scopes, Certificates: or(in.Certificates, nil), NoSecret: or(in.NoSecret, false),
		})
		c.auditTarget(in.CompanyUUID, "client", client.ID)
		if err != nil {
			return reply{}, err
		}
		created := reply{status: http.StatusCreated, content: clientWithSecret{shownClient(client), secret}, secret: true}
		return created.with("Location", "/api/v1/oauth-clients/"+client.ID), nil
	})
}

// UpdateClient is PATCH /api/v1/oauth-clients/{clientId}.
func (s *server) UpdateClient(w http.ResponseWriter, r *http.Request, id gen.ClientPath) {
	s.aboutClients(w, r, s.do, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.OAuthClientUpdate](r)
		if err != nil {
			return reply{}, err
		}
		c.auditTarget(nil, "client", id)
		var client clients.Client
		if in.Certificates != nil {
			client, err = s.opts.Clients.SetCertificates(ctx, id, *in.Certificates)
		}
		if err == nil && in.Disabled != nil {
			client, err = s.opts.Clients.SetDisabled(ctx, id, *in.Disabled)
		}
		if err == nil && client.ID == "" { // nothing was to be changed
			client, err = s.opts.Clients.Get(ctx, id)
		}
		return ok(shownClient(client)), err
	})
}

// RotateClientSecret is POST /api/v1/oauth-clients/{clientId}/rotate-secret.
func (s *server) RotateClientSecret(w http.ResponseWriter, r *http.Request, id gen.ClientPath, _ gen.RotateClientSecretParams) {
	s.aboutClients(w, r, s.once, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.OAuthClientRotation](r)
		if err != nil {
			return reply{}, err
		}
		c.auditTarget(nil, "client", id)
		overlap := time.Duration(or(in.OverlapSeconds, defaultOverlap)) * time.Second
		if overlap < 0 || overlap > clients.MaxOverlap {
			return reply{}, fieldProblem("overlapSeconds", "OUT_OF_RANGE", "must be 0 to %d", int(clients.MaxOverlap.Seconds()))
		}
		client, secret, err := s.opts.Clients.RotateSecret(ctx, id, overlap)
		return reply{status: http.StatusOK, content: clientWithSecret{shownClient(client), secret}, secret: true}, err
	})
}

const maxClientScopes = 32

// defaultOverlap is in seconds.
const defaultOverlap = 86400

// DeleteClient is DELETE /api/v1/oauth-clients/{clientId}.
func (s *server) DeleteClient(w http.ResponseWriter, r *http.Request, id gen.ClientPath) {
	s.aboutClients(w, r, s.do, func(ctx context.Context, c *caller) (reply, error) {
		c.auditTarget(nil, "client", id)
		return noContent(), s.opts.Clients.Delete(ctx, id)
	})
}

// aboutClients answers a request about OAuth clients, by do or by once. It refuses tokens that
// are tied to a company.
func (s *server) aboutClients(w http.ResponseWriter, r *http.Request, answer func(http.ResponseWriter, *http.Request, handlerFunc), handle handlerFunc) {
	if s.opts.Clients == nil { // the daemon has no built-in issuer
		s.notFound(w, r)
		return
	}
	answer(w, r, func(ctx context.Context, c *caller) (reply, error) {
		if err := c.ofPlatform(); err != nil {
			return reply{}, err
		}
		return handle(ctx, c)
	})
}

func shownClient(c clients.Client) gen.OAuthClient {
	shown := gen.OAuthClient{
		ClientID: c.ID, Name: c.Name, CompanyUUID: (*uuid.UUID)(c.Company),
		Scopes: slices.Concat([]string{}, c.Scopes), Certificates: slices.Concat([]string{}, c.Certificates),
		HasSecret: c.SecretHash != "", Disabled: c.RevokedAt != nil,
		CreatedAt: c.CreatedAt.Time, UpdatedAt: c.UpdatedAt.Time,
	}
	if c.OldSecretHash != "" {
		shown.OldSecretUntil = &c.OldSecretUntil.Time
	}
	return shown
}

// clientWithSecret is the answer of create and of rotate; no other has the secret.
type clientWithSecret struct {
	gen.OAuthClient

	ClientSecret string `json:"clientSecret,omitzero"`
}
