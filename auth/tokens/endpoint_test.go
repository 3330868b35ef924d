package tokens

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/auth"
	"spendhook/auth/authtest"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

const (
	certOne = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA1"
	certTwo = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA2"
)

// ask sends a request with a secret, from authtest.Home.
func (r *replica) ask(id, secret string) (Token, *Error) {
	return r.send(Request{Authorization: basic(id, secret), Address: authtest.Home})
}

func (r *replica) send(request Request) (Token, *Error) {
	r.tb.Helper()
	token, err := r.endpoint.Issue(r.tb.Context(), request)
	if err == nil {
		return token, nil
	}
	refusal, ok := errors.AsType[*Error](err)
	if !ok {
		r.tb.Fatalf("%v is no Error", err)
	}
	return token, refusal
}

func (r *replica) wantCode(what string, refusal *Error, want Code) {
	r.tb.Helper()
	if got := code(refusal); got != want {
		r.tb.Errorf("%s: %q, want %q", what, got, want)
	}
}

func code(refusal *Error) Code {
	if refusal == nil {
		return ""
	}
	return refusal.Code
}

func TestIssue(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		c := authtest.NewClock()
		r := newReplica(t, db, c)
		client, secret := r.client(clients.Registration{})
		token, refusal := r.send(Request{
			Form: []byte("client_id=" + client.ID + "&client_secret=" + secret + "&scope=events:read"), Certificate: certOne, Address: authtest.Home,
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
		if caller.Subject != client.ID || caller.ClientID != client.ID || *caller.Company != uuid.UUID(*client.Company) || caller.Thumbprint != certOne {
			t.Errorf("%+v", caller)
		}
		token, refusal = r.ask(client.ID, secret)
		if refusal != nil || !slices.Equal(token.Scopes, []string{"events:read", "events:write"}) {
			t.Errorf("without a scope: %v, %v", token.Scopes, refusal)
		}
		if n := testutil.ToFloat64(r.endpoint.requests.WithLabelValues(issued)); n != 2 {
			t.Errorf("%v tokens are counted", n)
		}
	})
}

func TestIssueRefuses(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	client, secret := r.client(clients.Registration{})
	bound, boundSecret := r.client(clients.Registration{Certificates: []string{certOne}})
	certOnly, _ := r.client(clients.Registration{Certificates: []string{certOne, certTwo}, NoSecret: true})
	off, offSecret := r.client(clients.Registration{Certificates: []string{certOne}})
	if _, err := r.clients.SetDisabled(t.Context(), off.ID, true); err != nil {
		t.Fatal(err)
	}
	form := func(text string) Request { return Request{Form: []byte(text)} }
	with := func(request Request, certificate string) Request {
		request.Certificate = certificate
		return request
	}
	by := func(id, secret string) Request { return Request{Authorization: basic(id, secret)} }
	scoped := by(client.ID, secret)
	scoped.Form = []byte("scope=events:read%20cards:read")
	made := by(client.ID, secret)
	made.Form = []byte("scope=nonsense")
	for i, line := range []struct {
		name    string
		request Request
		code    Code
	}{
		{"the right secret", by(client.ID, secret), ""},
		{"a certificate of one's own", with(by(client.ID, secret), certTwo), ""},
		{"a certificate on the list", with(form("client_id="+bound.ID), certOne), ""},
		{"both", with(by(bound.ID, boundSecret), certOne), ""},
		{"the second of the list", with(form("client_id="+certOnly.ID), certTwo), ""},
		{"no certificate with a secret", by(bound.ID, boundSecret), InvalidClient},
		{"a wrong secret with a certificate on the list", with(by(bound.ID, secret), certOne), InvalidClient},
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
}

func TestRotatedSecret(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	client, first := r.client(clients.Registration{})
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
	c.Add(time.Hour)
	wantGood(map[string]bool{second: false, third: true})
	fourth := rotate(0)
	wantGood(map[string]bool{third: false, fourth: true})
	if _, _, err := r.clients.RotateSecret(t.Context(), client.ID, clients.MaxOverlap+1); err == nil {
		t.Error("any overlap is taken")
	}
	if _, _, err := r.clients.RotateSecret(t.Context(), "none", 0); !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
}

// Many wrong secrets from an address, for the same client and for unknown clients, do not
// block a right secret or a right certificate from that address.
func TestGuessesBlockNoClient(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	bySecret, secret := r.client(clients.Registration{})
	byCertificate, _ := r.client(clients.Registration{Certificates: []string{certOne}, NoSecret: true})
	for i := range 100 {
		for _, id := range []string{bySecret.ID, byCertificate.ID, fmt.Sprintf("shc_%024x", i)} {
			_, refusal := r.ask(id, fmt.Sprint("shs_", i))
			r.wantCode("a guess", refusal, InvalidClient)
		}
	}
	_, refusal := r.ask(bySecret.ID, secret)
	r.wantCode("the right secret", refusal, "")
	_, refusal = r.send(Request{Form: []byte("client_id=" + byCertificate.ID), Certificate: certOne, Address: authtest.Home})
	r.wantCode("the right certificate", refusal, "")
}

// A client that requests too many tokens is refused. Other clients are not affected, and
// requests with a wrong secret do not count.
func TestTokensOfAClientHaveARate(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store := storagetest.Open(t, storage.Options{})
	r := newReplica(t, store, c)
	client, secret := r.client(clients.Registration{})
	other, otherSecret := r.client(clients.Registration{})
	for range tokenRate.Burst {
		_, refusal := r.ask(client.ID, "wrong")
		r.wantCode("a guess", refusal, InvalidClient)
		_, refusal = r.ask(client.ID, secret)
		r.wantCode("within the burst", refusal, "")
	}
	_, refusal := r.ask(client.ID, secret)
	r.wantCode("past the burst", refusal, TooManyTokens)
	if refusal != nil && (refusal.RetryAfter <= 0 || refusal.RetryAfter > time.Second) {
		t.Errorf("try again after %v", refusal.RetryAfter)
	}
	_, refusal = r.ask(other.ID, otherSecret)
	r.wantCode("another client", refusal, "")
	c.Add(time.Second)
	for range int(tokenRate.PerSecond) {
		_, refusal = r.ask(client.ID, secret)
		r.wantCode("a second later", refusal, "")
	}
	_, refusal = r.ask(client.ID, secret)
	r.wantCode("past the rate", refusal, TooManyTokens)
	_ = store.Close()
	_, refusal = r.ask(client.ID, secret)
	r.wantCode("past the rate, without a query", refusal, TooManyTokens)
}

func TestTokensAreUnavailableWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store := storagetest.Open(t, storage.Options{})
	r := newReplica(t, store, c)
	client, secret := r.client(clients.Registration{Certificates: []string{certOne}})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, refusal := r.ask(client.ID, secret)
		r.wantCode("by secret", refusal, Unavailable)
		if refusal.RetryAfter == 0 || refusal.Unwrap() == nil {
			t.Fatalf("%+v", refusal)
		}
		_, refusal = r.send(Request{Form: []byte("client_id=" + client.ID), Certificate: certOne, Address: authtest.Home})
		r.wantCode("by certificate", refusal, Unavailable)
	}
	if r.clients.Sync(t.Context()) == nil {
		t.Error("no error")
	}
}

func TestTokensOfARevokedClientStop(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		c := authtest.NewClock()
		r, elsewhere := newReplica(t, db, c), newReplica(t, db, c)
		gone, _ := r.client(clients.Registration{})
		off, _ := r.client(clients.Registration{})
		token := func(id string) string {
			token, err := auth.Mint(r.keys, auth.Grant{ClientID: id, TTL: keys.TokenTTL}, c.Now())
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		goneToken, offToken, cli := token(gone.ID), token(off.ID), token("")
		if !r.accepts(goneToken) || !r.accepts(offToken) {
			t.Fatal("refused")
		}
		if _, err := elsewhere.clients.SetDisabled(t.Context(), off.ID, true); err != nil {
			t.Fatal(err)
		}
		if err := elsewhere.clients.Delete(t.Context(), gone.ID); err != nil {
			t.Fatal(err)
		}
		c.Add(keys.TokenTTL - time.Second) // just before the tokens expire
		r.sync()
		if r.accepts(goneToken) || r.accepts(offToken) || !r.accepts(cli) {
			t.Error("a token of a disabled or deleted client is accepted, or another one is not")
		}
		if _, err := elsewhere.clients.SetDisabled(t.Context(), off.ID, false); err != nil {
			t.Fatal(err)
		}
		r.sync()
		if !r.accepts(offToken) || r.accepts(goneToken) {
			t.Error("enabled again")
		}
	})
}
