// Package login signs users of the console in at an OpenID provider: the authorization code flow with PKCE, state and
// nonce. It maps the groups of a user to the rights of a session. It stores nothing before a user is known.
package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/oauth2"

	"spendhook/console/session"
	"spendhook/internal/clock"
	"spendhook/internal/secret"
)

// The errors of a login. Their texts have no code, token or secret.
var (
	// ErrUnavailable means that the provider does not answer, or not as OpenID Connect requires.
	ErrUnavailable = errors.New("the login provider cannot be used now")
	// ErrStale means that this browser did not begin the login, or more than Life ago, or has finished it.
	ErrStale = errors.New("this browser has no login in progress")
	// ErrDenied means that the provider did not sign the user in.
	ErrDenied = errors.New("the login provider did not sign the user in")
	// ErrRefused means that the answer of the provider is not valid.
	ErrRefused = errors.New("the answer of the login provider is refused")
	// ErrNoAccess means that no group of the user has a role.
	ErrNoAccess = errors.New("the user has no role")
	// ErrTooMany means that the user has roles in more companies than can be shown.
	ErrTooMany = errors.New("the user has roles in too many companies")
	// ErrCertificate means that the role of the user needs a client certificate.
	ErrCertificate = errors.New("the role of the user needs a client certificate")
)

// Life is how long a login may take.
const Life = 10 * time.Minute

// Options configure a Login. Issuer, ClientID, ClientSecret, RedirectURL, GroupsClaim and Roles are required.
type Options struct {
	Issuer       string // https, or http on loopback
	ClientID     string
	ClientSecret secret.Text
	RedirectURL  string // where the provider sends the browser; Finish gets its query
	Scopes       []string
	GroupsClaim  string
	CompanyClaim string // has the UUIDs of companies for roles without one; "" means none
	Roles        []Role
	// NeedsCertificate says for each group of API operations whether a browser needs a client certificate.
	NeedsCertificate map[string]bool
	// Once notes an id for the duration. Its error is session.ErrNotFound for an id that it has noted.
	Once func(ctx context.Context, id string, keep time.Duration) error

	Now        func() time.Time // nil means time.Now
	Logger     *slog.Logger     // nil discards
	Registerer prometheus.Registerer
}

// Login is a provider at which users sign in. It is safe for concurrent use.
type Login struct {
	opts      Options
	client    *http.Client
	results   *prometheus.CounterVec
	exchanges chan struct{} // places of those that talk to the provider
	discovery
}

// maxExchanges bounds the callbacks that talk to the provider at once.
const maxExchanges = 16

// New returns a Login. It does not call the provider. The error is an unknown role.
func New(opts Options) (*Login, error) {
	for _, r := range opts.Roles {
		if scopesOf[r.Name] == nil {
			return nil, fmt.Errorf("there is no role %q", r.Name)
		}
	}
	opts.Now, opts.Logger = clock.Or(opts.Now), cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	l := &Login{
		opts: opts, client: newClient(), exchanges: make(chan struct{}, maxExchanges), discovery: newDiscovery(),
		results: promauto.With(opts.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_console_logins_total",
			Help: "Logins to the web console that came back from the provider, and those that could not begin (unavailable), by result.",
		}, []string{"result"}),
	}
	for _, r := range results {
		l.results.WithLabelValues(r.name)
	}
	return l, nil
}

// results has the labels of the errors.
var results = []struct {
	err  error
	name string
}{
	{nil, "success"},
	{ErrUnavailable, "unavailable"},
	{ErrStale, "stale"},
	{ErrDenied, "denied"},
	{ErrRefused, "refused"},
	{ErrNoAccess, "no_access"},
	{ErrTooMany, "too_many_companies"},
	{ErrCertificate, "no_certificate"},
}

// count counts a login, unless it failed for a reason of ours.
func (l *Login) count(err error) {
	for _, r := range results {
		if errors.Is(err, r.err) {
			l.results.WithLabelValues(r.name).Inc()
		}
	}
}

// Begin returns the address of the provider's page, and the value of the cookie by which Finish knows the browser. The
// error is ErrUnavailable. Begin may wait 5 s for the provider, which it asks once an hour.
func (l *Login) Begin(ctx context.Context) (address, cookie string, err error) {
	p, err := l.provider(ctx)
	if err != nil {
		l.count(err)
		return "", "", err
	}
	f := newFlow(l.opts.Now())
	return p.oauth.AuthCodeURL(f.state(), oauth2.SetAuthURLParam("nonce", f.nonce()), oauth2.S256ChallengeOption(f.verifier())), f.cookie(), nil
}

// Callback is the request with which a browser comes back from the provider.
type Callback struct {
	Query       url.Values
	Cookie      string // "" for none
	Certificate string // x5t#S256 of the browser's client certificate; "" for none
}

// Finish returns what the user may open: at least one session, at most one for each company, that for all companies
// first. It may take 15 s. Any error other than those of this package is that of Once.
func (l *Login) Finish(ctx context.Context, c Callback) ([]session.Grant, error) {
	grants, err := l.finish(ctx, c)
	l.count(err)
	return grants, err
}

func (l *Login) finish(ctx context.Context, c Callback) ([]session.Grant, error) {
	f, err := l.check(c)
	if err != nil {
		return nil, err
	}
	select {
	case l.exchanges <- struct{}{}:
		defer func() { <-l.exchanges }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: too many logins at once", ErrUnavailable)
	}
	p, err := l.provider(ctx)
	if err != nil {
		return nil, err
	}
	if iss := c.Query["iss"]; len(iss) > 0 && (len(iss) > 1 || iss[0] != l.opts.Issuer) || len(iss) == 0 && p.sendsIssuer {
		return nil, fmt.Errorf("%w: it does not come from this issuer (iss)", ErrRefused)
	}
	who, err := l.user(ctx, p, f, c.Query.Get("code"))
	if err != nil {
		return nil, err
	}
	if err := l.opts.Once(ctx, f.id(), 2*Life); errors.Is(err, session.ErrNotFound) {
		return nil, ErrStale
	} else if err != nil {
		return nil, err
	}
	return l.grants(who, c.Certificate)
}

// check compares what came back with what the browser began, without the provider.
func (l *Login) check(c Callback) (flow, error) {
	f, ok := parseFlow(c.Cookie)
	states := c.Query["state"]
	if !ok || l.opts.Now().After(f.begun.Add(Life)) || len(states) != 1 || !f.isState(states[0]) {
		return flow{}, ErrStale
	}
	if code := c.Query.Get("error"); code != "" {
		return flow{}, fmt.Errorf("%w: %s", ErrDenied, printable(code, 100))
	}
	if len(c.Query["code"]) != 1 || c.Query.Get("code") == "" {
		return flow{}, fmt.Errorf("%w: it has no code", ErrRefused)
	}
	return f, nil
}

// grants returns the sessions that a user may open.
func (l *Login) grants(u user, certificate string) ([]session.Grant, error) {
	asker := session.Asker{Subject: l.opts.Issuer + "|" + u.subject, Issuer: l.opts.Issuer, Email: u.email, Login: true}
	now := l.opts.Now()
	lifetime := min(u.until.Sub(now), session.MaxLifetime)
	if lifetime <= 0 {
		return nil, fmt.Errorf("%w: the session of the user has ended there", ErrRefused)
	}
	targets := targetsOf(l.opts.Roles, u.groups, u.companies)
	switch {
	case len(targets) == 0:
		return nil, fmt.Errorf("%w: %s with the groups %q", ErrNoAccess, asker.Subject, shortened(u.groups))
	case len(targets) > maxTargets:
		return nil, fmt.Errorf("%w: %s in %d", ErrTooMany, asker.Subject, len(targets))
	}
	var grants []session.Grant
	for _, t := range targets {
		g := session.Grant{Company: t.company, Scopes: t.scopes, Lifetime: lifetime, Until: u.until, Asker: asker}
		g.ReadOnly = !slices.ContainsFunc(g.Scopes, func(scope string) bool { return strings.HasSuffix(scope, ":write") })
		if slices.ContainsFunc(session.Groups(g.Scopes), func(group string) bool { return l.opts.NeedsCertificate[group] }) {
			if certificate == "" {
				return nil, ErrCertificate
			}
			g.Bound, g.Asker.Certificate = true, certificate
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// shortened returns a list as a log line may have it.
func shortened(list []string) []string {
	short := make([]string, min(len(list), 20))
	for i := range short {
		short[i] = printable(list[i], 100)
	}
	return short
}
