package console

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/console/session"
	"spendhook/internal/peer"
)

// maxForm bounds the size of a form, in bytes: the longest filter, and a hundred ids.
const maxForm = 128 << 10

// visit is one request of a session.
type visit struct {
	session.Session

	w      http.ResponseWriter
	r      *http.Request
	server *server
	secret string
	entry  *audit.Entry // of a change; nil when it is not audited
}

// handle answers a visit, or says why not. A change that has been made is answered
// with a redirect.
type handle func(ctx context.Context, v *visit) error

// page answers a path to sessions with the scope.
func (s *server) page(pattern, scope string, h handle) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		s.visited(w, r, pageTimeout, func(g *session.Grant) bool { return scope == anyone || g.May(scope) }, h)
	})
}

// change makes a change for sessions with the scope that are not read-only.
func (s *server) change(pattern, scope string, h handle) {
	s.form(pattern, pageTimeout, mayChange(scope), h)
}

func mayChange(scope string) func(*session.Grant) bool {
	return func(g *session.Grant) bool { return g.MayChange(scope) }
}

// form answers a form that has the token of its session.
func (s *server) form(pattern string, limit time.Duration, may func(*session.Grant) bool, h handle) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		s.visited(w, r, limit, may, func(ctx context.Context, v *visit) error {
			if err := r.ParseForm(); err != nil {
				return errForm
			}
			if subtle.ConstantTimeCompare([]byte(r.PostFormValue("token")), []byte(tokenOf(v.secret))) != 1 {
				return errToken
			}
			err := h(ctx, v)
			v.recorded(err)
			return err
		})
	})
}

var (
	errForm      = errors.New("the form cannot be read")
	errToken     = errors.New("the form has not the token of the session")
	errForbidden = errors.New("the session may not do this")
	errNoPage    = errors.New("there is no such page")
	errBusy      = errors.New("too many pages under way")
)

// visited checks the session and answers the request, within the time limit.
func (s *server) visited(w http.ResponseWriter, r *http.Request, limit time.Duration, may func(*session.Grant) bool, h handle) {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	v := &visit{w: w, r: r, server: s}
	if s.under.Add(1) > maxUnderWay {
		s.under.Add(-1)
		v.fail(errBusy)
		return
	}
	defer s.under.Add(-1)
	if err := s.letIn(ctx, v, may); err != nil {
		v.fail(err)
		return
	}
	if err := h(ctx, v); err != nil {
		v.fail(err)
	}
}

func (s *server) letIn(ctx context.Context, v *visit, may func(*session.Grant) bool) (err error) {
	if v.Session, v.secret, err = s.enter(ctx, v.r); err != nil {
		if errors.Is(err, errNoSession) {
			return cmp.Or(s.mayKnock(ctx), err)
		}
		return err
	}
	if err := s.take(ctx, perSession, v.ID.String()); err != nil {
		return err
	}
	if !may(&v.Grant) {
		return errForbidden
	}
	return nil
}

// company returns the company of the request: the one that the address names, or else that of
// the session. nil means all companies. A company that the session must not see is errNoPage,
// as if it did not exist.
func (v *visit) company() (*uuid.UUID, error) {
	text := v.r.PathValue("company")
	if text == "" {
		text = v.r.FormValue("company")
	}
	if text == "" {
		return v.Company, nil
	}
	named, err := uuid.Parse(text)
	if err != nil || v.Company != nil && *v.Company != named {
		return nil, errNoPage
	}
	if v.Company == nil && !v.May(platform) {
		return nil, errForbidden
	}
	return &named, nil
}

// sees reports whether the session includes a company.
func (v *visit) sees(company uuid.UUID) bool {
	return v.Company == nil && v.May(platform) || v.Company != nil && *v.Company == company
}

// ofAny is a handler of pages about a company, or about all.
func ofAny(h func(ctx context.Context, v *visit, company *uuid.UUID) error) handle {
	return func(ctx context.Context, v *visit) error {
		company, err := v.company()
		if err != nil {
			return err
		}
		return h(ctx, v, company)
	}
}

// ofOne is a handler of pages about one company.
func ofOne(h func(ctx context.Context, v *visit, company uuid.UUID) error) handle {
	return ofAny(func(ctx context.Context, v *visit, company *uuid.UUID) error {
		if company == nil {
			return errNoPage
		}
		return h(ctx, v, *company)
	})
}

// about is a handler of pages about the company's subscriber or job that the path names.
func about(h func(ctx context.Context, v *visit, company, id uuid.UUID) error) handle {
	return ofOne(func(ctx context.Context, v *visit, company uuid.UUID) error {
		id, err := uuid.Parse(v.r.PathValue("uuid"))
		if err != nil {
			return errNoPage
		}
		return h(ctx, v, company, id)
	})
}

// listSize is how many rows a list shows.
const listSize = 50

// changes sets the audit entry of a change: its action and its target.
func (v *visit) changes(action, detail string, company *uuid.UUID, kind, id string, fields ...string) {
	v.entry = &audit.Entry{
		Actor: audit.Actor{
			Kind: audit.Console, Subject: v.Asker.Subject, ClientID: v.Asker.ClientID, Issuer: v.Asker.Issuer,
			CompanyUUID: v.Company, Certificate: v.Certificate, Session: new(v.ID),
		},
		Action: action, CompanyUUID: company, Target: audit.Target{Kind: kind, IDs: []string{id}}, Detail: detail, Fields: fields,
		RequestID: v.w.Header().Get("X-Request-Id"), Address: peer.AddressText(v.r.Context()),
	}
}

// recorded writes the audit entry of a change before the answer. A refused change has no entry.
func (v *visit) recorded(err error) {
	if v.entry == nil {
		return
	}
	v.entry.Outcome = audit.Success
	if err != nil {
		if v.entry.Outcome = audit.Unknown; problemOf(err).Status < http.StatusInternalServerError {
			return
		}
	}
	v.server.opts.Audit.Record(*v.entry)
}

// done answers a change with a redirect to a page, which shows a message.
func (v *visit) done(path, what string, query ...string) error {
	values := url.Values{"done": {what}}
	for i := 0; i+1 < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	joint := "?"
	if path = v.To(path); strings.Contains(path, "?") {
		joint = "&"
	}
	http.Redirect(v.w, v.r, path+joint+values.Encode(), http.StatusSeeOther)
	return nil
}

// To is the address of a page of the console about the company that this one is
// about.
func (v *visit) To(path string) string {
	company, err := v.company()
	if err != nil || company == nil {
		return path
	}
	return v.Of(*company, path)
}

// Of is the address of a page of the console about a company.
func (v *visit) Of(company uuid.UUID, path string) string {
	if v.Company != nil {
		return path
	}
	u, err := url.Parse(path)
	if err != nil {
		return path
	}
	query := u.Query()
	query.Set("company", company.String())
	u.RawQuery = query.Encode()
	return u.String()
}

// next is the address of the next page of a list; "" at its end.
func (v *visit) next(cursor string) string {
	if cursor == "" {
		return ""
	}
	return v.With("cursor", cursor)
}

// With is the address of this page with another value in the query.
func (v *visit) With(name, value string) string {
	u := *v.r.URL
	query := u.Query()
	query.Del("done")
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.RequestURI()
}

// Query is a value of the query, at most 300 bytes of it.
func (v *visit) Query(name string) string {
	text := v.r.FormValue(name)
	return text[:min(len(text), 300)]
}

// list is a value of the query as a list of one; nil when it is empty.
func (v *visit) list(name string) []string {
	if text := v.Query(name); text != "" {
		return []string{text}
	}
	return nil
}

// choice is a value of the query that must be one of some, or "".
func (v *visit) choice(name string, of ...string) string {
	if text := v.Query(name); slices.Contains(of, text) {
		return text
	}
	return ""
}

// number is a value of the query; 0 when it is none.
func (v *visit) number(name string) int {
	n, err := strconv.Atoi(v.Query(name))
	if err != nil || n < 0 || n > 1_000_000 {
		return 0
	}
	return n
}

// since is the start of the period that the query names: the last hour, and so on.
// nil for all.
func (v *visit) since() *time.Time {
	for _, p := range periods {
		if p.Value == v.Query("since") && p.length > 0 {
			return new(v.server.opts.Now().Add(-p.length))
		}
	}
	return nil
}

// period is how far back a list goes.
type period struct {
	Value, Label string
	length       time.Duration
}

var periods = []period{
	{"", "Any time", 0},
	{"15m", "Last 15 minutes", 15 * time.Minute},
	{"1h", "Last hour", time.Hour},
	{"24h", "Last 24 hours", 24 * time.Hour},
	{"7d", "Last 7 days", 7 * 24 * time.Hour},
}
