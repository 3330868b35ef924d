package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"spendhook/audit"
	"spendhook/auth"
	"spendhook/events"
	"spendhook/internal/requestmemory"
)

// request is a request that guard has admitted, and its answer.
type request struct {
	*auth.Caller // the sender, and what its token allows; nil for a public operation

	op   *operation
	sent *http.Request
	w    http.ResponseWriter
	body []byte // empty when there is none

	named     *uuid.UUID // the company in the query; nil when there is none
	company   uuid.UUID  // of a request about one company
	companies *uuid.UUID // the company whose items are listed; nil means all companies

	entry      *audit.Entry // in the audit log; nil when the request is not audited
	bodyMemory *requestmemory.Claim
	memory     *requestmemory.Claim // of the answer
	paced      bool                 // the answer is a list, a feed or an export, whose bytes pacer counts
}

type requestKey struct{}

func withRequest(r *http.Request, q *request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
}

// requestOf returns the admitted request of r; nil before guard has admitted it.
func requestOf(r *http.Request) *request {
	q, _ := r.Context().Value(requestKey{}).(*request)
	return q
}

const realm = `Bearer realm="spendhook"`

// authenticate verifies the access token of a request (RFC 6750).
func (s *server) authenticate(r *http.Request) (*auth.Caller, error) {
	headers := r.Header["Authorization"]
	switch {
	case len(headers) > 1: // a proxy may read another one than this daemon
		return nil, newProblem("AUTHORIZATION_REPEATED", "The Authorization header is given more than once.").
			with("WWW-Authenticate", realm+`, error="invalid_request"`)
	case len(headers) == 0 || headers[0] == "":
		return nil, newProblem("TOKEN_REQUIRED", "An access token is required.").
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
	if !certificateMatches(r, verified) {
		return nil, invalidToken()
	}
	return verified, nil
}

func invalidToken() *problem {
	return newProblem("TOKEN_INVALID", "The access token is expired or not valid.").
		with("WWW-Authenticate", realm+`, error="invalid_token"`)
}

// authorize refuses a caller that lacks one of the scopes.
func authorize(c *auth.Caller, scopes []string) error {
	for _, scope := range scopes {
		if !c.May(scope) {
			if slices.Contains(c.Scopes, scope) { // operator, of no company
				scope = auth.ScopePlatform
			}
			return newProblem("INSUFFICIENT_SCOPE", "The token needs the scope %s.", scope).
				with("WWW-Authenticate", realm+`, error="insufficient_scope", scope="`+scope+`"`)
		}
	}
	return nil
}

// authorizeAll refuses requested scopes that the token does not carry. Unlike authorize, it names no
// scope in a header, because the client chose the texts.
func authorizeAll(c *auth.Caller, scopes []string) error {
	if authorize(c, scopes) == nil {
		return nil
	}
	return newProblem("INSUFFICIENT_SCOPE", "The token does not carry all of these scopes.").
		with("WWW-Authenticate", realm+`, error="insufficient_scope"`)
}

// read decodes q.body into body and finds the company. A request about one company names it in the
// token, the query or the field CompanyUUID of the body.
func (q *request) read(named *uuid.UUID, body any) (err error) {
	q.named = named
	if raw, asIs := body.(*jsontext.Value); asIs {
		*raw = q.body
	} else if body != nil && len(q.body) > 0 {
		if err := decodeJSON(q.body, body); err != nil {
			return err
		}
	}
	switch {
	case q.op.ofList:
		if q.companies, err = companyIn(q.Company, named); err == nil && q.companies == nil {
			err = authorize(q.Caller, []string{auth.ScopePlatform})
		}
	case q.op.ofCompany && body == nil:
		q.company, err = companyFor(q.Company, named)
	case q.op.ofCompany:
		inBody, _ := reflect.TypeAssert[*uuid.UUID](reflect.ValueOf(body).Elem().FieldByName("CompanyUUID"))
		q.company, err = companyFor(q.Company, named, inBody)
	}
	if err == nil && strings.HasPrefix(q.op.route, "/api/v1/events/{id}") && !isEventID(mux.Vars(q.sent)["id"]) {
		err = events.ErrNotFound
	}
	return err
}

// companyFor returns the company of a request about one resource: the token's company, or
// else the company that the request names.
func companyFor(token *uuid.UUID, named ...*uuid.UUID) (uuid.UUID, error) {
	company, err := companyIn(token, named...)
	if err != nil {
		return uuid.Nil, err
	}
	if company == nil {
		return uuid.Nil, fieldProblem("companyUuid", "REQUIRED", "is required, since the token names no company")
	}
	return *company, nil
}

// companyIn returns the token's company or else the named one; nil when there is neither.
func companyIn(token *uuid.UUID, named ...*uuid.UUID) (*uuid.UUID, error) {
	company := token
	for _, n := range named {
		switch {
		case n == nil:
		case company == nil:
			company = n
		case *n == *company:
		case token != nil:
			return nil, foreignCompany()
		default:
			return nil, fieldProblem("companyUuid", "INVALID", "is given twice with different values")
		}
	}
	return company, nil
}

func foreignCompany() *problem {
	return newProblem("COMPANY_MISMATCH", "companyUuid is not the company of the token.")
}
