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
	"spendhook/dispatcher/challenge"
	"spendhook/internal/peer"
	"spendhook/internal/requestmemory"
	"spendhook/internal/timestamp"
)

// maxForm bounds the size of a form, in bytes, as its URL-encoded text: the schema of an event type, or a hundred ids.
const maxForm = 256 << 10

// visit is one request of a session.
type visit struct {
	session.Session

	w      http.ResponseWriter
	r      *http.Request
	server *server
	secret string
	entry  *audit.Entry  // of a change; nil when it is not audited
	named  time.Duration // how long the page has waited for names of companies
	from   *time.Time    // start of the period; nil: any time
}

// handle answers a visit. If it returns an error, the visitor sees a page about the error. A handle
// that makes a change answers with a redirect.
type handle func(ctx context.Context, v *visit) error

// page adds a page for sessions with the scope.
func (s *server) page(pattern, scope string, h handle) {
	s.pageFor(pattern, func(g *session.Grant) bool { return scope == anyone || g.May(scope) }, h)
}

func (s *server) pageFor(pattern string, may func(*session.Grant) bool, h handle) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, pageTimeout, may, h) })
}

// change adds a form that sessions with the scope may send, if they are not read-only.
func (s *server) change(pattern, scope string, h handle) {
	s.form(pattern, pageTimeout, mayChange(scope), h)
}

func mayChange(scope string) func(*session.Grant) bool {
	return func(g *session.Grant) bool { return g.MayChange(scope) }
}

// form adds the route of a form. A request without the CSRF token of its session is refused.
func (s *server) form(pattern string, limit time.Duration, may func(*session.Grant) bool, h handle) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		s.serve(w, r, limit, may, func(ctx context.Context, v *visit) error {
			if err := r.ParseForm(); err != nil {
				return errForm
			}
			if subtle.ConstantTimeCompare([]byte(r.PostFormValue("token")), []byte(tokenOf(v.secret))) != 1 {
				return errToken
			}
			err := h(ctx, v)
			v.writeAuditEntry(err)
			return err
		})
	})
}

var (
	errForm         = errors.New("the form cannot be read")
	errToken        = errors.New("the form does not have the token of the session")
	errForbidden    = errors.New("the session may not do this")
	errNoPage       = errors.New("there is no such page")
	errNotConfirmed = errors.New("the form does not repeat the start of the UUID")
	errBusy         = errors.New("too many pages are being rendered")
)

// serve authorizes the request and answers it, within the time limit.
func (s *server) serve(w http.ResponseWriter, r *http.Request, limit time.Duration, may func(*session.Grant) bool, h handle) {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	v := &visit{w: w, r: r, server: s}
	if err := s.authorize(ctx, v, may); err != nil {
		v.fail(err)
		return
	}
	page := s.memory.Open(requestmemory.Bound{Holder: v.holder()})
	if page.Grow(ctx, pageMemory, time.Second) != nil {
		v.fail(errBusy)
		return
	}
	defer page.ShrinkTo(0)
	if err := h(ctx, v); err != nil {
		v.fail(err)
	}
}

// holder returns who is counted for the memory of a page.
func (v *visit) holder() uuid.UUID {
	if v.Company != nil {
		return *v.Company
	}
	return v.ID
}

func (s *server) authorize(ctx context.Context, v *visit, may func(*session.Grant) bool) (err error) {
	if v.Session, v.secret, err = s.findSession(ctx, v.r); err != nil {
		if errors.Is(err, errNoSession) {
			return cmp.Or(s.limitAnonymous(ctx), err)
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

// company returns the company in the address of the request, or else that of the session. nil means
// all companies. For a company that the session must not see the error is errNoPage, as for one
// that does not exist.
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

// includes reports whether the session may read and change a company.
func (v *visit) includes(company uuid.UUID) bool {
	return v.Company == nil && v.May(platform) || v.Company != nil && *v.Company == company
}

// forCompanyOrAll makes a handler from h, which gets the company; nil means all companies.
func forCompanyOrAll(h func(ctx context.Context, v *visit, company *uuid.UUID) error) handle {
	return func(ctx context.Context, v *visit) error {
		company, err := v.company()
		if err != nil {
			return err
		}
		return h(ctx, v, company)
	}
}

// forCompany makes a handler from h, which gets the company.
func forCompany(h func(ctx context.Context, v *visit, company uuid.UUID) error) handle {
	return forCompanyOrAll(func(ctx context.Context, v *visit, company *uuid.UUID) error {
		if company == nil {
			return errNoPage
		}
		return h(ctx, v, *company)
	})
}

// forID makes a handler from h, which gets the company, and the UUID in the path.
func forID(h func(ctx context.Context, v *visit, company, id uuid.UUID) error) handle {
	return forCompany(func(ctx context.Context, v *visit, company uuid.UUID) error {
		id, err := uuid.Parse(v.r.PathValue("uuid"))
		if err != nil {
			return errNoPage
		}
		return h(ctx, v, company, id)
	})
}

// listSize is how many rows a list shows.
const listSize = 50

// setAuditEntry sets the audit entry of the change.
func (v *visit) setAuditEntry(action, detail string, company *uuid.UUID, kind, id string, fields ...string) {
	v.entry = &audit.Entry{
		Actor: audit.Actor{
			Kind: audit.Console, Subject: v.Asker.Subject, ClientID: v.Asker.ClientID, Issuer: v.Asker.Issuer,
			CompanyUUID: v.Company, Certificate: v.Certificate, Session: new(v.ID),
		},
		Action: action, CompanyUUID: company, Target: audit.Target{Kind: kind}, Detail: detail, Fields: fields,
		RequestID: v.w.Header().Get("X-Request-Id"), Address: peer.AddressText(v.r.Context()),
	}
	if id != "" {
		v.entry.Target.IDs = []string{id}
	}
}

// writeAuditEntry writes the audit entry of a change, before the answer. A refused change is not
// audited, but for a failed challenge.
func (v *visit) writeAuditEntry(err error) {
	if v.entry == nil {
		return
	}
	v.entry.Outcome = audit.Success
	if failed, ok := errors.AsType[*challenge.FailedError](err); ok { // something may have been sent
		v.entry.Action, v.entry.Detail = challenge.Action, failed.Error()
	} else if err != nil {
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

// To returns the address of another page about the same company.
func (v *visit) To(path string) string {
	company, err := v.company()
	if err != nil || company == nil {
		return path
	}
	return v.Of(*company, path)
}

// Of returns the address of a page about a company.
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

// next returns the address of the next page of a list; "" at its end. The address contains the
// start of the period, because a cursor is valid for one filter only.
func (v *visit) next(cursor string) string {
	if cursor == "" {
		return ""
	}
	values := []string{"cursor", cursor}
	if v.from != nil {
		values = append(values, "from", strconv.FormatInt(v.from.UnixMilli(), 10))
	}
	return v.With(values...)
}

// With returns the address of this page with changed parameters of the query: names, each followed
// by its value.
func (v *visit) With(values ...string) string {
	u := *v.r.URL
	query := u.Query()
	query.Del("done")
	for pair := range slices.Chunk(values, 2) {
		query.Set(pair[0], pair[1])
	}
	u.RawQuery = query.Encode()
	return u.RequestURI()
}

// Query returns the first 300 characters of a parameter of the query or the form.
func (v *visit) Query(name string) string {
	text := []rune(v.r.FormValue(name)) // a form has a limit of its own
	return string(text[:min(len(text), 300)])
}

// field returns a field of the form, without the space around it.
func (v *visit) field(name string) string { return strings.TrimSpace(v.r.PostFormValue(name)) }

// list returns a parameter as a list with one item, and nil if the parameter is empty.
func (v *visit) list(name string) []string {
	if text := v.Query(name); text != "" {
		return []string{text}
	}
	return nil
}

// choice returns a parameter, and "" unless its value is one of the allowed values.
func (v *visit) choice(name string, of ...string) string {
	if text := v.Query(name); slices.Contains(of, text) {
		return text
	}
	return ""
}

// number returns a parameter as a number, and 0 if it is not one.
func (v *visit) number(name string) int {
	n, err := strconv.Atoi(v.Query(name))
	if err != nil || n < 0 || n > 1_000_000 {
		return 0
	}
	return n
}

// since returns the start of the period in the query, such as the last hour. nil means any time.
func (v *visit) since() *time.Time {
	for _, p := range periods {
		if p.Value == v.Query("since") && p.length > 0 {
			from, err := timestamp.ParseMillis(v.Query("from")) // set by next
			if err != nil {
				from = v.server.opts.Now().Add(-p.length).Truncate(time.Millisecond).UTC() // as next writes it
			}
			v.from = &from
		}
	}
	return v.from
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
