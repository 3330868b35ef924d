package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/auth"
)

// caller is the authenticated sender of a request, and what its token allows.
type caller struct {
	*auth.Caller
	entry       *audit.Entry // of this request in the audit log; nil when it is not audited
	answerBytes int64        // that the answer may take in memory
	paced       bool         // its answer is a list, a feed or an export, whose bytes pacer counts
}

type callerKey struct{}

func withCaller(r *http.Request, c *caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// callerOf returns the sender of an authenticated request.
func callerOf(r *http.Request) *caller {
	c, _ := r.Context().Value(callerKey{}).(*caller)
	return c
}

const realm = `Bearer realm="spendhook"`

// authenticate verifies the access token of a request (RFC 6750).
func (s *server) authenticate(r *http.Request) (*caller, error) {
	headers := r.Header["Authorization"]
	switch {
	case len(headers) > 1: // proxies differ in which one they use
		return nil, newProblem(http.StatusBadRequest, "AUTHORIZATION_REPEATED", "The Authorization header is given more than once.").
			with("WWW-Authenticate", realm+`, error="invalid_request"`)
	case len(headers) == 0 || headers[0] == "":
		return nil, newProblem(http.StatusUnauthorized, "TOKEN_REQUIRED", "An access token is required.").
			with("WWW-Authenticate", realm)
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, invalidToken()
	}
	verified, err := s.opts.Verifier.Verify(r.Context(), strings.TrimSpace(token))
	if errors.Is(err, auth.ErrInvalidToken) {
		return nil, invalidToken()
	}
	if err != nil {
		return nil, err
	}
	c := &caller{Caller: verified}
	if !hasBoundCertificate(r, c) {
		return nil, invalidToken()
	}
	return c, nil
}

func invalidToken() *problem {
	return newProblem(http.StatusUnauthorized, "TOKEN_INVALID", "The access token is expired or not valid.").
		with("WWW-Authenticate", realm+`, error="invalid_token"`)
}

// authorize checks the scopes that the document asks for.
func authorize(c *caller, scopes []string) error {
	for _, scope := range scopes {
		if !c.May(scope) {
			return newProblem(http.StatusForbidden, "INSUFFICIENT_SCOPE", "The token needs the scope %s.", scope).
				with("WWW-Authenticate", realm+`, error="insufficient_scope", scope="`+scope+`"`)
		}
	}
	return nil
}

// authorizeAll refuses scopes of a request that the token does not carry. It does not name
// them in a header, as authorize does: they are the client's texts.
func authorizeAll(c *caller, scopes []string) error {
	if authorize(c, scopes) == nil {
		return nil
	}
	return newProblem(http.StatusForbidden, "INSUFFICIENT_SCOPE", "The token does not carry all of these scopes.").
		with("WWW-Authenticate", realm+`, error="insufficient_scope"`)
}

// companyFor returns the company of a request about one resource: the token's company, or
// else the company that the request names.
func (c *caller) companyFor(named ...*uuid.UUID) (uuid.UUID, error) {
	company, err := c.companyIn(named...)
	if err != nil {
		return uuid.Nil, err
	}
	if company == nil {
		return uuid.Nil, fieldProblem("companyUuid", "REQUIRED", "is required, since the token does not carry it")
	}
	return *company, nil
}

// ofPlatform refuses a caller whose token is tied to a company.
func (c *caller) ofPlatform() error {
	if c.Company != nil {
		return newProblem(http.StatusForbidden, "PLATFORM_ONLY", "The token must be tied to no company.")
	}
	return nil
}

// companyOfList returns the company whose items are listed; nil means all companies.
func (c *caller) companyOfList(named *uuid.UUID) (*uuid.UUID, error) {
	company, err := c.companyIn(named)
	if err != nil || company != nil {
		return company, err
	}
	return nil, authorize(c, []string{auth.ScopePlatform})
}

// companyIn returns the token's company or the named one; nil when there is neither.
func (c *caller) companyIn(named ...*uuid.UUID) (*uuid.UUID, error) {
	var company *uuid.UUID
	for _, n := range named {
		switch {
		case company == nil:
			company = n
		case n != nil && *n != *company:
			return nil, fieldProblem("companyUuid", "INVALID", "is given twice with different values")
		}
	}
	switch {
	case c.Company == nil:
		return company, nil
	case company != nil && *company != *c.Company:
		return nil, foreignCompany()
	default:
		return c.Company, nil
	}
}

func foreignCompany() *problem {
	return newProblem(http.StatusForbidden, "COMPANY_MISMATCH", "companyUuid is not the company of the token.")
}
