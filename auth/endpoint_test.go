package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/internal/invalid"
	"spendhook/storage"
)

const (
	certOne = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA1"
	certTwo = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA2"
)

// ask sends a request with a secret, from home.
func (r *replica) ask(id, secret string) (Token, *TokenError) {
	return r.send(TokenRequest{Authorization: basic(id, secret), Address: home})
}

func (r *replica) send(request TokenRequest) (Token, *TokenError) {
	r.tb.Helper()
	token, err := r.endpoint.Issue(r.tb.Context(), request)
	if err == nil {
		return token, nil
	}
	refusal, ok := errors.AsType[*TokenError](err)
	if !ok {
		r.tb.Fatalf("%v is no TokenError", err)
	}
	return token, refusal
}

func (r *replica) wantCode(what string, refusal *TokenError, want Code) {
	r.tb.Helper()
	if got := code(refusal); got != want {
		r.tb.Errorf("%s: %q, want %q", what, got, want)
	}
}

func code(refusal *TokenError) Code {
	if refusal == nil {
		return ""
	}
	return refusal.Code
}

func (r *replica) hashed() int {
	r.tb.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "spendhook_secret_check_seconds" {
			return int(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	return -1
}

func TestIssue(t *testing.T) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			r := newReplica(t, open(t, c), c)
			client, secret := r.client(NewClient{})
			token, refusal := r.send(TokenRequest{
				Form: []byte("client_id=" + client.ID + "&client_secret=" + secret + "&scope=events:read"), Certificate: certOne, Address: home,
			})
			if refusal != nil {
				t.Fatal(refusal)
			}
			if token.ExpiresIn != time.Hour || !slices.Equal(token.Scopes, []string{"events:read"}) {
				t.Errorf("%+v", token)
			}
			caller, err := r.verifier.Verify(t.Context(), token.AccessToken)
			if err != nil {
				t.Fatal(err)
			}
			if caller.Subject != client.ID || caller.ClientID != client.ID || *caller.Company != *client.Company || caller.Thumbprint != certOne {
				t.Errorf("%+v", caller)
			}
			token, refusal = r.ask(client.ID, secret)
			if refusal != nil || !slices.Equal(token.Scopes, []string{"events:read", "events:write"}) {
				t.Errorf("without a scope: %v, %v", token.Scopes, refusal)
			}
			r.sync()
			if used, err := r.clients.Get(t.Context(), client.ID); err != nil || used.LastUsedAt == nil || !used.LastUsedAt.Equal(c.Now()) {
				t.Errorf("last used %v, %v", used.LastUsedAt, err)
			}
			if n := testutil.ToFloat64(r.endpoint.opts.Metrics.tokens.WithLabelValues(issued)); n != 2 {
				t.Errorf("%v tokens are counted", n)
			}
		})
	}
}

func TestIssueRefuses(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := newReplica(t, sqlite(t, c), c)
	client, secret := r.client(NewClient{})
	bound, boundSecret := r.client(NewClient{Certificates: []string{certOne}})
	certOnly, _ := r.client(NewClient{Certificates: []string{certOne, certTwo}, NoSecret: true})
	off, offSecret := r.client(NewClient{Certificates: []string{certOne}})
	if _, err := r.clients.SetDisabled(t.Context(), off.ID, true); err != nil {
		t.Fatal(err)
	}
	form := func(text string) TokenRequest { return TokenRequest{Form: []byte(text)} }
	with := func(request TokenRequest, certificate string) TokenRequest {
		request.Certificate = certificate
		return request
	}
	by := func(id, secret string) TokenRequest { return TokenRequest{Authorization: basic(id, secret)} }
	scoped := by(client.ID, secret)
	scoped.Form = []byte("scope=events:read%20cards:read")
	made := by(client.ID, secret)
	made.Form = []byte("scope=nonsense")
	for i, line := range []struct {
		name    string
		request TokenRequest
		code    Code
	}{
		{"the right secret", by(client.ID, secret), ""},
		{"a certificate of one's own", with(by(client.ID, secret), certTwo), ""},
		{"a certificate on the list", with(form("client_id="+bound.ID), certOne), ""},
		{"both", with(by(bound.ID, boundSecret), certOne), ""},
		{"the second of the list", with(form("client_id="+certOnly.ID), certTwo), ""},
		{"no certificate with a secret", by(bound.ID, boundSecret), ""},
		{"another's secret", by(client.ID, boundSecret), InvalidClient},
		{"an empty secret", form("client_id=" + client.ID + "&client_secret="), InvalidClient},
		{"an unknown client", by("shc_000000000000000000000000", secret), InvalidClient},
		{"an id of another form", by("a\x00b", secret), InvalidClient},
		{"a certificate of none", with(form("client_id="+client.ID), certOne), InvalidClient},
		{"another certificate", with(form("client_id="+bound.ID), certTwo), InvalidClient},
		{"the secret with another certificate", with(by(bound.ID, boundSecret), certTwo), InvalidClient},
		{"a secret where there is none", by(certOnly.ID, secret), InvalidClient},
		{"disabled", by(off.ID, offSecret), InvalidClient},
		{"disabled, by certificate", with(form("client_id="+off.ID), certOne), InvalidClient},
		{"a scope that it has not", scoped, InvalidScope},
		{"a scope that is none", made, InvalidScope},
	} {
		line.request.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		_, refusal := r.send(line.request)
		r.wantCode(line.name, refusal, line.code)
		if refusal != nil && (strings.Contains(refusal.Error(), secret) || strings.Contains(refusal.Error(), client.ID)) {
			t.Errorf("%s: %v repeats the request", line.name, refusal)
		}
	}
	for _, s := range []string{secret, boundSecret, offSecret} {
		if strings.Contains(r.log.String(), s) {
			t.Error("the log has a secret")
		}
	}
}

// The least that OWASP's cheat sheet on password storage recommends of argon2id.
func TestSecretsAreHashedAsOWASPRecommends(t *testing.T) {
	t.Parallel()
	hash, err := argon2id.CreateHash("hunter2", realParams)
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=7168,t=5,p=1$") || !strings.HasPrefix(unknownHash, hash[:30]) {
		t.Errorf("%q, %v", hash, err)
	}
	if ok, err := argon2id.ComparePasswordAndHash("hunter2", unknownHash); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// An unknown client, a disabled one and one without a secret cost the hash that
// a wrong secret costs; a right one costs it once.
func TestWhatIsHashed(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := newReplica(t, sqlite(t, c), c)
	client, secret := r.client(NewClient{})
	certOnly, _ := r.client(NewClient{Certificates: []string{certOne}, NoSecret: true})
	for _, line := range []struct {
		name, id, secret string
		want             int
	}{
		{"a wrong secret", client.ID, "wrong", 1},
		{"an unknown client", "shc_x", "wrong", 1},
		{"a client without a secret", certOnly.ID, "wrong", 1},
		{"the right secret", client.ID, secret, 1},
		{"the right secret again", client.ID, secret, 0},
		{"a wrong one again", client.ID, "wrong", 1},
		{"the right one's start", client.ID, secret[:20], 1},
	} {
		before := r.hashed()
		r.ask(line.id, line.secret)
		if got := r.hashed() - before; got != line.want {
			t.Errorf("%s: %d hashes, want %d", line.name, got, line.want)
		}
	}
	c.add(knownFor)
	before := r.hashed()
	if _, refusal := r.ask(client.ID, secret); refusal != nil || r.hashed() != before+1 {
		t.Error("a secret is known for ever")
	}
}

func TestRotatedSecret(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := newReplica(t, sqlite(t, c), c)
	client, first := r.client(NewClient{})
	rotate := func(overlap time.Duration) string {
		_, secret, err := r.clients.RotateSecret(t.Context(), client.ID, overlap)
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	wantGood := func(secrets map[string]bool) {
		t.Helper()
		for secret, want := range secrets {
			c.add(time.Minute) // room for failures
			if _, refusal := r.ask(client.ID, secret); (refusal == nil) != want {
				t.Errorf("%s: %v, want good: %v", secret, refusal, want)
			}
		}
	}
	wantGood(map[string]bool{first: true})
	second := rotate(time.Hour)
	wantGood(map[string]bool{first: true, second: true})
	third := rotate(time.Hour)
	wantGood(map[string]bool{first: false, second: true, third: true})
	c.add(time.Hour)
	wantGood(map[string]bool{second: false, third: true})
	fourth := rotate(0)
	before := r.hashed()
	wantGood(map[string]bool{third: false, fourth: true})
	if n := r.hashed() - before; n != 1 {
		t.Errorf("%d hashes: a secret that was good costs one without any limit", n)
	}
	if _, _, err := r.clients.RotateSecret(t.Context(), client.ID, MaxOverlap+1); err == nil {
		t.Error("any overlap is taken")
	}
	if _, _, err := r.clients.RotateSecret(t.Context(), "none", 0); !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
}

func TestGuessingIsSlow(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := newReplica(t, sqlite(t, c), c)
	victim, secret := r.client(NewClient{})
	other, otherSecret := r.client(NewClient{Certificates: []string{certOne}})
	if _, refusal := r.ask(victim.ID, secret); refusal != nil {
		t.Fatal(refusal)
	}
	r.endpoint.secrets.gate = newGate(1, 100, time.Hour)
	before := r.hashed()
	codes := map[Code]int{}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for worker := range 4 {
		wg.Go(func() {
			for i := range 250 {
				_, err := r.endpoint.Issue(t.Context(), TokenRequest{Authorization: basic(victim.ID, fmt.Sprint(worker, i)), Address: home})
				refusal, _ := errors.AsType[*TokenError](err)
				mu.Lock()
				codes[refusal.Code]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if hashes := r.hashed() - before; hashes != addressFailures || codes[InvalidClient] != addressFailures || codes[TooManyFailures] != 1000-addressFailures {
		t.Errorf("%d hashes, %v", hashes, codes)
	}
	_, refusal := r.ask(victim.ID, "guess")
	if refusal.RetryAfter <= 0 || refusal.RetryAfter > addressEvery {
		t.Errorf("try again after %v", refusal.RetryAfter)
	}
	// Whoever is known to be right is not held up, wherever it is.
	if _, refusal := r.ask(victim.ID, secret); refusal != nil {
		t.Errorf("the victim: %v", refusal)
	}
	// Nor is another client elsewhere, nor this one's limit lifted by success.
	if _, refusal := r.send(TokenRequest{Authorization: basic(other.ID, otherSecret), Address: netip.MustParseAddr("192.0.2.9")}); refusal != nil {
		t.Errorf("another client: %v", refusal)
	}
	_, refusal = r.ask(victim.ID, "guess")
	r.wantCode("after a success", refusal, TooManyFailures)
	_, refusal = r.send(TokenRequest{Form: []byte("client_id=" + other.ID), Certificate: certTwo, Address: home})
	r.wantCode("by certificate", refusal, TooManyFailures)
}

func TestDatabaseAwayIsNoFailureOfTheClient(t *testing.T) {
	t.Parallel()
	c := newClock()
	store := sqlite(t, c)
	r := newReplica(t, store, c)
	client, secret := r.client(NewClient{Certificates: []string{certOne}})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 * allFailures {
		_, refusal := r.ask(client.ID, secret)
		r.wantCode("by secret", refusal, Unavailable)
		if refusal.RetryAfter == 0 || refusal.Unwrap() == nil {
			t.Fatalf("%+v", refusal)
		}
		_, refusal = r.send(TokenRequest{Form: []byte("client_id=" + client.ID), Certificate: certOne, Address: home})
		r.wantCode("by certificate", refusal, Unavailable)
	}
	if r.clients.Sync(t.Context()) == nil {
		t.Error("no error")
	}
}

func TestNewClientIsChecked(t *testing.T) {
	t.Parallel()
	c := newClock()
	clients := NewClients(sqlite(t, c), c.Now)
	company := new(uuid.New())
	good := NewClient{Name: "n", Scopes: []string{"events:read"}}
	for name, n := range map[string]func(*NewClient){
		"no name":                     func(n *NewClient) { n.Name = " " },
		"a long name":                 func(n *NewClient) { n.Name = strings.Repeat("n", maxName+1) },
		"a name that is not UTF-8":    func(n *NewClient) { n.Name = "\xff" },
		"a name of two lines":         func(n *NewClient) { n.Name = "a\nb" },
		"no scope":                    func(n *NewClient) { n.Scopes = nil },
		"an unknown scope":            func(n *NewClient) { n.Scopes = []string{"events"} },
		"platform, of a company":      func(n *NewClient) { n.Company, n.Scopes = company, []string{"platform"} },
		"operator, of a company":      func(n *NewClient) { n.Company, n.Scopes = company, []string{"operator"} },
		"no thumbprint":               func(n *NewClient) { n.Certificates = []string{"x"} },
		"neither secret nor certs":    func(n *NewClient) { n.NoSecret = true },
		"too many certificates":       func(n *NewClient) { n.Certificates = slices.Repeat([]string{certOne}, maxCertificates+1) },
		"a thumbprint of two in one ": func(n *NewClient) { n.Certificates = []string{certOne + " " + certTwo} },
	} {
		bad := good
		n(&bad)
		_, _, err := clients.Create(t.Context(), bad)
		if problems, ok := errors.AsType[*invalid.Error](err); !ok || len(problems.Fields) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 3 {
		if _, _, err := clients.Create(t.Context(), good); err != nil {
			t.Fatal(err)
		}
	}
	count := 0
	if err := clients.Each(t.Context(), func(Client) error { count++; return nil }); err != nil || count != 3 {
		t.Errorf("%d clients, %v", count, err)
	}
}
