package subscribers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/subscriberstest"
)

type secrets = map[string]secret.Text

// settings are what sets the headers.
func settings(headers secrets) map[string]*secret.Text {
	changes := map[string]*secret.Text{}
	for name, value := range headers {
		changes[name] = &value
	}
	return changes
}

func TestHeadersAreKeptUnderCanonicalNames(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/")
	in.Headers = settings(secrets{"x-api-KEY": "v 1", "AUTHORIZATION": "Basic dTpw", "X_Under": "\"quoted\"\t~"})
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	wantHeaders(t, s, "Authorization=Basic dTpw", "X-Api-Key=v 1", "X_under=\"quoted\"\t~")
	read, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	wantHeaders(t, read, "Authorization=Basic dTpw", "X-Api-Key=v 1", "X_under=\"quoted\"\t~")
	if raw := b.raw(t, s); strings.Contains(raw, "dTpw") || strings.Contains(raw, "quoted") {
		t.Errorf("stored in clear: %s", raw)
	}
}

func wantHeaders(t *testing.T, s subscribers.Subscriber, want ...string) {
	t.Helper()
	var got []string
	for _, h := range s.Headers {
		got = append(got, h.Name+"="+h.Value.Reveal())
	}
	if !slices.Equal(got, want) {
		t.Errorf("headers %q, want %q", got, want)
	}
}

func TestAnUpdateChangesTheHeadersItNames(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/")
	in.Headers = settings(secrets{"X-A": "1", "X-B": "2", "X-C": "3"})
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	s, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Headers: map[string]*secret.Text{
		"x-a": new(secret.Text("one")), "X-B": nil, "X-D": new(secret.Text("4")), "X-None": nil,
	}})
	noErr(t, err)
	wantHeaders(t, s, "X-A=one", "X-C=3", "X-D=4")
	s, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: new("Other"), Headers: map[string]*secret.Text{}})
	noErr(t, err)
	wantHeaders(t, s, "X-A=one", "X-C=3", "X-D=4")
}

// A change of the URL to another origin must set or remove all headers.
func TestHeadersAreBoundToTheirOrigin(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/a")
	in.Headers = settings(secrets{"X-A": "1", "X-B": "2"})
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	move := func(to string, headers map[string]*secret.Text) error {
		s, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{CallbackURL: &to, Headers: headers})
		return err
	}
	noErr(t, move("https://EXAMPLE.com:443/b?c", nil))
	wantHeaders(t, s, "X-A=1", "X-B=2")
	kept := s
	for _, to := range []string{"https://evil.example/b", "https://example.com:8443/b", "https://example.com.evil.example/"} {
		for _, headers := range []map[string]*secret.Text{nil, {"X-C": new(secret.Text("3"))}, {"x-a": nil}} {
			if got := subscriberstest.Codes(t, move(to, headers)); !strings.Contains(got, "/headers/X-B REQUIRED") {
				t.Errorf("%s: %s", to, got)
			}
			s = kept
		}
	}
	noErr(t, move("https://new.example/", map[string]*secret.Text{"x-a": new(secret.Text("1")), "X-B": nil}))
	wantHeaders(t, s, "X-A=1")
	noErr(t, move("https://new.example/", map[string]*secret.Text{"X-A": nil}))
	noErr(t, move("https://newer.example/", nil))
}

func TestBadHeadersAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/s")
	many := secrets{}
	for i := range 21 {
		many[fmt.Sprintf("X-%d", i)] = "v"
	}
	for want, headers := range map[string]secrets{
		"headers TOO_MANY":       many,
		"/headers/HOST RESERVED": {"HOST": "v"},
	} {
		in := b.Settings("https://example.com/new")
		in.Headers = settings(headers)
		_, err := b.Store.Create(t.Context(), b.Company, in)
		if got := subscriberstest.Codes(t, err); got != want {
			t.Errorf("create: %s, want %s", got, want)
		}
		_, err = b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Headers: settings(headers)})
		if got := subscriberstest.Codes(t, err); got != want {
			t.Errorf("update: %s, want %s", got, want)
		}
	}
	after, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	wantHeaders(t, after)
}
