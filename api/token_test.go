package api

import (
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/internal/clientcert"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// tokenHarness is a harness whose token endpoint has a client of its company.
type tokenHarness struct {
	*harness
	store      *storage.DB
	clients    *clients.Store
	id, secret string
	thumbprint string // of cert, which the client may present
	cert       *x509.Certificate
}

func tokenSetup(t *testing.T) *tokenHarness {
	t.Helper()
	h := &tokenHarness{store: storagetest.Open(t, storage.Options{}), cert: &x509.Certificate{Raw: []byte("certificate")}}
	h.thumbprint = clientcert.Thumbprint(h.cert)
	keys := openKeysIn(t, t.TempDir(), keys.Table(h.store))
	h.clients = clients.NewStore(h.store, nil)
	h.harness = setup(t, func(o *Options) {
		o.Keys, o.Timeout, o.PublicURL = keys, patient, "https://hooks.example.com"
		o.Tokens = tokens.NewEndpoint(tokens.Options{Keys: keys, Clients: h.clients})
		o.Verifier = newVerifier(auth.VerifierOptions{Keys: keys, Revoked: h.clients.Revoked})
	})
	h.keys = keys
	h.token = h.mint(&h.company, allScopes)
	client, secret, err := h.clients.Create(t.Context(), clients.Registration{
		Name: "ledger", Company: &h.company, Scopes: strings.Fields("events:write events:read"), Certificates: []string{h.thumbprint},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.id, h.secret = client.ID, secret
	return h
}

// post sends a form without a bearer token.
func (h *tokenHarness) post(form string, options ...option) answer {
	h.t.Helper()
	options = append([]option{noToken, header("Content-Type", "application/x-www-form-urlencoded")}, options...)
	return h.call(http.MethodPost, "/oauth/token", form, options...)
}

func basicAuth(id, secret string) option {
	text := url.QueryEscape(id) + ":" + url.QueryEscape(secret)
	return header("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(text)))
}

func presenting(cert *x509.Certificate) option {
	return func(r *http.Request) { *r = *r.WithContext(clientcert.With(r.Context(), cert)) }
}

func (a answer) wantToken(scope string) gen.AccessToken {
	a.t.Helper()
	a.want(http.StatusOK)
	token := as[gen.AccessToken](a)
	if token.TokenType != "Bearer" || token.ExpiresIn != 3600 || token.Scope != scope {
		a.t.Errorf("%s", a.Body)
	}
	if cache, kind := a.Header().Get("Cache-Control"), a.Header().Get("Content-Type"); cache != "no-store" || kind != mediaJSON {
		a.t.Errorf("Cache-Control %q, Content-Type %q", cache, kind)
	}
	if pragma := a.Header().Get("Pragma"); pragma != "no-cache" {
		a.t.Errorf("Pragma %q", pragma)
	}
	return token
}

func TestTokenIsIssuedAndGood(t *testing.T) {
	t.Parallel()
	h := tokenSetup(t)
	form := "client_id=" + h.id + "&client_secret=" + h.secret
	for name, a := range map[string]answer{
		"basic":             h.post("grant_type=client_credentials", basicAuth(h.id, h.secret), presenting(h.cert)),
		"basic, empty body": h.post("", basicAuth(h.id, h.secret), presenting(h.cert)),
		"form":              h.post(form, presenting(h.cert)),
		"with a charset":    h.post(form, header("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8"), presenting(h.cert)),
		"certificate alone": h.post("client_id="+h.id, presenting(h.cert)),
	} {
		token := a.wantToken("events:read events:write")
		h.call(http.MethodGet, "/api/v1/events", "", bearer(token.AccessToken), presenting(h.cert)).want(http.StatusOK)
		h.call(http.MethodGet, "/api/v3/cards", "", bearer(token.AccessToken), presenting(h.cert)).want(http.StatusForbidden)
		caller, err := h.options.Verifier.Verify(t.Context(), token.AccessToken)
		if err != nil {
			t.Fatal(err)
		}
		if caller.Thumbprint != h.thumbprint || *caller.Company != h.company {
			t.Errorf("%s: %+v", name, caller)
		}
	}
	token := h.post("scope=events:read", basicAuth(h.id, h.secret), presenting(h.cert)).wantToken("events:read")
	h.call(http.MethodPost, "/api/v1/events", "[]", bearer(token.AccessToken), presenting(h.cert)).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	// A disabled client gets no token. Its tokens are refused after the next Sync.
	if _, err := h.clients.SetDisabled(t.Context(), h.id, true); err != nil {
		t.Fatal(err)
	}
	h.post("", basicAuth(h.id, h.secret), presenting(h.cert)).want(http.StatusUnauthorized)
	if err := h.clients.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.call(http.MethodGet, "/api/v1/events", "", bearer(token.AccessToken), presenting(h.cert)).want(http.StatusUnauthorized, "TOKEN_INVALID")
}

func TestTokenErrorsAreThoseOfOAuth(t *testing.T) {
	t.Parallel()
	h := tokenSetup(t)
	right := basicAuth(h.id, h.secret)
	listed := presenting(h.cert)
	other := &x509.Certificate{Raw: []byte("other")}
	target := func(query string) option { return func(r *http.Request) { r.URL.RawQuery = query } }
	for name, c := range map[string]struct {
		a      answer
		status int
		code   string
	}{
		"no credentials":      {h.post("grant_type=client_credentials"), 401, "invalid_client"},
		"wrong secret":        {h.post("", basicAuth(h.id, "hunter2")), 401, "invalid_client"},
		"no certificate":      {h.post("", right), 401, "invalid_client"},
		"unknown client":      {h.post("", basicAuth("shc_none", "hunter2")), 401, "invalid_client"},
		"bearer":              {h.post("", bearer(h.token)), 401, "invalid_client"},
		"another certificate": {h.post("client_id="+h.id, presenting(other)), 401, "invalid_client"},
		"another grant":       {h.post("grant_type=authorization_code", right), 400, "unsupported_grant_type"},
		"a scope too many":    {h.post("scope=cards:write", right, listed), 400, "invalid_scope"},
		"a parameter twice":   {h.post("scope=a&scope=b", right), 400, "invalid_request"},
		"two ways":            {h.post("client_secret=x", right), 400, "invalid_request"},
		"JSON":                {h.post(`{"client_id":"x"}`, right, header("Content-Type", mediaJSON)), 415, "invalid_request"},
		"no media type":       {h.post("grant_type=client_credentials", right, header("Content-Type", "")), 415, "invalid_request"},
		"compressed":          {h.post("x=y", right, header("Content-Encoding", "gzip")), 415, "invalid_request"},
		"in the query":        {h.post("", right, target("client_id=x")), 400, "invalid_request"},
		"too large":           {h.post("x="+strings.Repeat("x", tokenBodyLimit), right), 413, "invalid_request"},
		"no JSON wanted":      {h.post("", right, header("Accept", "text/html")), 406, "invalid_request"},
	} {
		c.a.t = t
		if c.a.Code != c.status || as[gen.OAuthError](c.a).Error != gen.OAuthErrorError(c.code) {
			t.Errorf("%s: %d %s, want %d %s", name, c.a.Code, c.a.Body, c.status, c.code)
		}
		if kind, cache := c.a.Header().Get("Content-Type"), c.a.Header().Get("Cache-Control"); kind != mediaJSON || cache != "no-store" {
			t.Errorf("%s: Content-Type %q, Cache-Control %q", name, kind, cache)
		}
		challenge := c.a.Header().Get("WWW-Authenticate")
		if (challenge != "") != (c.status == 401) || challenge != "" && !strings.HasPrefix(challenge, "Basic ") {
			t.Errorf("%s: WWW-Authenticate %q", name, challenge)
		}
	}
	get := h.call(http.MethodGet, "/oauth/token", "", noToken)
	if get.Code != http.StatusMethodNotAllowed || get.Header().Get("Allow") != "POST" || as[gen.OAuthError](get).Error != "invalid_request" {
		t.Errorf("GET: %d, Allow %q, %s", get.Code, get.Header().Get("Allow"), get.Body)
	}
	issued, a := 0, h.post("client_id="+h.id, presenting(h.cert))
	for ; a.Code == http.StatusOK && issued < 2000; issued++ { // while it asks, its allowance grows by 10 a second
		a = h.post("client_id="+h.id, presenting(h.cert))
	}
	a.want(http.StatusTooManyRequests)
	if issued < 50 {
		t.Errorf("refused after %d tokens", issued)
	}
	if a.Header().Get("Retry-After") != "1" || as[gen.OAuthError](a).Error != "temporarily_unavailable" {
		t.Errorf("%s, Retry-After %q", a.Body, a.Header().Get("Retry-After"))
	}
	_ = h.store.Close()
	r := basicAuth("another", h.secret) // which has no allowance to exceed
	a = h.post("", r, func(r *http.Request) { r.RemoteAddr = "192.0.2.77:1" })
	if a.Code != http.StatusServiceUnavailable || as[gen.OAuthError](a).Error != "temporarily_unavailable" || a.Header().Get("Retry-After") == "" {
		t.Errorf("without the database: %d %s", a.Code, a.Body)
	}
	for _, secret := range []string{h.secret, "hunter2"} {
		if h.seen.count(secret) > 0 {
			t.Error("an answer or a log line repeats a secret")
		}
	}
}

func TestServerMetadata(t *testing.T) {
	t.Parallel()
	h := tokenSetup(t)
	got := as[gen.AuthorizationServer](h.call(http.MethodGet, "/.well-known/oauth-authorization-server", "", noToken).want(http.StatusOK))
	if got.Issuer != testIssuer || got.TokenEndpoint != "https://hooks.example.com/oauth/token" ||
		got.JwksURI != "https://hooks.example.com/.well-known/jwks.json" || !slices.Contains(got.ScopesSupported, "operator") ||
		!got.TLSClientCertificateBoundAccessTokens || len(got.GrantTypesSupported) != 1 || got.ResponseTypesSupported == nil {
		t.Errorf("%+v", got)
	}
}

func TestRotatedKeysArePublished(t *testing.T) {
	t.Parallel()
	h := tokenSetup(t)
	if err := h.keys.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := h.call(http.MethodGet, "/.well-known/jwks.json", "", noToken).want(http.StatusOK)
	if got := as[gen.JwkSet](a); len(got.Keys) != 2 || strings.Contains(a.Body.String(), `"d"`) {
		t.Errorf("%s", a.Body)
	}
}

func TestWithoutTheBuiltinIssuer(t *testing.T) {
	t.Parallel()
	h := setup(t, func(o *Options) { o.Keys, o.Tokens = nil, nil })
	h.call(http.MethodGet, "/.well-known/jwks.json", "", noToken).want(http.StatusNotFound, "NO_BUILTIN_ISSUER")
	h.call(http.MethodGet, "/.well-known/oauth-authorization-server", "", noToken).want(http.StatusNotFound, "NO_BUILTIN_ISSUER")
	a := h.call(http.MethodPost, "/oauth/token", "client_id="+uuid.NewString(), noToken, header("Content-Type", "application/x-www-form-urlencoded"))
	if a.Code != http.StatusNotFound || as[gen.OAuthError](a).Error != "invalid_request" {
		t.Errorf("%d %s", a.Code, a.Body)
	}
}
