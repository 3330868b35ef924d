// Package logintest has an OpenID provider for tests. It signs in whom the test names, and misbehaves as the test says.
package logintest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
)

// The client that the provider knows.
const (
	ClientID     = "hooks"
	ClientSecret = "the secret of hooks"
)

// State is what a test may change.
type State struct {
	Discovery    map[string]any              // members of the discovery document besides the usual ones, or instead of them
	User         map[string]any              // claims of the user who signs in, besides the usual ones, or instead of them; nil removes one
	Info         map[string]any              // the answer of userinfo
	Sign         func(claims []byte) string  // makes the ID token; nil signs with the key
	Routes       map[string]http.HandlerFunc // answer instead of the provider
	Padding      map[string]int              // bytes of white space after the answer, by path
	Key          *rsa.PrivateKey
	KeyID        string
	Lenient      bool // accepts a code twice
	SecretInBody bool // takes the client's secret in the body only, otherwise in the header only
	Asks         bool // shows a page with a link back, as one with a form would be
}

// Provider is an OpenID provider on loopback.
type Provider struct {
	Issuer string

	mu    sync.Mutex
	state State
	codes map[string]url.Values // the requests that got a code
	calls map[string]int
}

// New starts a provider that signs in the user ann.
func New(tb testing.TB) *Provider {
	tb.Helper()
	p := &Provider{codes: map[string]url.Values{}, calls: map[string]int{}}
	p.state = State{Key: firstKey(), KeyID: "one"}
	p.SignIn(map[string]any{"sub": "ann"})
	server := httptest.NewServer(p)
	tb.Cleanup(server.Close)
	p.Issuer = strings.Replace(server.URL, "127.0.0.1", "localhost", 1) // another site than the console's, to a browser
	return p
}

// firstKey returns the first key of all providers, since keys take long to make.
var firstKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// NewKey returns another key to sign with.
func NewKey(tb testing.TB) *rsa.PrivateKey {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Set changes the state.
func (p *Provider) Set(change func(*State)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
}

// SignIn makes another user sign in, about whom userinfo tells nothing.
func (p *Provider) SignIn(claims map[string]any) {
	p.Set(func(s *State) { s.User, s.Info = claims, map[string]any{"sub": claims["sub"]} })
}

// Calls returns how often a path was requested.
func (p *Provider) Calls(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[path]
}

// ServeHTTP answers as a provider.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[r.URL.Path]++
	if route := p.state.Routes[r.URL.Path]; route != nil {
		route(w, r)
		return
	}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		p.discovery(w)
	case "/authorize":
		p.authorize(w, r)
	case "/token":
		p.token(w, r)
	case "/keys":
		set := jwk.NewSet()
		_ = set.AddKey(p.key().public)
		answer(w, http.StatusOK, set)
	case "/userinfo":
		answer(w, http.StatusOK, p.state.Info)
	default:
		http.NotFound(w, r)
	}
	_, _ = io.WriteString(w, strings.Repeat(" ", p.state.Padding[r.URL.Path]))
}

func answer(w http.ResponseWriter, status int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(what)
}

func (p *Provider) discovery(w http.ResponseWriter) {
	document := map[string]any{
		"issuer": p.Issuer, "authorization_endpoint": p.Issuer + "/authorize", "token_endpoint": p.Issuer + "/token",
		"jwks_uri": p.Issuer + "/keys", "userinfo_endpoint": p.Issuer + "/userinfo",
		"authorization_response_iss_parameter_supported": true,
		"id_token_signing_alg_values_supported":          []string{"RS256", "HS256", "none"},
	}
	maps.Copy(document, p.state.Discovery)
	answer(w, http.StatusOK, document)
}

// authorize signs the user in, at once or by a page.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != ClientID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" {
		http.Error(w, "a bad request: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	code := uuid.NewString()
	p.codes[code] = q
	back := q.Get("redirect_uri") + "?" + url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {p.Issuer}}.Encode()
	if p.state.Asks {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<link rel="icon" href="data:,"><a href="`+html.EscapeString(back)+`">It is me</a>`)
		return
	}
	http.Redirect(w, r, back, http.StatusSeeOther) //nolint:gosec // only tests come here
}

// token exchanges a code once.
func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	id, secret, _ := r.BasicAuth()
	if p.state.SecretInBody {
		id, secret = r.PostFormValue("client_id"), url.QueryEscape(r.PostFormValue("client_secret"))
	}
	if clientSecret, err := url.QueryUnescape(secret); err != nil || id != ClientID || clientSecret != ClientSecret {
		answer(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	request, known := p.codes[r.PostFormValue("code")]
	if !p.state.Lenient {
		delete(p.codes, r.PostFormValue("code"))
	}
	challenge := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if !known || request.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(challenge[:]) || request.Get("redirect_uri") != r.PostFormValue("redirect_uri") {
		answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant", "error_description": r.PostFormValue("code")})
		return
	}
	now := time.Now() //nolint:forbidigo // a provider has a clock of its own
	claims := map[string]any{
		"iss": p.Issuer, "aud": ClientID, "nonce": request.Get("nonce"), "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(claims, p.state.User)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	text, _ := json.Marshal(claims)
	sign := p.state.Sign
	if sign == nil {
		sign = p.key().sign
	}
	answer(w, http.StatusOK, map[string]any{"access_token": "at", "token_type": "Bearer", "expires_in": 3600, "id_token": sign(text)})
}

// pair is the key of the provider.
type pair struct{ private, public jwk.Key }

func (p *Provider) key() pair {
	private, err := jwk.Import(p.state.Key)
	if err != nil {
		panic(err)
	}
	_ = private.Set(jwk.KeyIDKey, p.state.KeyID)
	public, err := private.PublicKey()
	if err != nil {
		panic(err)
	}
	return pair{private, public}
}

func (p pair) sign(claims []byte) string {
	signed, err := jws.Sign(claims, jws.WithKey(jwa.RS256(), p.private))
	if err != nil {
		panic(err)
	}
	return string(signed)
}

// Authorize follows the address to which a browser was sent, and returns the query with which it comes back.
func (p *Provider) Authorize(tb testing.TB, address string) url.Values {
	tb.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	resp.Body.Close()
	back, err := resp.Location()
	if err != nil {
		tb.Fatalf("%s: %d, %v", address, resp.StatusCode, err)
	}
	return back.Query()
}
