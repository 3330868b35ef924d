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
func (s *server) CreateConsoleLink(ctx context.Context, q *request, in gen.ConsoleLinkRequest) (reply, error) {
	grant, err := s.consoleGrant(ctx, q, in)
	if err != nil {
		return reply{}, err
	}
	link, err := s.opts.Sessions.CreateLink(ctx, grant)
	q.auditTarget(grant.Company, "console-link", link.ID.String())
	return reply{status: http.StatusCreated, secret: true, content: gen.ConsoleLink{
		URL: s.opts.PublicURL + "/console/open?link=" + link.Secret, ExpiresAt: link.ExpiresAt, CompanyUUID: grant.Company,
		Scopes: grant.Scopes, ReadOnly: grant.ReadOnly, LifetimeSeconds: int(grant.Lifetime.Seconds()),
	}}, err
}

// consoleGrant returns the requested permissions of a session. The session never gets more
// than the token of the request allows.
func (s *server) consoleGrant(ctx context.Context, q *request, in gen.ConsoleLinkRequest) (session.Grant, error) {
	company, err := q.consoleCompany(in.AllCompanies, in.CompanyUUID)
	if err != nil {
		return session.Grant{}, err
	}
	g := session.Grant{
		Company: company, Scopes: q.Scopes, ReadOnly: or(in.ReadOnly, false),
		Lifetime: defaultConsoleLifetime, Until: q.Expires, Asker: q.asker(ctx),
	}
	if in.LifetimeSeconds != nil {
		if g.Lifetime = time.Duration(*in.LifetimeSeconds) * time.Second; !session.CheckLifetime(g.Lifetime) {
			return g, fieldProblem("lifetimeSeconds", "OUT_OF_RANGE", "must be 60 to 43,200")
		}
	}
	if in.Scopes != nil {
		if g.Scopes = *in.Scopes; len(g.Scopes) == 0 {
			return g, fieldProblem("scopes", "REQUIRED", "must name a scope; leave scopes out for all scopes of the token")
		} else if len(g.Scopes) > maxScopes {
			return g, fieldProblem("scopes", "TOO_MANY", "must have at most %d scopes", maxScopes)
		}
		if err := authorizeAll(q.Caller, g.Scopes); err != nil {
			return g, err
		}
	}
	g.Scopes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(g.Scopes))), func(scope string) bool {
		return company != nil && scope == auth.ScopePlatform
	})
	g.Lifetime = min(g.Lifetime, g.Until.Sub(s.opts.Now()))
	g.Bound, err = s.consoleCertificate(q.sent, g.Scopes)
	return g, err
}

// consoleCompany returns the company of a session. Nil means all companies, for a request with
// allCompanies.
func (q *request) consoleCompany(all *bool, inBody *uuid.UUID) (*uuid.UUID, error) {
	if !or(all, false) {
		company, err := companyFor(q.Company, q.named, inBody)
		return &company, err
	}
	company, err := companyIn(q.Company, q.named, inBody)
	switch {
	case err != nil:
		return nil, err
	case q.Company != nil:
		return nil, foreignCompany()
	case company != nil:
		return nil, fieldProblem("allCompanies", "CONFLICT", "excludes companyUuid")
	}
	return nil, authorize(q.Caller, []string{auth.ScopePlatform})
}

// consoleCertificate requires a client certificate when an operation that the scopes allow
// requires one, and reports whether it does.
func (s *server) consoleCertificate(r *http.Request, scopes []string) (required bool, err error) {
	for _, group := range session.Groups(scopes) {
		if s.opts.CertificateRequired[group] { // scopes of another issuer may have no group
			return true, s.checkCertificate(r, group)
		}
	}
	return false, nil
}

func (q *request) asker(ctx context.Context) session.Asker {
	return session.Asker{
		Subject: q.Subject, ClientID: q.ClientID, Issuer: q.Issuer, KeyID: q.KeyID, Certificate: clientcert.ThumbprintFrom(ctx),
	}
}

// ListConsoleSessions is GET /api/v1/console-sessions.
func (s *server) ListConsoleSessions(ctx context.Context, q *request, p gen.ListConsoleSessionsParams) (reply, error) {
	f := session.Filter{Company: q.companies, Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize), Asker: q.ownSessions(ctx)}
	page, err := s.opts.Sessions.List(ctx, f)
	return byCursor(f.Size, page.Items, page.Next, shownConsoleSession), err
}

// ownSessions restricts a caller to the sessions of its own links. It returns nil for a caller that
// may see all sessions.
func (q *request) ownSessions(ctx context.Context) *session.Asker {
	if q.May(auth.ScopeOperator) {
		return nil
	}
	return new(q.asker(ctx))
}

// EndConsoleSession is DELETE /api/v1/console-sessions/{uuid}.
func (s *server) EndConsoleSession(ctx context.Context, q *request, id uuid.UUID, p gen.EndConsoleSessionParams) (reply, error) {
	company, err := q.consoleCompany(p.AllCompanies, nil)
	if err != nil {
		return reply{}, err
	}
	q.auditTarget(company, "console-session", id.String())
	ended, err := s.opts.Sessions.End(ctx, company, id, q.ownSessions(ctx))
	if err == nil {
		q.auditTarget(ended.Company, "console-session", id.String())
	}
	return noContent(), err
}

func shownConsoleSession(s session.Session) gen.ConsoleSession {
	return gen.ConsoleSession{
		UUID: s.ID, CompanyUUID: s.Company, Scopes: s.Scopes, ReadOnly: s.ReadOnly, Address: optional(s.Address),
		AskedBy:  gen.ConsoleAsker{Subject: s.Asker.Subject, ClientID: optional(s.Asker.ClientID), Issuer: optional(s.Asker.Issuer)},
		OpenedAt: s.OpenedAt, IdleUntil: s.IdleUntil, ExpiresAt: s.ExpiresAt,
	}
}

// consoleRoute is the route of all pages of the console in metrics and logs.
const consoleRoute = "/console"

// routeConsole routes the paths below /console to the console, and sends visitors of / there.
func (s *server) routeConsole() {
	if s.opts.Console == nil {
		return
	}
	handler := s.observe(consoleRoute, "any", s.opts.Console)
	s.router.Handle(consoleRoute, handler)
	s.router.PathPrefix(consoleRoute + "/").Handler(handler)
	start := http.RedirectHandler(consoleRoute+"/", http.StatusSeeOther)
	s.router.Path("/").Methods(http.MethodGet).Handler(s.observe("/", http.MethodGet, start))
}
