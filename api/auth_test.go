package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// concrete fills the parameters of a route.
func concrete(route string) string {
	for _, name := range []string{"uuid", "jobUuid", "companyUuid"} {
		route = strings.ReplaceAll(route, "{"+name+"}", uuid.NewString())
	}
	route = strings.NewReplacer("{month}", "7", "{year}", "2026").Replace(route)
	return strings.ReplaceAll(route, "{id}", "evt_1."+uuid.NewString())
}

func TestEveryRouteAsksForItsToken(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := uuid.New()
	expired := h.expired()
	_, all, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	for route, operations := range all {
		for method, op := range operations {
			target := concrete(route)
			if !strings.HasPrefix(route, "/api/") {
				h.call(method, target, "", noToken)
				continue
			}
			if len(op.scopes) == 0 {
				t.Errorf("%s %s asks for no scope", method, route)
			}
			a := h.call(method, target, "", noToken).want(http.StatusUnauthorized, "TOKEN_REQUIRED")
			if got := a.Header().Get("WWW-Authenticate"); got != `Bearer realm="spendhook"` {
				t.Errorf("WWW-Authenticate %q", got)
			}
			for _, bad := range []string{"Bearer garbage", "Bearer", "Basic dTpw", "Bearer " + expired, "Bearer " + h.token + "x", "Bearer " + strings.Repeat("x", 9000)} {
				a := h.call(method, target, "", header("Authorization", bad)).want(http.StatusUnauthorized, "TOKEN_INVALID")
				if !strings.Contains(a.Header().Get("WWW-Authenticate"), `error="invalid_token"`) {
					t.Errorf("WWW-Authenticate %q", a.Header().Get("WWW-Authenticate"))
				}
			}
			a = h.call(method, target, "", bearer(h.mint(&h.company, without(op.scopes[0])))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
			if !strings.Contains(a.Header().Get("WWW-Authenticate"), `scope="`+op.scopes[0]+`"`) {
				t.Errorf("WWW-Authenticate %q", a.Header().Get("WWW-Authenticate"))
			}
			if a := h.call(method, target, "", bearer(h.mint(&other, allScopes))); a.Code == http.StatusUnauthorized || a.Code >= 500 {
				t.Errorf("%s %s with another company's token: %d", method, route, a.Code)
			}
			if _, named := op.query["companyUuid"]; named {
				h.call(method, target+"?companyUuid="+other.String(), foreignBody(op)).want(http.StatusForbidden, "COMPANY_MISMATCH")
			}
		}
	}
	for _, secret := range []string{h.token, expired, "garbage"} {
		if h.seen.count(secret) > 0 {
			t.Error("an answer or a log line repeats a token")
		}
	}
}

// foreignBody passes the decoder of op.
func foreignBody(op *operation) string {
	if op.id == "recoverSubscriber" {
		return `{"since":"2026-11-01T00:00:00Z"}`
	}
	return ""
}

func without(scope string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(allScopes+" platform operator", scope, "")), " ")
}
