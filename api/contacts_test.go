package api

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"spendhook/api/gen"
	"spendhook/internal/egress"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
)

func stored(prefix, address string) string {
	sum := sha256.Sum256([]byte(address))
	return prefix + hex.EncodeToString(sum[:16])
}

func TestContactsHaveStates(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client, func(o *Options) {
		domain := domainWith(t, client, slog.New(slog.DiscardHandler), egress.New(egress.Options{AllowLoopback: true}), subscribers.StoreOptions{Mail: true})
		o.Subscribers, o.Registry, o.Challenger = domain.Subscribers, domain.Registry, domain.Challenger
	})
	body := `"name":"A","events":["A"],"contacts":["Ops@Example.com","https://chat.example.com/services/hunter22"]`
	made := h.call("POST", "/api/v1/subscribers", `{"callbackUrl":"https://example.com/a",`+body+`}`).want(http.StatusCreated)
	sub := as[gen.Subscriber](made)
	path := "/api/v1/subscribers/" + sub.UUID.String()
	states := func(got gen.Subscriber) string {
		t.Helper()
		if got.Contacts == nil {
			return ""
		}
		var all strings.Builder
		for _, c := range *got.Contacts {
			fmt.Fprintf(&all, "%s %s, ", c.Address, c.State)
		}
		return all.String()
	}
	chat := (*sub.Contacts)[1].Address
	want := "ops@example.com unconfirmed, " + chat + " unconfirmed, "
	if got := states(sub); got != want || !strings.HasPrefix(chat, "https://chat.example.com/***") {
		t.Errorf("created: %s", got)
	}
	if err := client.HSet(t.Context(), layout.ContactsKey(h.company), stored("c:", "ops@example.com"), "1", stored("u:", chat), "1").Err(); err != nil {
		t.Fatal(err)
	}
	want = "ops@example.com confirmed, " + chat + " unsubscribed, "
	for _, answer := range []answer{h.call("GET", path, ""), h.call("PATCH", path, `{"name":"B"}`), h.call("POST", path+"/rotate-secret", "")} {
		if got := states(as[gen.Subscriber](answer.want(http.StatusOK))); got != want {
			t.Errorf("%s", got)
		}
	}
	page := as[struct{ Content []gen.Subscriber }](h.call("GET", "/api/v1/subscribers", "").want(http.StatusOK))
	if got := states(page.Content[0]); got != want {
		t.Errorf("listed: %s", got)
	}
	if got := states(as[gen.Subscriber](h.call("PATCH", path, `{"contacts":["`+chat+`"]}`).want(http.StatusOK))); got != chat+" unsubscribed, " {
		t.Errorf("what is shown: %s", got)
	}
	h.call("PATCH", path, `{"contacts":["a@example.com\r\nBcc: b@example.com"]}`).want(http.StatusBadRequest, "VALIDATION_ERROR")
	h.call("PATCH", path, `{"contacts":["a@b.example","b@b.example","c@b.example","d@b.example","e@b.example","f@b.example"]}`).want(http.StatusBadRequest, "VALIDATION_ERROR")
	if got := as[gen.Subscriber](h.call("PATCH", path, `{"contacts":[]}`).want(http.StatusOK)); got.Contacts != nil {
		t.Errorf("removed: %s", states(got))
	}
	if h.seen.count("hunter22") > 0 {
		t.Error("the URL of a chat is logged")
	}
}

func TestLinksOfContactsNeedNoToken(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, path := range []string{"/contacts/confirm", "/contacts/unsubscribe?t=x", "/contacts/", "/contacts/a/b"} {
		for _, method := range []string{"GET", "POST", "HEAD"} {
			if a := h.call(method, path, "", bearer("")); a.Code != http.StatusNotFound || !strings.HasPrefix(a.Header().Get("Content-Type"), "text/html") || a.Header().Get("Content-Security-Policy") == "" {
				t.Errorf("%s %s: %d %v", method, path, a.Code, a.Header())
			}
		}
	}
	if a := h.call("DELETE", "/contacts/confirm", "", bearer("")); a.Code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d", a.Code)
	}
}
