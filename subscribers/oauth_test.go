package subscribers_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"spendhook/internal/invalid"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/subscriberstest"
)

const clientSecret = "hunter22-hunter22"

func oauth() *callback.OAuthChange {
	return &callback.OAuthChange{
		TokenURL: new("HTTPS://Login.example.com:443/token"), ClientID: new("us"), ClientSecret: new(secret.Text(clientSecret)), Scope: new("hooks"),
	}
}

// withOAuth creates a subscriber whose deliveries carry an access token.
func (b *bundle) withOAuth(t *testing.T) subscribers.Subscriber {
	t.Helper()
	in := b.Settings("https://example.com/a")
	in.OAuth = oauth()
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	return s
}

func TestOAuthIsStoredSealed(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.withOAuth(t)
	if raw := b.raw(t, s); strings.Contains(raw, "hunter22") || !strings.Contains(raw, `"tokenUrl":"https://login.example.com/token"`) {
		t.Errorf("stored: %s", raw)
	}
	read, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if o := read.OAuth; o.ClientSecret != clientSecret || o.ClientID != "us" || o.Scope != "hooks" || o.Audience != "" || read.Unusable() != nil {
		t.Errorf("%+v, %v", o, read.Unusable())
	}

	// Another key, then both, then the new one alone.
	locked, err := b.withKeys(sealtest.Ring("new")).Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if locked.OAuth.ClientSecret != "" || !errors.Is(locked.OAuth.Locked, seal.ErrUnknownKey) {
		t.Errorf("without its key: %+v", locked.OAuth)
	}
	_, err = b.withKeys(sealtest.Ring("new")).Update(t.Context(), b.Company, s.UUID, subscribers.Settings{OAuth: &callback.OAuthChange{Scope: new("")}})
	noErr(t, err)
	var count reseal.Count
	noErr(t, b.withKeys(sealtest.Ring("new", "test")).Reseal(t.Context(), &count))
	if n := sealsOf(t, b, "test")["test"]; n != 0 || len(count.Left) != 0 {
		t.Errorf("%d values under the old key, %v", n, count.Left)
	}
	read, err = b.withKeys(sealtest.Ring("new")).Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if read.OAuth.ClientSecret != clientSecret || read.OAuth.Scope != "" {
		t.Errorf("after the change of keys: %+v", read.OAuth)
	}
}

func TestALockedClientSecretMakesASubscriberUnusable(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.withOAuth(t)
	other := b.withKeys(sealtest.Ring("another"))
	_, err := other.RotateSecret(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	read, err := other.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if err := read.Unusable(); err == nil || !strings.Contains(err.Error(), "client secret") {
		t.Errorf("%v", err)
	}
	fresh, err := other.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{OAuth: &callback.OAuthChange{ClientSecret: new(secret.Text("another"))}})
	noErr(t, err)
	if fresh.Unusable() != nil || fresh.OAuth.ClientSecret != "another" {
		t.Errorf("%v", fresh.Unusable())
	}
}

func TestAnUpdateChangesTheFieldsOfOAuthThatItNames(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.withOAuth(t)
	change := func(c callback.OAuthChange) callback.OAuth {
		t.Helper()
		changed, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{OAuth: &c})
		noErr(t, err)
		if changed.OAuth == nil {
			return callback.OAuth{}
		}
		return *changed.OAuth
	}
	want := *s.OAuth
	want.Audience, want.Scope = "api", ""
	if got := change(callback.OAuthChange{Audience: new("api"), Scope: new("")}); got != want {
		t.Errorf("%+v", got)
	}
	want.TokenURL, want.ClientID = "https://login.example.com/other", "we"
	if got := change(callback.OAuthChange{TokenURL: new("https://login.example.com/other"), ClientID: new("we")}); got != want {
		t.Errorf("%+v", got)
	}
	if got := change(callback.OAuthChange{Remove: true}); got != (callback.OAuth{}) {
		t.Errorf("%+v", got)
	}
}

// Whoever may change a subscriber, but does not know the client secret, can have neither it nor a token sent
// elsewhere.
func TestAClientSecretIsBoundToItsOrigins(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.withOAuth(t)
	for name, in := range map[string]subscribers.Settings{
		"the token URL":    {OAuth: &callback.OAuthChange{TokenURL: new("https://evil.example/token")}},
		"its port":         {OAuth: &callback.OAuthChange{TokenURL: new("https://login.example.com:8443/token")}},
		"the callback URL": {CallbackURL: new("https://evil.example/a")},
	} {
		_, err := b.Store.Update(t.Context(), b.Company, s.UUID, in)
		if got := subscriberstest.Codes(t, err); got != "/oauth/clientSecret REQUIRED" {
			t.Errorf("%s: %s", name, got)
		}
	}
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{CallbackURL: new("https://example.com/b")})
	noErr(t, err)
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{CallbackURL: new("https://new.example/b"), OAuth: oauth()})
	noErr(t, err)
	_, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{CallbackURL: new("https://newer.example/b"), OAuth: &callback.OAuthChange{Remove: true}})
	noErr(t, err)
}

func TestBadOAuthIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{Policy: callback.Policy{Resolve: func(_ context.Context, host string) error {
		if host == "internal.example.com" {
			return errors.New("internal")
		}
		return nil
	}}})
	for want, change := range map[string]func(*callback.OAuthChange){
		"/oauth/tokenUrl REQUIRED": func(c *callback.OAuthChange) { c.TokenURL = nil },
		"/oauth/tokenUrl INVALID":  func(c *callback.OAuthChange) { c.TokenURL = new("http://login.example.com/") },
		"/oauth/tokenUrl TOO_LONG": func(c *callback.OAuthChange) {
			c.TokenURL = new("https://login.example.com/" + strings.Repeat("a", 2048))
		},
		"/oauth/tokenUrl TOKEN_URL_REFUSED": func(c *callback.OAuthChange) { c.TokenURL = new("https://internal.example.com/") },
		"/oauth/clientId REQUIRED":          func(c *callback.OAuthChange) { c.ClientID = new("") },
		"/oauth/clientId INVALID":           func(c *callback.OAuthChange) { c.ClientID = new("a\r\nb") },
		"/oauth/clientSecret REQUIRED":      func(c *callback.OAuthChange) { c.ClientSecret = nil },
		"/oauth/clientSecret TOO_LONG":      func(c *callback.OAuthChange) { c.ClientSecret = new(secret.Text(strings.Repeat("s", 1025))) },
		"/oauth/clientSecret INVALID":       func(c *callback.OAuthChange) { c.ClientSecret = new(secret.Text(callback.HiddenValue)) },
		"/oauth/scope INVALID":              func(c *callback.OAuthChange) { c.Scope = new(`a"b`) },
		"/oauth/audience INVALID":           func(c *callback.OAuthChange) { c.Audience = new(" a") },
	} {
		in := b.Settings("https://example.com/")
		in.OAuth = oauth()
		change(in.OAuth)
		_, err := b.Store.Create(t.Context(), b.Company, in)
		if got := subscriberstest.Codes(t, err); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter22") {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
}

func TestOAuthAndTheHeaderAuthorizationExcludeEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	header := settings(secrets{"authorization": "Bearer x"})
	in := b.Settings("https://example.com/")
	in.OAuth, in.Headers = oauth(), header
	_, err := b.Store.Create(t.Context(), b.Company, in)
	refused := func(what string, err error) {
		t.Helper()
		var problems *invalid.Error
		if !errors.As(err, &problems) || subscriberstest.Codes(t, err) != "oauth CONFLICT" {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("create", err)
	with := b.withOAuth(t)
	_, err = b.Store.Update(t.Context(), b.Company, with.UUID, subscribers.Settings{Headers: header})
	refused("a header beside oauth", err)
	_, err = b.Store.Update(t.Context(), b.Company, with.UUID, subscribers.Settings{Headers: header, OAuth: &callback.OAuthChange{Remove: true}})
	noErr(t, err)
	_, err = b.Store.Update(t.Context(), b.Company, with.UUID, subscribers.Settings{OAuth: oauth()})
	refused("oauth beside a header", err)
}
