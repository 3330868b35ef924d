package api

import (
	"crypto/sha256"
	"crypto/x509"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/internal/devca"
	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/layout"
)

func TestHeadersAreTakenAndNeverShown(t *testing.T) {
	t.Parallel()
	h := setup(t)
	made := h.call("POST", "/api/v1/subscribers",
		`{"name":"Books","callbackUrl":"https://hooks.example.com/h","events":["A"],"headers":{"authorization":"Bearer hunter22","X-Tenant":"blue-hunter22"}}`,
		header("Idempotency-Key", "headers-1")).want(http.StatusCreated)
	sub := as[gen.SubscriberWithSecret](made)
	path := "/api/v1/subscribers/" + sub.UUID.String()
	hidden := map[string]string{"Authorization": "***", "X-Tenant": "***"}
	wantShown := func(a answer, got *map[string]string, want map[string]string) {
		t.Helper()
		if got == nil || !maps.Equal(*got, want) || strings.Contains(a.Body.String(), "hunter22") {
			t.Errorf("shown %s", a.Body)
		}
	}
	wantShown(made, sub.Headers, hidden)
	read := h.call("GET", path, "").want(http.StatusOK)
	wantShown(read, as[gen.Subscriber](read).Headers, hidden)
	list := h.call("GET", "/api/v1/subscribers", "").want(http.StatusOK)
	wantShown(list, as[gen.SubscriberPage](list).Content[0].Headers, hidden)
	rotated := h.call("POST", path+"/rotate-secret", "").want(http.StatusOK)
	wantShown(rotated, as[gen.SubscriberWithSecret](rotated).Headers, hidden)

	changed := h.call("PATCH", path, `{"headers":{"AUTHORIZATION":null,"X-New":"green-hunter22"}}`).want(http.StatusOK)
	wantShown(changed, as[gen.Subscriber](changed).Headers, map[string]string{"X-New": "***", "X-Tenant": "***"})
	none := h.call("PATCH", path, `{"headers":{"X-New":null,"X-Tenant":null}}`).want(http.StatusOK)
	if as[gen.Subscriber](none).Headers != nil {
		t.Errorf("without headers: %s", none.Body)
	}
	if h.seen.count("hunter22") > 0 {
		t.Error("a value stands in an answer or in the log")
	}
}

// insiders are internal addresses: loopback, private and link-local ones in every notation,
// and the metadata address of clouds.
var insiders = []string{
	"127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378::1",
	"10.1.2.3", "fd00::1", "100.64.0.1", "169.254.169.254", "fe80::1", "224.0.0.1",
}

// The host of a subscriber resolved to a public address at registration and resolves to an
// internal one at each test delivery. No test connects, and no answer shows the address.
func TestATestDeliveryToARebindingNameMakesNoConnection(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	inside := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(inside.Close)
	inside.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	inside.Start()
	guard := egress.New(egress.Options{Resolver: dnstest.Resolver(t, append([]string{"93.184.216.34"}, insiders...)...)})
	h := setup(t, func(o *Options) {
		guarded := domainBehind(t, redistest.New(t), o.Logger, guard, guard.Check)
		o.Subscribers, o.Inspector = guarded.Subscribers, guarded.Inspector
	})
	sub := create(h, strings.Replace(inside.URL, "127.0.0.1", "rebind.example.com", 1))
	for _, address := range insiders {
		a := h.call("POST", "/api/v1/subscribers/"+sub.UUID.String()+"/test", "").want(http.StatusOK)
		got := as[gen.TestResult](a)
		if got.Delivered || got.Attempt.Error != gen.ErrorClass(attempt.ClassRefusedAddress) || got.Attempt.StatusCode != nil || strings.Contains(a.Body.String(), address) {
			t.Errorf("%s: %s", address, a.Body)
		}
	}
	if n := connections.Load(); n > 0 {
		t.Errorf("%d connections were made", n)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	eventually(t, func() bool { return connections.Load() == 1 }) // it does count
}

func TestBadHeadersAreAnsweredByName(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for body, want := range map[string]string{
		`{"Webhook-Id":"x"}`:                          "/headers/Webhook-Id",
		`{"Host":"x"}`:                                "/headers/Host",
		`{"X-A":"***"}`:                               "/headers/X-A",
		`{"X-A":"v\r\nX-B: hunter22"}`:                "/headers/X-A",
		`{"X-A":"1","x-a":"2"}`:                       "/headers/x-a",
		`{"not a name":"hunter22"}`:                   "/headers",
		`{"X-A":7}`:                                   "/headers/X-A",
		`"hunter22"`:                                  "/headers",
		`{"X-A":"1","X-A":"2"}`:                       "",
		`{"X-A":"` + strings.Repeat("v", 5000) + `"}`: "/headers/X-A",
	} {
		a := h.call("POST", "/api/v1/subscribers", `{"name":"B","callbackUrl":"https://h.example.com","events":["A"],"headers":`+body+`}`).want(http.StatusBadRequest)
		p := as[gen.Problem](a)
		if want != "" && (len(p.Errors) == 0 || p.Errors[0].Field != want) {
			t.Errorf("%.50s: %s, want a problem with %s", body, a.Body, want)
		}
		if strings.Contains(a.Body.String(), "hunter22") {
			t.Errorf("%.50s: the value is repeated: %s", body, a.Body)
		}
	}
}

func certificateBody(t *testing.T, name string) (string, devca.Pair) {
	t.Helper()
	now := time.Now()
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(devca.Leaf{Name: name, Usage: x509.ExtKeyUsageClientAuth, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(gen.EgressCertificateInput{CertificateChain: string(pair.Cert), PrivateKey: string(pair.Key)})
	if err != nil {
		t.Fatal(err)
	}
	return string(body), pair
}

func TestEgressCertificate(t *testing.T) {
	t.Parallel()
	h := setup(t)
	path := "/api/v1/egress-certificate"
	h.call("GET", path, "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	h.call("DELETE", path, "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	body, pair := certificateBody(t, "spendhook for Acme")
	set := as[gen.EgressCertificate](h.call("PUT", path, body).want(http.StatusOK))
	got := as[gen.EgressCertificate](h.call("GET", path, "").want(http.StatusOK))
	if got != set || got.Subject != "CN=spendhook for Acme" || got.CompanyUUID != h.company || len(got.Thumbprint) != 43 {
		t.Errorf("set %+v, read %+v", set, got)
	}
	again, _ := certificateBody(t, "another")
	h.call("PUT", path, again).want(http.StatusOK)
	if got := as[gen.EgressCertificate](h.call("GET", path, "").want(http.StatusOK)); got.Subject != "CN=another" {
		t.Errorf("replaced by %+v", got)
	}
	h.call("DELETE", path, "").want(http.StatusNoContent)
	h.call("GET", path, "").want(http.StatusNotFound)
	if key := strings.Split(string(pair.Key), "\n")[1]; h.seen.count(key) > 0 {
		t.Error("the key stands in an answer or in the log")
	}
}

func TestCertificateOfASubscriber(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks)
	path := "/api/v1/subscribers/" + sub.UUID.String() + "/egress-certificate"
	unknown := "/api/v1/subscribers/" + uuid.NewString() + "/egress-certificate"
	body, pair := certificateBody(t, "spendhook for Books")
	for method, sent := range map[string]string{"GET": "", "PUT": body, "DELETE": ""} {
		h.call(method, unknown, sent).want(http.StatusNotFound, "SUBSCRIBER_NOT_FOUND")
	}
	h.call("GET", path, "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	h.call("DELETE", path, "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	set := as[gen.EgressCertificate](h.call("PUT", path, body).want(http.StatusOK))
	got := as[gen.EgressCertificate](h.call("GET", path, "").want(http.StatusOK))
	if got.Thumbprint != set.Thumbprint || got.Subject != "CN=spendhook for Books" || *got.SubscriberUUID != sub.UUID {
		t.Errorf("set %+v, read %+v", set, got)
	}
	h.call("GET", "/api/v1/egress-certificate", "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	h.call("DELETE", path, "").want(http.StatusNoContent)
	if key := strings.Split(string(pair.Key), "\n")[1]; h.seen.count(key) > 0 {
		t.Error("the key stands in an answer or in the log")
	}
	entries := h.audited("target=" + sub.UUID.String())
	var actions []string
	for _, e := range entries {
		actions = append(actions, e.Action)
		if strings.HasPrefix(e.Action, "egress-certificate.") && (e.Target.Kind != "egress_certificate" || !slices.Equal(e.Target.Ids, []string{sub.UUID.String()})) {
			t.Errorf("%s: target %+v", e.Action, e.Target)
		}
	}
	if !slices.Contains(actions, "egress-certificate.set") || !slices.Contains(actions, "egress-certificate.delete") {
		t.Errorf("audited %v", actions)
	}
}

// A stored certificate that is damaged can be replaced or deleted, and its subscriber is shown.
func TestADamagedCertificate(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	sub := create(h, hooks)
	subscriber := "/api/v1/subscribers/" + sub.UUID.String()
	body, _ := certificateBody(t, "spendhook for Books")
	for path, field := range map[string]string{
		"/api/v1/egress-certificate":       layout.CertificateFieldOf(uuid.Nil),
		subscriber + "/egress-certificate": layout.CertificateFieldOf(sub.UUID),
	} {
		damage := func() {
			if err := client.HSet(t.Context(), layout.CompanyKey(h.company), field, "{").Err(); err != nil {
				t.Fatal(err)
			}
			h.call("GET", path, "").want(http.StatusConflict, "EGRESS_CERTIFICATE_DAMAGED")
		}
		damage()
		if shown := as[gen.Subscriber](h.call("GET", subscriber, "").want(http.StatusOK)); shown.UUID != sub.UUID {
			t.Errorf("%+v", shown)
		}
		if list := as[gen.SubscriberPage](h.call("GET", "/api/v1/subscribers", "").want(http.StatusOK)); len(list.Content) != 1 {
			t.Errorf("%+v", list)
		}
		h.call("PUT", path, body).want(http.StatusOK)
		h.call("GET", path, "").want(http.StatusOK)
		damage()
		h.call("DELETE", path, "").want(http.StatusNoContent)
		h.call("GET", path, "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	}
}

func TestBadEgressCertificates(t *testing.T) {
	t.Parallel()
	h := setup(t)
	body, _ := certificateBody(t, "c")
	path := "/api/v1/egress-certificate"
	h.call("PUT", path, body, bearer(h.mint(&h.company, "subscribers:read"))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	h.call("PUT", path, body, bearer(h.mint(nil, "platform subscribers:write"))).want(http.StatusBadRequest, "VALIDATION_ERROR")
	h.call("PUT", path, `{"certificateChain":"hello","privateKey":"hunter22"}`).want(http.StatusBadRequest, "VALIDATION_ERROR")
	h.call("PUT", path, `{"certificateChain":"x","privateKey":"hunter22","typo":1}`).want(http.StatusBadRequest)
	h.call("PUT", path, `{"certificateChain":1,"privateKey":["hunter22"]}`).want(http.StatusBadRequest)
	h.call("PUT", path, "").want(http.StatusBadRequest)
	h.call("POST", path, body).want(http.StatusMethodNotAllowed)
	h.call("GET", path, "").want(http.StatusNotFound)
	if h.seen.count("hunter22") > 0 {
		t.Error("what was sent as the key stands in an answer or in the log")
	}
}

func TestNoCertificateIsStoredWithoutMemory(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client, func(o *Options) {
		o.Certificates = certificate.New(certificate.Options{
			Client: client, Keyring: sealtest.Keyring(), Full: func(uuid.UUID) bool { return true },
		})
	})
	body, _ := certificateBody(t, "c")
	for _, path := range []string{"/api/v1/egress-certificate", "/api/v1/subscribers/" + create(h, hooks).UUID.String() + "/egress-certificate"} {
		h.call("PUT", path, body).want(http.StatusServiceUnavailable, "STORAGE_FULL")
		h.call("GET", path, "").want(http.StatusNotFound, "NO_EGRESS_CERTIFICATE")
	}
}

// The stored answer of create or rotate is sealed in Redis, and can still be repeated.
func TestAKeptAnswerWithASecretIsSealed(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	body := `{"name":"Books","callbackUrl":"https://hooks.example.com/i","events":["A"]}`
	first := h.call("POST", "/api/v1/subscribers", body, header("Idempotency-Key", "k")).want(http.StatusCreated)
	second := h.call("POST", "/api/v1/subscribers", body, header("Idempotency-Key", "k")).want(http.StatusCreated)
	if first.Body.String() != second.Body.String() {
		t.Error("the kept answer is another one")
	}
	path := "/api/v1/subscribers/" + as[gen.SubscriberWithSecret](first).UUID.String() + "/rotate-secret"
	h.call("POST", path, "", header("Idempotency-Key", "r")).want(http.StatusOK)
	kept := client.Keys(t.Context(), "sh:*:idem:*").Val()
	if len(kept) != 2 {
		t.Fatalf("%d answers are kept, want 2", len(kept))
	}
	for _, key := range kept {
		if saved := client.Get(t.Context(), key).Val()[sha256.Size+16:]; !seal.IsSealed(saved) {
			t.Errorf("kept in clear: %s", saved)
		}
	}
}

// Any valid token reads the addresses, and so does a request without a token at the well-known path.
func TestEgressAddresses(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	var list atomic.Pointer[[]egress.Source]
	list.Store(&[]egress.Source{})
	h := setup(t, func(o *Options) {
		o.Now = func() time.Time { return now }
		o.EgressAddresses = func() []egress.Source { return *list.Load() }
	})
	const path, wellKnown = "/api/v1/egress-addresses", "/.well-known/egress-addresses.json"
	h.call("GET", path, "").want(http.StatusNotFound, "NO_EGRESS_ADDRESSES")
	h.call("GET", wellKnown, "", noToken).want(http.StatusNotFound, "NO_EGRESS_ADDRESSES")

	one := netip.MustParsePrefix("203.0.113.7/32")
	list.Store(&[]egress.Source{
		{Range: one, Until: now.Add(time.Millisecond)},
		{Range: netip.MustParsePrefix("203.0.113.6/32"), Until: now},
		{Range: netip.MustParsePrefix("2001:db8::/64"), From: now.Add(time.Hour).In(time.FixedZone("", 3600))},
	})
	const want = `{"addresses":[{"cidr":"203.0.113.7/32","validUntil":"2026-12-01T00:00:00.001Z"},{"cidr":"2001:db8::/64","validFrom":"2026-12-01T01:00:00.000Z"}]}`
	for what, a := range map[string]answer{
		"a company's token":                  h.call("GET", path, ""),
		"a company's token with one scope":   h.call("GET", path, "", bearer(h.mint(&h.company, "billing:read"))),
		"a token of no company":              h.call("GET", path, "", bearer(h.mint(nil, "platform"))),
		"no token, at the well-known path":   h.call("GET", wellKnown, "", noToken),
		"a bad token at the well-known path": h.call("GET", wellKnown, "", bearer("x")),
	} {
		if got := a.want(http.StatusOK).Body.String(); got != want {
			t.Errorf("%s: %s", what, got)
		}
	}
	h.call("GET", path, "", noToken).want(http.StatusUnauthorized, "TOKEN_REQUIRED")
	public, jwks := h.call("GET", wellKnown, "", noToken), h.call("GET", "/.well-known/jwks.json", "", noToken)
	if got := public.Header().Get("Cache-Control"); got == "" || got != jwks.Header().Get("Cache-Control") {
		t.Errorf("Cache-Control %q, of the keys %q", got, jwks.Header().Get("Cache-Control"))
	}
	if got := h.call("GET", path, "").Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control %q of an answer to a token", got)
	}

	list.Store(&[]egress.Source{{Range: one, Until: now}})
	if got := h.call("GET", path, "").want(http.StatusOK).Body.String(); got != `{"addresses":[]}` {
		t.Errorf("after the end of the last range: %s", got)
	}
}
