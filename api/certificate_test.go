package api

import (
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/auth"
	"spendhook/internal/clientcert"
	"spendhook/internal/devca"
	"spendhook/internal/peer"
)

// The address that requests of these tests come from is a proxy's.
var testProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

func newCA(t *testing.T) *devca.Authority {
	t.Helper()
	ca, err := devca.New("test CA", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func clientCert(t *testing.T, ca *devca.Authority) *x509.Certificate {
	t.Helper()
	pair, err := ca.Issue(devca.Leaf{
		Name: "client", Usage: x509.ExtKeyUsageClientAuth, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf
}

func withCert(cert *x509.Certificate) option {
	return header("Client-Cert", ":"+base64.StdEncoding.EncodeToString(cert.Raw)+":")
}

func from(address string) option {
	return func(r *http.Request) { r.RemoteAddr = address }
}

// certificateSwitches are the settings of a deployment.
func certificateSwitches() map[string]bool {
	return map[string]bool{
		"subscribers": true, "reimbursements": true,
		"events": false, "deliveries": false, "cards": false, "locations": false, "billing": false, "audit": false, "clients": false, "console": false,
	}
}

func setupMutual(t *testing.T) (*harness, *devca.Authority) {
	t.Helper()
	ca := newCA(t)
	pool := ca.Pool()
	return setup(t, func(o *Options) {
		o.Peers = peer.New(peer.Options{Proxies: testProxies, Authorities: func() *x509.CertPool { return pool }, RefuseClear: true})
		o.CertificateRequired = certificateSwitches()
	}), ca
}

// mintBound returns a token that is valid only with cert.
func (h *harness) mintBound(cert *x509.Certificate) string {
	h.t.Helper()
	token, err := auth.Mint(h.keys, auth.Grant{
		Subject: "test", Company: &h.company, Scopes: strings.Fields(allScopes), TTL: time.Hour,
		Thumbprint: clientcert.Thumbprint(cert),
	}, time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	return token
}

// concrete fills the parameters of a route.
func concrete(route string) string {
	for _, name := range []string{"uuid", "jobUuid", "companyUuid"} {
		route = strings.ReplaceAll(route, "{"+name+"}", uuid.NewString())
	}
	route = strings.NewReplacer("{name}", "A", "{clientId}", "shc_1", "{month}", "7", "{year}", "2026").Replace(route)
	return strings.ReplaceAll(route, "{id}", "evt_1."+uuid.NewString())
}

// TestCertificateIsRequiredByGroup walks every operation of the document with no
// certificate, a good one, and another one than that of the token.
func TestCertificateIsRequiredByGroup(t *testing.T) {
	t.Parallel()
	h, ca := setupMutual(t)
	with, bound := withCert(clientCert(t, ca)), bearer(h.mintBound(clientCert(t, ca)))
	all := documentedRoutes(t)
	required := map[string]int{}
	for route, operations := range all {
		for method, op := range operations {
			if op.public {
				h.call(method, concrete(route), "", noToken)
				continue
			}
			need := strings.HasPrefix(route, "/api/v1/subscribers") || strings.HasPrefix(route, "/api/v1/webhook-keys") || route == "/api/v1/egress-certificate" || strings.HasPrefix(route, "/api/v3/reimbursements") ||
				route == "/api/v1/console-links" // the token's scopes reach subscribers
			right := bearer(h.tokenFor(op))
			a := h.call(method, concrete(route), "", right)
			if refused := a.Code == http.StatusForbidden && a.problem().Code == "CLIENT_CERTIFICATE_REQUIRED"; refused != need {
				t.Errorf("%s %s without a certificate: %d", method, route, a.Code)
			}
			if a := h.call(method, concrete(route), "", right, with); a.Code == http.StatusForbidden || a.Code == http.StatusUnauthorized {
				t.Errorf("%s %s with one: %d %s", method, route, a.Code, a.Body)
			}
			h.call(method, concrete(route), "", noToken).want(http.StatusUnauthorized, "TOKEN_REQUIRED")
			h.call(method, concrete(route), "", bound).want(http.StatusUnauthorized, "TOKEN_INVALID")
			h.call(method, concrete(route), "", bound, with).want(http.StatusUnauthorized, "TOKEN_INVALID")
			if need {
				required[op.group]++
			}
		}
	}
	if required["subscribers"] < 10 || required["reimbursements"] < 1 || required["console"] != 1 || len(required) != 3 {
		t.Errorf("operations that need a certificate: %v", required)
	}
}

func TestBoundTokenNeedsItsCertificate(t *testing.T) {
	t.Parallel()
	h, ca := setupMutual(t)
	mine, other := clientCert(t, ca), clientCert(t, ca)
	bound := h.mintBound(mine)
	for _, path := range []string{"/api/v1/subscribers", "/api/v1/events", "/api/v3/cards"} {
		for range 2 { // the second time from the cache of tokens
			h.call("GET", path, "", bearer(bound), withCert(mine)).want(http.StatusOK)
		}
		for name, how := range map[string]option{"no certificate": func(*http.Request) {}, "another's": withCert(other)} {
			a := h.call("GET", path, "", bearer(bound), how).want(http.StatusUnauthorized, "TOKEN_INVALID")
			if got := a.Header().Get("WWW-Authenticate"); !strings.Contains(got, `error="invalid_token"`) {
				t.Errorf("%s with %s: WWW-Authenticate %q", path, name, got)
			}
		}
		h.call("GET", path, "", withCert(other)).want(http.StatusOK) // bound to none
	}
}

func TestForwardedCertificates(t *testing.T) {
	t.Parallel()
	h, ca := setupMutual(t)
	good := withCert(clientCert(t, ca))
	const path = "/api/v1/subscribers"
	h.call("GET", path, "", good).want(http.StatusOK)
	// Spoofed: the machine itself may come in clear, but is no proxy.
	h.call("GET", path, "", good, from("127.0.0.1:1")).want(http.StatusForbidden, "CLIENT_CERTIFICATE_REQUIRED")
	h.call("GET", path, "", good, from("203.0.113.1:1")).want(http.StatusForbidden, "TLS_REQUIRED")
	h.call("GET", path, "", withCert(clientCert(t, newCA(t)))).want(http.StatusForbidden, "CLIENT_CERTIFICATE_INVALID")
	a := h.call("GET", path, "", header("Client-Cert", "hunter2")).want(http.StatusBadRequest, "CLIENT_CERTIFICATE_MALFORMED")
	if a.Header().Get("Connection") != "close" || a.Header().Get("X-Request-Id") == "" || h.seen.count("hunter2") > 0 {
		t.Errorf("%v %s", a.Header(), a.Body)
	}
	h.call("GET", "/openapi.json", "", from("203.0.113.1:1")).want(http.StatusForbidden, "TLS_REQUIRED")
}

// TestEveryOperationHasAGroup: a new route cannot escape the switches.
func TestEveryOperationHasAGroup(t *testing.T) {
	t.Parallel()
	switches := certificateSwitches()
	for _, operations := range documentedRoutes(t) {
		for _, op := range operations {
			if _, known := switches[op.group]; !op.public && !known {
				t.Errorf("%s: its tag %q is no group of client certificates", op.id, op.group)
			}
		}
	}
	delete(switches, "cards")
	h := setup(t, func(o *Options) { o.CertificateRequired = switches })
	h.call("GET", "/api/v3/cards", "").want(http.StatusForbidden, "CLIENT_CERTIFICATE_REQUIRED")
	h.call("GET", "/api/v1/locations", "").want(http.StatusOK)
}
