package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/console/session"
	"spendhook/internal/clientcert"
)

// defaultConsoleLifetime is the lifetime of a console session without lifetimeSeconds.
const defaultConsoleLifetime = 8 * time.Hour

// CreateConsoleLink is POST /api/v1/console-links.
func (s *server) CreateConsoleLink(w http.ResponseWriter, r *http.Request, p gen.CreateConsoleLinkParams) {
	s.once(w, r, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.ConsoleLinkRequest](r)
		if err != nil {
			return reply{}, err
		}
		grant, err := s.consoleGrant(r, c, p.CompanyUUID, in)
		if err != nil {
			return reply{}, err
		}
		link, err := s.opts.Sessions.CreateLink(ctx, grant)
		c.auditTarget(grant.Company, "console-link", link.ID.String())
		if err != nil {
			return reply{}, err
		}
		return reply{status: http.StatusCreated, secret: true, content: gen.ConsoleLink{
			URL: s.opts.PublicURL + "/console/open?link=" + link.Secret, ExpiresAt: link.ExpiresAt, CompanyUUID: grant.Company,
			Scopes: grant.Scopes, ReadOnly: grant.ReadOnly, LifetimeSeconds: int(grant.Lifetime.Seconds()),
		}}, nil
	})
}

// consoleGrant returns the requested permissions of a session. The session never gets more
// than the token of the request allows.
func (s *server) consoleGrant(r *http.Request, c *caller, named *uuid.UUID, in gen.ConsoleLinkRequest) (session.Grant, error) {
	company, err := c.consoleCompany(in.AllCompanies, named, in.CompanyUUID)
	if err != nil {
		return session.Grant{}, err
	}
	g := session.Grant{
		Company: company, Scopes: c.Scopes, ReadOnly: or(in.ReadOnly, false),
		Lifetime: defaultConsoleLifetime, Asker: askerOf(r, c),
	}
	if in.LifetimeSeconds != nil {
		if g.Lifetime = time.Duration(*in.LifetimeSeconds) * time.Second; !session.CheckLifetime(g.Lifetime) {
			return g, fieldProblem("lifetimeSeconds", "OUT_OF_RANGE", "must be 60 to 43,200")
		}
	}
	if in.Scopes != nil {
		if len(*in.Scopes) == 0 {
			return g, fieldProblem("scopes", "REQUIRED", "must name a scope; leave it out for all of the token")
		}
		if g.Scopes = *in.Scopes; len(g.Scopes) > maxConsoleScopes {
			return g, fieldProblem("scopes", "TOO_MANY", "must have at most %d scopes", maxConsoleScopes)
		}
		if err := authorizeAll(c, g.Scopes); err != nil {
			return g, err
		}
	}
	g.Scopes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(g.Scopes))), func(scope string) bool {
		return company != nil && scope == auth.ScopePlatform
	})
	return g, s.consoleCertificate(r, g.Scopes)
}

const maxConsoleScopes = 32

// consoleCompany returns the company of a session. Nil means all companies, which the
// request must ask for with allCompanies.
func (c *caller) consoleCompany(all *bool, named ...*uuid.UUID) (*uuid.UUID, error) {
	if !or(all, false) {
		company, err := c.companyFor(named...)
		return &company, err
	}
	company, err := c.companyIn(named...)
	switch {
	case err != nil:
		return nil, err
	case c.Company != nil:
		return nil, foreignCompany()
	case company != nil:
		return nil, fieldProblem("allCompanies", "CONFLICT", "excludes companyUuid")
	}
	return nil, authorize(c, []string{auth.ScopePlatform})
}

// consoleCertificate requires a client certificate when an operation that the scopes allow
// requires one.
func (s *server) consoleCertificate(r *http.Request, scopes []string) error {
	for _, group := range session.Groups(scopes) {
		if err := s.checkCertificate(r, group); err != nil {
			return err
		}
	}
	return nil
}

func askerOf(r *http.Request, c *caller) session.Asker {
	return session.Asker{
		Subject: c.Subject, ClientID: c.ClientID, Issuer: c.Issuer, Certificate: clientcert.ThumbprintFrom(r.Context()),
	}
}

// ListConsoleSessions is GET /api/v1/console-sessions.
func (s *server) ListConsoleSessions(w http.ResponseWriter, r *http.Request, p gen.ListConsoleSessionsParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		f := session.Filter{Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize), Asker: ownSessions(r, c)}
		var err error
		if f.Company, err = c.companyOfList(p.CompanyUUID); err != nil {
			return reply{}, err
		}
		page, err := s.opts.Sessions.List(ctx, f)
		return byCursor(r, f.Size, page.Items, page.Next, shownConsoleSession), err
	})
}

// ownSessions restricts a caller to the sessions of its own links. It is nil for a caller
// that may see all sessions.
func ownSessions(r *http.Request, c *caller) *session.Asker {
	if c.May(auth.ScopeOperator) {
		return nil
	}
	asker := askerOf(r, c)
	return &asker
}

// EndConsoleSession is DELETE /api/v1/console-sessions/{uuid}.
func (s *server) EndConsoleSession(w http.ResponseWriter, r *http.Request, id uuid.UUID, p gen.EndConsoleSessionParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.consoleCompany(p.AllCompanies, p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		c.auditTarget(company, "console-session", id.String())
		ended, err := s.opts.Sessions.End(ctx, company, id, ownSessions(r, c))
		if err == nil {
			c.auditTarget(ended.Company, "console-session", id.String())
		}
		return noContent(), err
	})
}

func shownConsoleSession(s session.Session) gen.ConsoleSession {
	return gen.ConsoleSession{
		UUID: s.ID, CompanyUUID: s.Company, Scopes: s.Scopes, ReadOnly: s.ReadOnly, Address: optional(s.Address),
		AskedBy:  gen.ConsoleAsker{Subject: s.Asker.Subject, ClientID: optional(s.Asker.ClientID), Issuer: optional(s.Asker.Issuer)},
		OpenedAt: s.OpenedAt, IdleUntil: s.IdleUntil, ExpiresAt: s.ExpiresAt,
	}
}

// consoleRoute is how metrics and logs name the pages of the console.
const consoleRoute = "/console"

// routeConsole has the console answer below /console.
func (s *server) routeConsole() {
	if s.opts.Console == nil {
		return
	}
	handler := s.observe(consoleRoute, "any", s.opts.Console)
	s.router.Handle(consoleRoute, handler)
	s.router.PathPrefix(consoleRoute + "/").Handler(handler)
}
