package api

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := header(idempotencyHeader, "create 1")
	body := `{"name":"x","callbackUrl":"` + hooks + `","events":["A"]}`
	first := h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
	again := h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
	if first.Body.String() != again.Body.String() || again.Header().Get("Location") != first.Header().Get("Location") {
		t.Errorf("the answers differ: %s, then %s", first.Body, again.Body)
	}
	if first.Header().Get("X-Request-Id") == again.Header().Get("X-Request-Id") {
		t.Error("the second request has the first one's id")
	}
	h.call("POST", "/api/v1/subscribers", strings.Replace(body, "x", "y", 1), key).want(http.StatusUnprocessableEntity, "IDEMPOTENCY_KEY_REUSED")
	h.call("POST", "/api/v1/events", event("e"), key).want(http.StatusUnprocessableEntity)

	other := uuid.New()
	theirs := h.call("POST", "/api/v1/subscribers", body, key, bearer(h.mint(&other, allScopes))).want(http.StatusCreated)
	if as[gen.SubscriberWithSecret](theirs).CompanyUUID != other {
		t.Error("a company was given another's answer")
	}
	h.call("POST", "/api/v1/subscribers", body, header(idempotencyHeader, "create 2")).want(http.StatusConflict, "CALLBACK_URL_TAKEN")
	for _, bad := range []string{"", "é", strings.Repeat("k", 256)} {
		h.call("POST", "/api/v1/subscribers", body, header(idempotencyHeader, bad)).wantField(idempotencyHeader, "INVALID")
	}

	path := "/api/v1/subscribers/" + as[gen.SubscriberWithSecret](first).UUID.String()
	rotate := header(idempotencyHeader, "rotate")
	one, two := h.call("POST", path+"/rotate-secret", "", rotate), h.call("POST", path+"/rotate-secret", "", rotate)
	if one.Code != http.StatusOK || one.Body.String() != two.Body.String() {
		t.Errorf("rotated twice: %s, then %s", one.Body, two.Body)
	}
}

func TestIdempotencyKeyOfConcurrentRequests(t *testing.T) {
	t.Parallel()
	h := setup(t)
	body := `{"name":"x","callbackUrl":"` + hooks + `","events":["A"]}`
	var mu sync.Mutex
	bodies := map[string]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			a := h.call("POST", "/api/v1/subscribers", body, header(idempotencyHeader, "k"))
			mu.Lock()
			defer mu.Unlock()
			switch a.Code {
			case http.StatusCreated:
				bodies[a.Body.String()] = true
			case http.StatusConflict:
				if a.problem().Code != "IDEMPOTENCY_KEY_IN_PROGRESS" {
					t.Errorf("%s", a.Body)
				}
			default:
				t.Errorf("%d: %s", a.Code, a.Body)
			}
		})
	}
	wg.Wait()
	if len(bodies) != 1 {
		t.Errorf("%d different subscribers were answered", len(bodies))
	}
}
