package login_test

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"

	"spendhook/console/login"
	"spendhook/console/login/logintest"
	"spendhook/console/session"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const redirect = "http://127.0.0.1:9/console/login/callback"

var acme, bolt = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000001"), uuid.MustParse("bbbbbbbb-0000-4000-8000-000000000002")

// stand is a login at a provider of the test.
type stand struct {
	t        *testing.T
	provider *logintest.Provider
	login    *login.Login
	ahead    atomic.Int64 // of the clock, in ns
	seen     sync.Map     // ids of finished logins
}

func newStand(t *testing.T, edit ...func(*login.Options)) *stand {
	t.Helper()
	s := &stand{t: t, provider: logintest.New(t)}
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"ops"}})
	opts := login.Options{
		Issuer: s.provider.Issuer, ClientID: logintest.ClientID, ClientSecret: logintest.ClientSecret, RedirectURL: redirect,
		Scopes: []string{"email"}, GroupsClaim: "groups", CompanyClaim: "company",
		Roles: []login.Role{
			{Group: "ops", Name: "operator"},
			{Group: "help", Name: "support"},
			{Group: "acme", Name: "company-admin", Company: acme},
			{Group: "readers", Name: "company-reader"},
		},
		Once: func(_ context.Context, id string, _ time.Duration) error {
			if _, found := s.seen.LoadOrStore(id, true); found {
				return session.ErrNotFound
			}
			return nil
		},
		Now: func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) },
	}
	for _, e := range edit {
		e(&opts)
	}
	var err error
	if s.login, err = login.New(opts); err != nil {
		t.Fatal(err)
	}
	return s
}

// begin returns what a browser comes back with.
func (s *stand) begin() login.Callback {
	s.t.Helper()
	address, cookie, err := s.login.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return login.Callback{Query: s.provider.Authorize(s.t, address), Cookie: cookie}
}

func (s *stand) finish(c login.Callback) ([]session.Grant, error) {
	return s.login.Finish(s.t.Context(), c)
}

// refused expects an error of a login, with a text.
func (s *stand) refused(what string, c login.Callback, want error, text string) {
	s.t.Helper()
	grants, err := s.finish(c)
	if !errors.Is(err, want) || grants != nil || !strings.Contains(err.Error(), text) {
		s.t.Errorf("%s: %v, %v, want %v with %q", what, grants, err, want, text)
	}
}

func TestAUserSignsIn(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"ops", "others"}, "email": "ann@example.com"})
	grants, err := s.finish(s.begin())
	if err != nil || len(grants) != 1 {
		t.Fatalf("%+v, %v", grants, err)
	}
	g := grants[0]
	want := session.Asker{Subject: s.provider.Issuer + "|ann", Issuer: s.provider.Issuer, Email: "ann@example.com", Login: true}
	if g.Asker != want || g.Company != nil || g.ReadOnly || g.Bound || !g.MayChange("subscribers:write") || !g.May("operator") || !g.May("platform") {
		t.Errorf("%+v", g)
	}
	if left := time.Until(g.Until); left > time.Hour || left < 59*time.Minute || g.Lifetime > time.Hour { // as the ID token
		t.Errorf("it ends in %v", left)
	}
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": "help", "email": "ann@example.com", "email_verified": false})
	if grants, err = s.finish(s.begin()); err != nil || grants[0].Asker.Email != "" || grants[0].MayChange("subscribers:write") || !grants[0].MayChange("deliveries:write") {
		t.Errorf("support: %+v, %v", grants, err)
	}
}

// A provider may take the client's secret in the header or in the body only.
func TestTheSecretIsSentAsTheProviderWants(t *testing.T) {
	t.Parallel()
	for methods, inBody := range map[string]bool{"": false, "client_secret_post client_secret_basic": false, "private_key_jwt client_secret_post": true} {
		s := newStand(t)
		if methods != "" {
			s.provider.Set(published("token_endpoint_auth_methods_supported", strings.Fields(methods)))
		}
		c := s.begin()
		s.provider.Set(func(st *logintest.State) { st.SecretInBody = inBody })
		if _, err := s.finish(c); err != nil {
			t.Errorf("%s: %v", methods, err)
		}
	}
}

// A session lasts as long as that at the provider, if the provider says so, and twelve hours at most.
func TestTheProviderEndsTheSession(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for want, claims := range map[time.Duration]map[string]any{
		2 * time.Hour:       {"session_expiry": time.Now().Add(2 * time.Hour).Unix()},
		session.MaxLifetime: {"session_expiry": 1e300},
		5 * time.Minute:     {"exp": time.Now().Add(5 * time.Minute).Unix()},
	} {
		claims["sub"], claims["groups"] = "ann", []string{"ops"}
		s.provider.SignIn(claims)
		grants, err := s.finish(s.begin())
		if err != nil || grants[0].Lifetime > want || grants[0].Lifetime < want-time.Minute {
			t.Errorf("want %v: %+v, %v", want, grants, err)
		}
	}
	for _, past := range []any{time.Now().Add(-time.Second).Unix(), 0, -1e300} {
		s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"ops"}, "session_expiry": past})
		s.refused("a session that has ended", s.begin(), login.ErrRefused, "ended")
	}
}

// The groups may be in userinfo only, which must be about the same user.
func TestGroupsInUserInfo(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.provider.Set(func(st *logintest.State) {
		st.User = map[string]any{"sub": "ann"}
		st.Info = map[string]any{"sub": "ann", "groups": []string{"readers"}, "company": acme, "azp": "other", "email": "ann@example.com", "session_expiry": time.Now().Add(9 * time.Hour).Unix()}
	})
	if grants, err := s.finish(s.begin()); err != nil || grants[0].Lifetime > time.Hour || *grants[0].Company != acme || !grants[0].ReadOnly || grants[0].Asker.Email != "ann@example.com" {
		t.Errorf("%+v, %v", grants, err)
	}
	s.provider.Set(func(st *logintest.State) { st.Info["sub"] = "bob" })
	s.refused("userinfo of another user", s.begin(), login.ErrRefused, "another user")
}

func TestUnknownGroupsGetNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for name, claims := range map[string]map[string]any{
		"no group": {}, "another group": {"groups": []string{"OPS", "ops ", "opsx", "*"}}, "no list": {"groups": map[string]any{"ops": true}},
		"texts with a separator": {"groups": "help,ops"}, "a number": {"groups": []any{1, nil}},
		"no company": {"groups": []string{"readers"}}, "the zero UUID": {"groups": []string{"readers"}, "company": uuid.Nil}, "no UUID": {"groups": []string{"readers"}, "company": "acme"},
	} {
		claims["sub"] = "eve"
		s.provider.SignIn(claims)
		s.refused(name, s.begin(), login.ErrNoAccess, s.provider.Issuer+"|eve")
	}
}

func TestAUserOfSeveralCompaniesChooses(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"help", "acme", "readers"}, "company": []string{bolt.String(), acme.String()}})
	grants, err := s.finish(s.begin())
	if err != nil || len(grants) != 3 || grants[0].Company != nil || *grants[1].Company != acme || *grants[2].Company != bolt {
		t.Fatalf("%+v, %v", grants, err)
	}
	if grants[0].May("subscribers:write") || !grants[1].MayChange("subscribers:write") || grants[1].May("platform") || grants[1].May("operator") || !grants[2].ReadOnly {
		t.Errorf("the rights of one company are those of another: %+v", grants)
	}
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"help", "acme", "ops"}})
	if grants, err = s.finish(s.begin()); err != nil || len(grants) != 1 || !grants[0].May("operator") {
		t.Errorf("an operator has all companies: %+v, %v", grants, err)
	}
	var many []string
	for range 21 {
		many = append(many, uuid.NewString())
	}
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"readers"}, "company": many})
	s.refused("21 companies", s.begin(), login.ErrTooMany, "21")
}

// A role whose operations need a client certificate in the API needs one in the browser.
func TestARoleMayNeedACertificate(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(o *login.Options) { o.NeedsCertificate = map[string]bool{"cards": true} })
	s.refused("without a certificate", s.begin(), login.ErrCertificate, "")
	c := s.begin()
	c.Certificate = "thumb"
	if grants, err := s.finish(c); err != nil || !grants[0].Bound || grants[0].Asker.Certificate != "thumb" {
		t.Errorf("with one: %+v, %v", grants, err)
	}
	s.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"help"}})
	if grants, err := s.finish(s.begin()); err != nil || grants[0].Bound {
		t.Errorf("a role that needs none: %+v, %v", grants, err)
	}
}

// Login CSRF and session fixation: only the browser that began a login finishes it, once, in time.
func TestOnlyTheBrowserThatBeganFinishes(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	mine, other := s.begin(), s.begin()
	at, secret, _ := strings.Cut(mine.Cookie, ".")
	for name, cookie := range map[string]string{
		"no cookie": "", "of another browser": other.Cookie, "without a time": secret, "of another time": at + "0." + secret,
		"cut": mine.Cookie[:len(mine.Cookie)-1], "not a time": "x." + secret, "in the future": "99999999999." + secret,
	} {
		s.refused(name, login.Callback{Query: mine.Query, Cookie: cookie}, login.ErrStale, "")
	}
	for name, edit := range map[string]func(url.Values){
		"no state": func(q url.Values) { q.Del("state") }, "another state": func(q url.Values) { q.Set("state", other.Query.Get("state")) },
		"two states": func(q url.Values) { q.Add("state", q.Get("state")) }, "an error without the state": func(q url.Values) { q.Del("state"); q.Set("error", "x") },
	} {
		q := clone(mine.Query)
		edit(q)
		s.refused(name, login.Callback{Query: q, Cookie: mine.Cookie}, login.ErrStale, "")
	}
	if calls := s.provider.Calls("/token"); calls != 0 {
		t.Errorf("the provider was asked %d times for browsers that began nothing", calls)
	}
	s.ahead.Store(int64(login.Life + 2*time.Second))
	s.refused("late", mine, login.ErrStale, "")
	s.ahead.Store(0)
	if _, err := s.finish(mine); err != nil {
		t.Fatalf("the refusals used the login up: %v", err)
	}
	// The code of another login is bound to its own verifier and nonce.
	injected := s.begin()
	injected.Query.Set("code", other.Query.Get("code"))
	s.refused("the code of another browser", injected, login.ErrRefused, "invalid_grant")
}

func clone(q url.Values) url.Values {
	c := url.Values{}
	for name, values := range q {
		c[name] = slices.Clone(values)
	}
	return c
}

// A callback is used once, even if the provider accepts its code twice.
func TestACallbackIsUsedOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.begin()
	if _, err := s.finish(c); err != nil {
		t.Fatal(err)
	}
	s.refused("the same code", c, login.ErrRefused, "invalid_grant")
	s.provider.Set(func(st *logintest.State) { st.Lenient = true })
	again := s.begin()
	var opened atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := s.finish(again); err == nil {
				opened.Add(1)
			} else if !errors.Is(err, login.ErrStale) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if opened.Load() != 1 {
		t.Errorf("%d of 8 callbacks with one code were accepted", opened.Load())
	}
}

// What follows is signed or published by an attacker, or by a provider that is wrong.
func TestForgedAnswersAreRefused(t *testing.T) {
	t.Parallel()
	other := logintest.NewKey(t)
	for name, attack := range map[string]struct {
		edit func(*logintest.State)
		text string
	}{
		"of another client":             {user(map[string]any{"aud": "another"}), "audience"},
		"of several, for another":       {user(map[string]any{"aud": []string{logintest.ClientID, "another"}, "azp": "another"}), "azp"},
		"of several, for nobody":        {user(map[string]any{"aud": []string{logintest.ClientID, "another"}}), "azp"},
		"issued to another":             {user(map[string]any{"azp": "another"}), "azp"},
		"of another issuer":             {user(map[string]any{"iss": "https://login.example.com"}), "different provider"},
		"expired":                       {user(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "expired"},
		"without an end":                {user(map[string]any{"exp": nil}), "expired"},
		"not valid yet":                 {user(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), "nbf"},
		"of another login":              {user(map[string]any{"nonce": "another"}), "nonce"},
		"without a nonce":               {user(map[string]any{"nonce": nil}), "nonce"},
		"without a subject":             {user(map[string]any{"sub": ""}), "subject"},
		"with a long subject":           {user(map[string]any{"sub": strings.Repeat("s", 256)}), "subject"},
		"with control characters":       {user(map[string]any{"sub": "ann\nroot"}), "subject"},
		"unsigned":                      {sign(func(claims []byte) string { return unsigned(claims) }), "algorithm"},
		"signed with the client secret": {sign(func(claims []byte) string { return hmacSigned(claims, []byte(logintest.ClientSecret)) }), "algorithm"},
		"signed with the public key": {func(st *logintest.State) {
			der, _ := x509.MarshalPKIXPublicKey(&st.Key.PublicKey)
			text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
			st.Sign = func(claims []byte) string { return hmacSigned(claims, text) }
		}, "algorithm"},
		"signed with another key": {sign(func(claims []byte) string {
			signed, _ := jws.Sign(claims, jws.WithKey(jwa.RS256(), other))
			return string(signed)
		}), "signature"},
		"no token":  {sign(func([]byte) string { return "" }), "malformed"},
		"not a JWT": {sign(func([]byte) string { return "a.b.c" }), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			c := s.begin()
			s.provider.Set(attack.edit)
			s.refused("a token", c, login.ErrRefused, attack.text)
		})
	}
}

func user(claims map[string]any) func(*logintest.State) {
	return func(st *logintest.State) {
		maps.Copy(st.User, claims)
	}
}

func sign(f func([]byte) string) func(*logintest.State) {
	return func(st *logintest.State) { st.Sign = f }
}

func unsigned(claims []byte) string {
	b64 := base64.RawURLEncoding
	return b64.EncodeToString([]byte(`{"alg":"none"}`)) + "." + b64.EncodeToString(claims) + "."
}

func hmacSigned(claims, key []byte) string {
	signed, err := jws.Sign(claims, jws.WithKey(jwa.HS256(), key))
	if err != nil {
		panic(err)
	}
	return string(signed)
}

// Mix-up: an answer of another provider is not sent to this one.
func TestAnAnswerOfAnotherIssuerIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for name, iss := range map[string][]string{"another": {"https://login.example.com"}, "none": nil, "two": {s.provider.Issuer, s.provider.Issuer}, "with a slash": {s.provider.Issuer + "/"}} {
		c := s.begin()
		c.Query["iss"] = iss
		s.refused(name, c, login.ErrRefused, "iss")
	}
	if calls := s.provider.Calls("/token"); calls != 0 {
		t.Errorf("a code of another provider was sent to this one %d times", calls)
	}
	silent := newStand(t)
	silent.provider.Set(func(st *logintest.State) {
		st.Discovery = map[string]any{"authorization_response_iss_parameter_supported": false}
	})
	c := silent.begin()
	c.Query.Del("iss")
	if _, err := silent.finish(c); err != nil {
		t.Errorf("a provider that sends no iss: %v", err)
	}
}

func TestTheProviderDeniesALogin(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.begin()
	c.Query.Del("code")
	s.refused("without a code", c, login.ErrRefused, "no code")
	c.Query.Set("error", "access_denied\x1b[2J")
	c.Query.Set("error_description", "<script>")
	s.refused("denied", c, login.ErrDenied, "access_denied?[2J")
}

// Keys that the provider rotates are found, and those that it removed are not used for more than an hour.
func TestTheProviderRotatesItsKey(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	if _, err := s.finish(s.begin()); err != nil {
		t.Fatal(err)
	}
	removed := logintest.NewKey(t)
	s.provider.Set(func(st *logintest.State) { st.Key, st.KeyID, removed = removed, "two", st.Key })
	for range 2 {
		if _, err := s.finish(s.begin()); err != nil {
			t.Fatalf("after a rotation: %v", err)
		}
	}
	if calls := s.provider.Calls("/keys"); calls != 2 {
		t.Errorf("the keys were fetched %d times, want 2", calls)
	}
	s.provider.Set(func(st *logintest.State) {
		st.Sign = func(claims []byte) string {
			headers := jws.NewHeaders()
			_ = headers.Set(jws.KeyIDKey, "one")
			signed, _ := jws.Sign(claims, jws.WithKey(jwa.RS256(), removed, jws.WithProtectedHeaders(headers)))
			return string(signed)
		}
	})
	s.refused("the removed key", s.begin(), login.ErrRefused, "signature")
}

// While the provider is away the daemon says so, and does not ask it again for each visitor.
func TestTheProviderIsAway(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const document = "/.well-known/openid-configuration"
	away := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", http.StatusBadGateway) }
	s.provider.Set(func(st *logintest.State) { st.Routes = map[string]http.HandlerFunc{document: away} })
	for range 20 {
		if _, _, err := s.login.Begin(t.Context()); !errors.Is(err, login.ErrUnavailable) {
			t.Fatalf("while it is away: %v", err)
		}
	}
	if calls := s.provider.Calls(document); calls != 1 {
		t.Errorf("it was asked %d times within five seconds", calls)
	}
	s.provider.Set(func(st *logintest.State) { st.Routes = nil })
	s.ahead.Store(int64(6 * time.Second))
	c := s.begin()
	// It is away again: what is known stays in use, but no code can be exchanged.
	s.ahead.Store(int64(2 * time.Minute))
	s.provider.Set(func(st *logintest.State) { st.Routes = map[string]http.HandlerFunc{document: away, "/token": away} })
	s.ahead.Add(int64(time.Hour))
	for range 3 {
		if _, _, err := s.login.Begin(t.Context()); err != nil {
			t.Errorf("with what is known: %v", err)
		}
	}
	if calls := s.provider.Calls(document); calls != 3 {
		t.Errorf("it was asked %d times, want 3", calls)
	}
	s.ahead.Store(int64(2 * time.Minute))
	s.refused("the token endpoint is away", c, login.ErrUnavailable, "502")
	if err := s.login.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("check: %v", err)
	}
}

// A provider cannot make the daemon read without end, follow it elsewhere, or send secrets in clear.
func TestHostileProviders(t *testing.T) {
	t.Parallel()
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}
	for name, attack := range map[string]struct {
		edit func(*logintest.State)
		at   string // where it shows: begin or finish
	}{
		"a huge document":         {padded("/.well-known/openid-configuration"), "begin"},
		"a document elsewhere":    {route("/.well-known/openid-configuration", elsewhere), "begin"},
		"of another issuer":       {published("issuer", "https://login.example.com"), "begin"},
		"tokens in clear":         {published("token_endpoint", "http://192.0.2.1/token"), "begin"},
		"keys in clear":           {published("jwks_uri", "http://192.0.2.1/keys"), "begin"},
		"userinfo in clear":       {published("userinfo_endpoint", "http://192.0.2.1/userinfo"), "begin"},
		"a script for a page":     {published("authorization_endpoint", "javascript:alert(1)"), "begin"},
		"no token endpoint":       {published("token_endpoint", nil), "begin"},
		"huge tokens":             {user(map[string]any{"sub": strings.Repeat("a", 2<<20)}), "finish"},
		"a token elsewhere":       {route("/token", elsewhere), "finish"},
		"huge keys":               {padded("/keys"), "finish"},
		"keys elsewhere":          {route("/keys", elsewhere), "finish"},
		"huge userinfo":           {both(informed, padded("/userinfo")), "finish"},
		"userinfo elsewhere":      {both(user(map[string]any{"groups": nil}), route("/userinfo", elsewhere)), "finish"},
		"an answer without token": {route("/token", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) }), "finish"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.provider.Set(attack.edit)
			if attack.at == "begin" {
				if address, _, err := s.login.Begin(t.Context()); !errors.Is(err, login.ErrUnavailable) || len(err.Error()) > 500 {
					t.Errorf("begin: %s, %v", address, err)
				}
				return
			}
			grants, err := s.finish(s.begin())
			if !errors.Is(err, login.ErrRefused) && !errors.Is(err, login.ErrUnavailable) || len(err.Error()) > 500 {
				t.Errorf("finish: %v, %v", grants, err)
			}
			if s.provider.Calls("/elsewhere") != 0 {
				t.Error("it was followed elsewhere")
			}
		})
	}
}

func route(path string, answer http.HandlerFunc) func(*logintest.State) {
	return func(st *logintest.State) { st.Routes = map[string]http.HandlerFunc{path: answer} }
}

// padded makes a valid answer too long.
func padded(path string) func(*logintest.State) {
	return func(st *logintest.State) { st.Padding = map[string]int{path: 2 << 20} }
}

// informed moves the groups to userinfo.
func informed(st *logintest.State) {
	st.User = map[string]any{"sub": "ann"}
	st.Info = map[string]any{"sub": "ann", "groups": []string{"ops"}}
}

func published(name string, value any) func(*logintest.State) {
	return func(st *logintest.State) { st.Discovery = map[string]any{name: value} }
}

func both(one, two func(*logintest.State)) func(*logintest.State) {
	return func(st *logintest.State) { one(st); two(st) }
}

// The errors of a login are logged: they have neither the code nor the secret.
func TestErrorsHaveNoSecret(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(o *login.Options) { o.ClientSecret = "wrong" })
	c := s.begin()
	s.refused("a wrong client secret", c, login.ErrRefused, "401 invalid_client")
	right := newStand(t)
	c = right.begin()
	c.Query.Set("code", "stolen-code") // which the provider repeats in its answer
	_, err := right.finish(c)
	for _, secret := range []string{"stolen-code", logintest.ClientSecret, strings.SplitAfter(c.Cookie, ".")[1]} {
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v has %s", err, secret)
		}
	}
}

func TestAnUnknownRoleIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := login.New(login.Options{Roles: []login.Role{{Group: "a", Name: "root"}}}); err == nil {
		t.Error("the role root is known")
	}
}
