package console

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
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
	w       http.ResponseWriter
	r       *http.Request
	server  *server
	session session.Session
	secret  string
	entry   *audit.Entry // of a change; nil when it is not audited
}

// handle answers a visit, or says why not. A change that has been made is answered
// with a redirect.
type handle func(ctx context.Context, v *visit) error

// page answers a path to sessions with the scope.
func (s *server) page(pattern, scope string, h handle) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		s.visited(w, r, s.opts.Timeout, func(g *session.Grant) bool { return scope == anyone || g.May(scope) }, h)
	})
}

// change makes a change for sessions with the scope that are not read-only, when the
// form has their token.
func (s *server) change(pattern, scope string, h handle) {
	limit := s.opts.Timeout
	if pattern == "POST /console/subscribers/{uuid}/test" {
		limit = s.opts.TestTimeout
	}
	may := func(g *session.Grant) bool {
		return pattern == "POST /console/leave" || pattern == "POST /console/deliveries/{id}/verify" && g.May(scope) || g.MayChange(scope)
	}
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
	defer v.recover()
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
	if v.session, v.secret, err = s.enter(ctx, v.r); err != nil {
		if errors.Is(err, errNoSession) {
			if knock := s.mayKnock(ctx, v.r); knock != nil {
				return knock
			}
		}
		return err
	}
	if err := s.take(ctx, perSession, v.session.ID.String()); err != nil {
		return err
	}
	if !may(&v.session.Grant) {
		return errForbidden
	}
	return nil
}

// recover answers a panic with an error page, or cuts off an answer that has begun.
func (v *visit) recover() {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler { //nolint:errorlint // a handler that cuts its answer off panics with this very value
		panic(cause)
	}
	v.server.opts.Logger.LogAttrs(context.WithoutCancel(v.r.Context()), slog.LevelError, "console page panicked",
		slog.String("url.path", v.r.URL.Path), slog.String("exception.message", fmt.Sprint(cause)), slog.String("exception.stacktrace", string(debug.Stack())))
	v.fail(errors.New("a page panicked"))
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
		return v.session.Company, nil
	}
	named, err := uuid.Parse(text)
	if err != nil || v.session.Company != nil && *v.session.Company != named {
		return nil, errNoPage
	}
	if v.session.Company == nil && !v.session.May(platform) {
		return nil, errForbidden
	}
	return &named, nil
}

// oneCompany is company, but never nil.
func (v *visit) oneCompany() (uuid.UUID, error) {
	company, err := v.company()
	switch {
	case err != nil:
		return uuid.Nil, err
	case company == nil:
		return uuid.Nil, errNoPage
	}
	return *company, nil
}

// thing returns the company of the request and the UUID of the path.
func (v *visit) thing() (company, id uuid.UUID, err error) {
	if company, err = v.oneCompany(); err != nil {
		return company, id, err
	}
	if id, err = uuid.Parse(v.r.PathValue("uuid")); err != nil {
		return company, id, errNoPage
	}
	return company, id, nil
}

// size is how many rows a list shows.
const listSize = 50

// changes sets the target of the audit entry before a change.
func (v *visit) changes(company *uuid.UUID, kind string, ids ...string) {
	v.entry = &audit.Entry{CompanyUUID: company, Target: audit.Target{Kind: kind, IDs: ids}}
}

// as names the change for the audit log.
func (v *visit) as(action, detail string, fields ...string) {
	v.entry.Action, v.entry.Detail, v.entry.Fields = action, detail, fields
}

// recorded writes the audit entry of a change before the answer. A refused change has no entry.
func (v *visit) recorded(err error) {
	if v.entry == nil {
		return
	}
	outcome := audit.Success
	if err != nil {
		if outcome = audit.Unknown; v.server.problemOf(err).Status < http.StatusInternalServerError {
			return
		}
	}
	if v.entry.Action == "" {
		v.entry.Action = v.entry.Target.Kind + ".end"
	}
	v.record(v.entry.Action, outcome, v.entry.CompanyUUID, v.entry.Target, v.entry.Detail, v.entry.Fields)
}

func (v *visit) record(action string, outcome audit.Outcome, company *uuid.UUID, target audit.Target, detail string, fields []string) {
	asker, id := v.session.Asker, v.session.ID
	e := audit.Entry{
		Actor: audit.Actor{
			Kind: audit.Console, Subject: asker.Subject, ClientID: asker.ClientID, Issuer: asker.Issuer,
			CompanyUUID: v.session.Company, Certificate: v.session.Certificate, Session: &id,
		},
		Action: action, Outcome: outcome, CompanyUUID: company, Target: target, Detail: detail, Fields: fields,
		RequestID: v.w.Header().Get("X-Request-Id"),
	}
	if address := peer.Address(v.r.Context()); address.IsValid() {
		e.Address = address.String()
	}
	v.server.opts.Audit.Record(e)
}

// done answers a change with a redirect to a page, which shows a message.
func (v *visit) done(path, what string, query ...string) error {
	values := url.Values{"done": {what}}
	for i := 0; i+1 < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	http.Redirect(v.w, v.r, v.to(path)+v.joint(path)+values.Encode(), http.StatusSeeOther)
	return nil
}

func (v *visit) joint(path string) string {
	if u, err := url.Parse(v.to(path)); err == nil && u.RawQuery != "" {
		return "&"
	}
	return "?"
}

// to is the address of a page of the console about the company that this one is
// about.
func (v *visit) to(path string) string {
	company, err := v.company()
	if err != nil || company == nil {
		return path
	}
	return v.of(*company, path)
}

// of is the address of a page of the console about a company.
func (v *visit) of(company uuid.UUID, path string) string {
	if v.session.Company != nil {
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
	return v.with("cursor", cursor)
}

// with is the address of this page with another value in the query.
func (v *visit) with(name, value string) string {
	u := *v.r.URL
	query := u.Query()
	query.Del("done")
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.RequestURI()
}

// text is a value of the query, at most 300 bytes of it.
func (v *visit) text(name string) string {
	text := v.r.FormValue(name)
	return text[:min(len(text), 300)]
}

// list is a value of the query as a list of one; nil when it is empty.
func (v *visit) list(name string) []string {
	if text := v.text(name); text != "" {
		return []string{text}
	}
	return nil
}

// choice is a value of the query that must be one of some, or "".
func (v *visit) choice(name string, of ...string) string {
	if text := v.text(name); slices.Contains(of, text) {
		return text
	}
	return ""
}

// number is a value of the query; 0 when it is none.
func (v *visit) number(name string) int {
	n, err := strconv.Atoi(v.text(name))
	if err != nil || n < 0 || n > 1_000_000 {
		return 0
	}
	return n
}

// since is the start of the period that the query names: the last hour, and so on.
// nil for all.
func (v *visit) since() *time.Time {
	for _, p := range periods {
		if p.Value == v.text("since") && p.length > 0 {
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
