package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

// An operator makes clients over the API, and each gets tokens until it is disabled.
func TestOAuthClients(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	operator := bearer(w.mint(nil, "operator platform events:read events:write"))
	const path = "/api/v1/oauth-clients"
	company := uuid.NewString()
	made := as[gen.OAuthClientWithSecret](w.call("POST", path, `{"name":"till","companyUuid":"`+company+`","scopes":["events:write","events:read"]}`, operator).want(http.StatusCreated))
	if made.ClientSecret == "" || !made.HasSecret || made.Disabled || made.CompanyUUID.String() != company || strings.Join(made.Scopes, " ") != "events:read events:write" {
		t.Errorf("%+v", made)
	}
	one := path + "/" + made.ClientID
	if got := w.call("GET", one, "", operator).want(http.StatusOK); strings.Contains(got.Body.String(), made.ClientSecret) || as[gen.OAuthClient](got).Name != "till" {
		t.Errorf("%s", got.Body)
	}
	first := as[gen.OAuthClientList](w.call("GET", path+"?size=1", "", operator).want(http.StatusOK))
	second := as[gen.OAuthClientList](w.call("GET", path+"?size=1&cursor="+first.NextCursor, "", operator).want(http.StatusOK))
	if len(first.Content) != 1 || len(second.Content) != 1 || second.NextCursor != "" || first.Content[0].ClientID == second.Content[0].ClientID {
		t.Errorf("two pages of one: %+v, %+v", first, second)
	}
	w.call("GET", path+"?cursor=x", "", operator).want(http.StatusBadRequest)

	token := func(secret string) answer {
		return w.call("POST", "/oauth/token", "grant_type=client_credentials", basicAuth(made.ClientID, secret), header("Content-Type", "application/x-www-form-urlencoded"))
	}
	token(made.ClientSecret).want(http.StatusOK)
	rotated := as[gen.OAuthClientWithSecret](w.call("POST", one+"/rotate-secret", `{"overlapSeconds":3600}`, operator).want(http.StatusOK))
	if rotated.ClientSecret == made.ClientSecret || rotated.OldSecretUntil == nil {
		t.Errorf("%+v", rotated)
	}
	token(made.ClientSecret).want(http.StatusOK)
	token(rotated.ClientSecret).want(http.StatusOK)
	if !as[gen.OAuthClient](w.call("PATCH", one, `{"disabled":true}`, operator).want(http.StatusOK)).Disabled {
		t.Error("it is not disabled")
	}
	token(rotated.ClientSecret).want(http.StatusUnauthorized)
	thumbprint := strings.Repeat("A", 43)
	bound := as[gen.OAuthClient](w.call("PATCH", one, `{"disabled":false,"certificates":["`+thumbprint+`"]}`, operator).want(http.StatusOK))
	if bound.Disabled || len(bound.Certificates) != 1 {
		t.Errorf("%+v", bound)
	}
	token(rotated.ClientSecret).want(http.StatusUnauthorized) // without that certificate
	w.call("DELETE", one, "", operator).want(http.StatusNoContent)
	for _, method := range []string{"GET", "DELETE"} {
		w.call(method, one, "", operator).want(http.StatusNotFound, "NOT_FOUND")
	}
	w.call("PATCH", one, `{}`, operator).want(http.StatusNotFound)
	w.call("POST", one+"/rotate-secret", "", operator).want(http.StatusNotFound)
}

// A caller cannot create a client with scopes that the caller lacks.
func TestOAuthClientsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	operator := bearer(w.mint(nil, "operator platform events:read"))
	for body, want := range map[string]string{
		`{"name":"n","scopes":["events:write"]}`:                                      "INSUFFICIENT_SCOPE",
		`{"name":"n","scopes":["events:read","cards:read"]}`:                          "INSUFFICIENT_SCOPE",
		`{"name":"n","scopes":["platform"],"companyUuid":"` + uuid.NewString() + `"}`: "VALIDATION_ERROR",
		`{"name":"n","scopes":[]}`:                                                    "VALIDATION_ERROR",
		`{"name":"\u0000","scopes":["events:read"]}`:                                  "VALIDATION_ERROR",
		`{"name":"n","scopes":["events:read"],"noSecret":true}`:                       "VALIDATION_ERROR",
		`{"name":"n","scopes":["events:read"],"certificates":["short"]}`:              "VALIDATION_ERROR",
		`{"name":"n","scopes":["events:read"],"secret":"mine"}`:                       "VALIDATION_ERROR",
		`{"name":"` + strings.Repeat("n", 256) + `","scopes":["events:read"]}`:        "VALIDATION_ERROR",
	} {
		status := http.StatusBadRequest
		if want == "INSUFFICIENT_SCOPE" {
			status = http.StatusForbidden
		}
		w.call("POST", "/api/v1/oauth-clients", body, operator).want(status, want)
	}
}
