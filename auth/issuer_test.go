package auth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/auth/authtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// idp is an external issuer that serves its JWKS over TLS.
type idp struct {
	t        *testing.T
	server   *httptest.Server
	settings Issuer
	issuer   *externalIssuer
	verifier *Verifier
	clock    *authtest.Clock
	log      *bytes.Buffer

	mu     sync.Mutex
	keys   map[string]jwk.Key // private, by id
	down   bool
	answer http.HandlerFunc // instead of the keys; nil: none
	asked  int
}

const idpName = "https://login.example.com/"

var idpCompany = uuid.MustParse("b0000000-0000-4000-8000-000000000000")

func newIDP(t *testing.T, adjust ...func(*Issuer)) *idp {
	t.Helper()
	p := &idp{t: t, clock: authtest.NewClock(), keys: map[string]jwk.Key{}, log: &bytes.Buffer{}}
	p.addKey("one", jwa.ES256(), ecKey(t, elliptic.P256()))
	p.server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.server.Close)
	o := Issuer{
		Name: idpName, JWKSURL: p.server.URL, Audience: "https://spendhook.test/api",
		Scopes: []string{"events:write", "deliveries:read"},
	}
	for _, f := range adjust {
		f(&o)
	}
	p.settings = o
	p.verifier = newVerifier(t, VerifierOptions{External: []Issuer{o}, Now: p.clock.Now, Logger: slog.New(slog.NewTextHandler(p.log, nil))})
	p.issuer = p.verifier.external[0]
	return p
}

func (p *idp) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	switch {
	case p.down:
		w.WriteHeader(http.StatusBadGateway)
	case p.answer != nil:
		p.answer(w, r)
	default:
		list := []jwk.Key{}
		for _, key := range p.keys {
			public, err := key.PublicKey()
			if err != nil {
				p.t.Error(err)
			}
			list = append(list, public)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": list})
	}
}

func (p *idp) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func ecKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// addKey publishes a key. The key names its algorithm if one is given.
func (p *idp) addKey(id string, alg jwa.SignatureAlgorithm, private any) {
	p.t.Helper()
	key, err := jwk.Import(private)
	if err := errors.Join(err, key.Set(jwk.KeyIDKey, id)); err != nil {
		p.t.Fatal(err)
	}
	if alg.String() != "" {
		if err := key.Set(jwk.AlgorithmKey, alg); err != nil {
			p.t.Fatal(err)
		}
	}
	p.keys[id] = key
}

// token is one of this issuer, signed with a key by an algorithm.
func (p *idp) token(id string, alg jwa.SignatureAlgorithm, edits ...func(jwt.Token) error) string {
	p.t.Helper()
	b := jwt.NewBuilder().Issuer(idpName).Audience([]string{"https://spendhook.test/api"}).Subject("svc").
		Expiration(p.clock.Now().Add(12*time.Hour)).Claim("scope", "openid events:write cards:write").
		Claim(companyClaim, idpCompany.String())
	token, err := b.Build()
	for _, edit := range edits {
		err = errors.Join(err, edit(token))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	signed, err := jwt.Sign(token, jwt.WithKey(alg, p.keys[id]))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(signed)
}

func (p *idp) accepts(token string) bool {
	p.t.Helper()
	_, err := p.verifier.Verify(p.t.Context(), token)
	return err == nil
}

func TestExternalTokenCarriesNoMoreThanConfigured(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	es256 := jwa.ES256()
	c, err := p.verifier.Verify(t.Context(), p.token("one", es256, set("client_id", "app"), set("cnf", map[string]any{thumbprint: "tp"})))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Scopes, []string{"events:write"}) || *c.Company != idpCompany || c.Thumbprint != "tp" {
		t.Errorf("%+v", c)
	}
	if c.Subject != idpName+"|svc" || c.ClientID != idpName+"|app" || c.Issuer != idpName {
		t.Errorf("%+v: not told apart from another issuer's", c)
	}
	none := func(token jwt.Token) error { return token.Remove(companyClaim) }
	for name, token := range map[string]string{
		"no company":       p.token("one", es256, none),
		"no subject":       p.token("one", es256, func(token jwt.Token) error { return token.Remove("sub") }),
		"our audience":     p.token("one", es256, set("aud", audience)),
		"our name":         p.token("one", es256, set("iss", authtest.Issuer)),
		"expired":          p.token("one", es256, set("exp", p.clock.Now().Add(-issuerSkew-time.Second))),
		"not yet valid":    p.token("one", es256, set("nbf", p.clock.Now().Add(issuerSkew+time.Second))),
		"a list of number": p.token("one", es256, set("scope", []int{1})),
		"scope no text":    p.token("one", es256, set("scope", 1)),
	} {
		if p.accepts(token) {
			t.Errorf("%s: accepted", name)
		}
	}
	if !p.accepts(p.token("one", es256, set("nbf", p.clock.Now().Add(issuerSkew-time.Second)))) {
		t.Error("a clock skew within the tolerance is refused")
	}
}

func TestExternalClaimsByOtherNames(t *testing.T) {
	t.Parallel()
	p := newIDP(t, func(o *Issuer) {
		o.ScopeClaim, o.CompanyClaim, o.Scopes = "scp", "https://example.com/company", []string{"platform", "events:read"}
	})
	id := uuid.New()
	c, err := p.verifier.Verify(t.Context(), p.token("one", jwa.ES256(), set("scp", []string{"events:read"}), set("https://example.com/company", id.String())))
	if err != nil || !slices.Equal(c.Scopes, []string{"events:read"}) || *c.Company != id {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = p.verifier.Verify(t.Context(), p.token("one", jwa.ES256(), set("scp", "platform")))
	if err != nil || c.Company != nil {
		t.Errorf("%+v, %v: platform needs no company", c, err)
	}
	if p.accepts(p.token("one", jwa.ES256(), set("scp", "events:read"))) {
		t.Error("the company under another name counts")
	}
}

func TestExternalAlgorithmsArePinnedToTheKey(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	none := jwa.NewSignatureAlgorithm("")
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.addKey("p384", none, ecKey(t, elliptic.P384()))
	p.addKey("p521", none, ecKey(t, elliptic.P521()))
	p.addKey("rsa", none, rsaKey)
	p.addKey("ps", jwa.PS256(), rsaKey)
	p.addKey("ed", none, edKey)
	p.addKey("secret", jwa.HS256(), []byte("0123456789abcdef0123456789abcdef"))
	p.addKey("enc", none, ecKey(t, elliptic.P256()))
	if err := p.keys["enc"].Set(jwk.KeyUsageKey, jwk.ForEncryption); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]string{
		"a secret":    `{"kty":"oct","k":"AAAA","kid":"a"}`,
		"a short RSA": `{"kty":"RSA","e":"AQAB","kid":"a","n":"` + base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 128)) + `"}`,
		"no id":       `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`,
	} {
		p.set(func() { p.answer = answer(`{"keys":[` + key + `]}`) })
		if err := p.issuer.load(t.Context()); err == nil {
			t.Errorf("%s is taken: %v", name, p.issuer.fetched.Load())
		}
	}
	p.set(func() { p.answer = nil })
	for _, c := range []struct {
		id   string
		alg  jwa.SignatureAlgorithm
		want bool
	}{
		{"one", jwa.ES256(), true},
		{"p384", jwa.ES384(), true},
		{"rsa", jwa.RS256(), true},
		{"rsa", jwa.PS256(), true},
		{"ps", jwa.PS256(), true},
		{"ed", jwa.EdDSA(), true},
		{"ps", jwa.RS256(), false},
		{"rsa", jwa.RS384(), true},
		{"rsa", jwa.RS512(), true},
		{"p521", jwa.ES512(), true},
		{"secret", jwa.HS256(), false},
		{"enc", jwa.ES256(), false},
	} {
		key := p.keys[c.id]
		if c.id == "ps" { // the library itself would not sign
			_ = key.Remove(jwk.AlgorithmKey)
		}
		token := p.token(c.id, c.alg)
		if c.id == "ps" {
			_ = key.Set(jwk.AlgorithmKey, jwa.PS256())
		}
		if got := p.accepts(token); got != c.want {
			t.Errorf("%s with %s: accepted %v", c.alg, c.id, got)
		}
	}
}

func TestIssuersAreSeparated(t *testing.T) {
	t.Parallel()
	one, other := newIDP(t), newIDP(t, func(o *Issuer) { o.Name = "https://other.example.com" })
	own := newReplica(t, storagetest.Open(t, storage.Options{}), one.clock)
	v := newVerifier(t, VerifierOptions{Keys: own.keys, External: []Issuer{one.settings, other.settings}, Now: one.clock.Now})
	first, err := v.Verify(t.Context(), one.token("one", jwa.ES256()))
	second, err2 := v.Verify(t.Context(), other.token("one", jwa.ES256(), set("iss", "https://other.example.com")))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if first.Subject == second.Subject {
		t.Error("the same subject of two issuers is one caller")
	}
	for name, token := range map[string]string{
		"the other's key":      other.token("one", jwa.ES256()),
		"in the other's name":  one.token("one", jwa.ES256(), set("iss", "https://other.example.com")),
		"in our name":          one.token("one", jwa.ES256(), set("iss", authtest.Issuer), set("aud", audience)),
		"our key, their name":  sign(t, one.clock.Now(), set("iss", idpName), jwa.ES256(), own.private()),
		"an issuer of no kind": one.token("one", jwa.ES256(), set("iss", "https://evil.test")),
	} {
		if _, err := v.Verify(t.Context(), token); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := v.Verify(t.Context(), own.mint(time.Hour)); err != nil {
		t.Error(err)
	}
	alone := newVerifier(t, VerifierOptions{External: []Issuer{one.settings}, Now: one.clock.Now})
	if _, err := alone.Verify(t.Context(), own.mint(time.Hour)); err == nil {
		t.Error("our own token is accepted where only others' should be")
	}
}

func TestUnreachableIssuerKeepsItsLastKeys(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	if err := p.issuer.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.set(func() { p.down = true })
	for range 3 {
		if p.issuer.load(t.Context()) == nil {
			t.Fatal("no error")
		}
	}
	p.clock.Add(jwksKeep)
	token := p.token("one", jwa.ES256())
	if !p.accepts(token) {
		t.Error("the last keys are not used while the issuer is unreachable")
	}
	if n := testutil.ToFloat64(p.issuer.metrics.failures.WithLabelValues(idpName)); n != 3 {
		t.Errorf("%v failures are counted, want 3", n)
	}
	if strings.Count(p.log.String(), "fetch of the keys of an issuer failed") != 1 {
		t.Errorf("the log: %s", p.log)
	}
	p.clock.Add(time.Second)
	if _, err := p.verifier.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the last keys are used for ever: %v", err)
	}
	p.set(func() { p.down = false })
	p.clock.Add(jwksRetry)
	if !p.accepts(token) {
		t.Error("the keys are not fetched again")
	}
	if !strings.Contains(p.log.String(), "fetched again") {
		t.Errorf("the log: %s", p.log)
	}
	p.server.Close()
	p.clock.Add(time.Minute)
	if !p.accepts(p.token("one", jwa.ES256())) {
		t.Error("the last keys are not used while the port is closed")
	}
}

func TestNewKeyOfAnIssuerIsFetchedWhenATokenNeedsIt(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	if !p.accepts(p.token("one", jwa.ES256())) {
		t.Fatal("refused")
	}
	p.clock.Add(jwksRetry)
	p.set(func() { p.addKey("two", jwa.ES256(), ecKey(t, elliptic.P256())) })
	if !p.accepts(p.token("two", jwa.ES256())) {
		t.Error("a token of a new key is refused")
	}
	asked := p.asked
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { p.verifier.issuers[idpName].find(t.Context(), "made up") })
	}
	wg.Wait()
	if p.asked != asked {
		t.Errorf("the issuer is asked %d times for made-up ids", p.asked-asked)
	}
	// Tokens of a withdrawn key are refused, also cached ones.
	two := p.token("two", jwa.ES256())
	if !p.accepts(two) {
		t.Fatal("refused")
	}
	p.set(func() { delete(p.keys, "two") })
	if err := p.issuer.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	key := p.keys["one"]
	p.keys["two"] = key
	if p.accepts(two) {
		t.Error("a token of a withdrawn key is accepted")
	}
}

func TestBadJWKSKeepsTheLastKeys(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	if err := p.issuer.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	defer elsewhere.Close()
	for name, bad := range map[string]http.HandlerFunc{
		"no JSON":   answer("<html>"),
		"no keys":   answer(`{"keys":[]}`),
		"no set":    answer(`[]`),
		"too large": answer(`{"keys":[],"x":"` + strings.Repeat("x", maxJWKS) + `"}`),
		"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"cut short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"keys":[`))
		},
	} {
		p.set(func() { p.answer = bad })
		if err := p.issuer.load(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !p.accepts(p.token("one", jwa.ES256())) {
			t.Errorf("%s: the last keys are lost", name)
		}
	}
	// One bad key does not make the others unusable.
	p.set(func() {
		p.answer = func(w http.ResponseWriter, _ *http.Request) {
			public, _ := p.keys["one"].PublicKey()
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]any{"kty": "new", "kid": "x"}, public}})
		}
	})
	if err := p.issuer.load(t.Context()); err != nil {
		t.Error(err)
	}
}

// answer answers requests with the text.
func answer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

func TestIssuerThatWasNeverReached(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	p.set(func() { p.down = true })
	if _, err := p.verifier.Verify(t.Context(), p.token("one", jwa.ES256())); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	if _, err := NewVerifier(VerifierOptions{External: []Issuer{{Scopes: []string{"nonsense"}}}}); err == nil {
		t.Error("an unknown scope is taken")
	}
}

func TestIssuerRunFetchesAndEnds(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.verifier.Run(ctx); close(done) }()
	for p.issuer.fetched.Load() == nil {
		select {
		case <-t.Context().Done():
			t.Fatal("nothing is fetched")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-done
}
