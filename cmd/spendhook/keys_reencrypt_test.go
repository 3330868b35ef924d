package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/internal/devca"
	"spendhook/internal/keycheck"
	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

func parsedKey(tb testing.TB, text string) seal.Key {
	tb.Helper()
	key, err := seal.ParseKey(text)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func ringOf(tb testing.TB, text string) *seal.Keyring {
	tb.Helper()
	ring, err := seal.New(parsedKey(tb, text))
	if err != nil {
		tb.Fatal(err)
	}
	return ring
}

// forms are the spellings in which a secret may stand in a dump: as it is, in
// hex, and in both alphabets of base64 wherever in a longer text it begins.
func forms(secret []byte) [][]byte {
	all := [][]byte{secret, []byte(hex.EncodeToString(secret)), bytes.ToUpper([]byte(hex.EncodeToString(secret)))}
	for shift := range 3 {
		padded := append(make([]byte, shift), secret...)
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := alphabet.EncodeToString(padded)
			all = append(all, []byte(text[(shift*8+5)/6:len(text)-1])) // without the letters that also encode neighbouring bytes
		}
	}
	return all
}

func holds(dump, secret []byte) bool {
	for _, form := range forms(secret) {
		if bytes.Contains(dump, form) {
			return true
		}
	}
	return false
}

// everythingStored returns the content of all stores: Redis's files, a dump of each key, and
// the SQL database.
func everythingStored(t *testing.T, server *redistest.Server, dir string) []byte {
	t.Helper()
	client, ctx := server.Client(), context.Background()
	var all bytes.Buffer
	for _, key := range client.Keys(ctx, "*").Val() {
		all.WriteString(key)
		all.WriteString(client.Dump(ctx, key).Val())
	}
	if err := client.Save(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	files, found := 0, func(path string) bool { return strings.Contains(filepath.Base(path), ".db") }
	for _, root := range []string{filepath.Dir(server.Socket()), dir} {
		err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || root == dir && !found(path) {
				return err
			}
			files++
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 5 { // RDB, AOF's base and increment, the spend database, the history
		t.Fatalf("only %d files", files)
	}
	return all.Bytes()
}

func TestNoSecretStandsInClearInAnyStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true, Args: []string{"--rdbcompression", "no"}})
	key := seal.NewKeyText()
	h := newInstallation(t, unhurried(server.URL()), "encryption: {key: "+key+"}\ndelivery: {sign_ed25519: true, schedule: [100ms]}\nhistory: {enabled: true}\n")
	d := h.start(t)

	// A receiver that repeats what it was sent, and fails, so that it is kept.
	accessToken := "access-token-" + uuid.NewString()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"access_token":"`+accessToken+`"}`)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "control-answer "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Api-Key"))
	}))
	t.Cleanup(echo.Close)

	secrets := map[string][]byte{
		"the bearer token": []byte("bearer-token-" + uuid.NewString()), "the API key": []byte("api-key-" + uuid.NewString()),
		"the client secret": []byte("client-secret-" + uuid.NewString()), "the URL of a chat": []byte("chat-" + uuid.NewString()), "the access token": []byte(accessToken),
		"the encryption key": func() []byte { k := parsedKey(t, key); return k.Secret[:] }(),
	}
	keep := func(what, secret string) {
		secrets[what] = []byte(secret)
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil {
			t.Fatal(err)
		}
		secrets[what+", decoded"] = raw
	}
	var sub gen.SubscriberWithSecret
	for i := range 2 {
		body := fmt.Sprintf(`{"name":"control-name","callbackUrl":"%s/%d/control-url","events":["PAYMENT_PAID"],"filter":"id != 'control-filter'","transform":"{'control-transform': id}","headers":{"Authorization":"Bearer %s","X-Api-Key":"%s"}}`,
			echo.URL, i, secrets["the bearer token"], secrets["the API key"])
		sendWithKey(t, d, "/api/v1/subscribers", body, fmt.Sprint("create", i), &sub)
		keep(fmt.Sprint("secret ", i), sub.Secret)
	}
	body := fmt.Sprintf(`{"name":"n","callbackUrl":"%[1]s/oauth","events":["PAYMENT_PAID"],"contacts":["%[1]s/%[3]s"],"oauth":{"tokenUrl":"%[1]s/token","clientId":"control-client","clientSecret":"%[2]s"}}`,
		echo.URL, secrets["the client secret"], secrets["the URL of a chat"])
	sendWithKey(t, d, "/api/v1/subscribers", body, "create oauth", &sub)
	keep("secret with oauth", sub.Secret)
	for i := range 2 {
		sendWithKey(t, d, "/api/v1/subscribers/"+sub.UUID.String()+"/rotate-secret", "", fmt.Sprint("rotate", i), &sub)
		keep(fmt.Sprint("rotated secret ", i), sub.Secret)
	}
	pair := clientPair(t)
	private := pair.PrivateKey.(*ecdsa.PrivateKey)
	scalar, err := private.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	secrets["the certificate's key"] = scalar
	for _, of := range []string{"", "/subscribers/" + sub.UUID.String()} {
		if status, _, answer := d.do(t, http.MethodPut, "/api/v1"+of+"/egress-certificate", certificateBody(t, pair)); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	d.cli(t, eventLines(0, 5, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	eventually(t, patience, "all attempts are recorded, and written to the history", func() bool {
		var list gen.DeliveryList
		status, _, text := d.do(t, http.MethodGet, "/api/v1/deliveries?status=DEAD&size=100", "")
		_, metrics := get(t, d.admin+"/metrics")
		return status == http.StatusOK && json.Unmarshal([]byte(text), &list) == nil && len(list.Content) == 15 &&
			strings.Contains(metrics, "\nspendhook_history_events_total 5\n")
	})
	signing, err := subscribers.NewStore(subscribers.StoreOptions{Client: server.Client(), Keyring: ringOf(t, key)}).SigningKeys(t.Context(), sub.CompanyUUID)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range signing {
		switch private := k.Private.(type) {
		case ed25519.PrivateKey:
			secrets["the seed "+k.ID] = private.Seed()
		case *ecdsa.PrivateKey:
			if secrets["the scalar "+k.ID], err = private.Bytes(); err != nil {
				t.Fatal(err)
			}
		}
	}

	keepBase64URL := func(what, secret string) {
		secrets[what] = []byte(secret)
		raw, err := base64.RawURLEncoding.DecodeString(secret)
		if err != nil {
			t.Fatal(err)
		}
		secrets[what+", decoded"] = raw
	}
	_, unused, _ := strings.Cut(d.consoleLink(t), "?link=")
	keepBase64URL("the secret of a link", unused)
	used := d.consoleLink(t)
	_, header := newVisitor(t, d.api).enter(used)
	cookie, err := http.ParseSetCookie(header.Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	keepBase64URL("the secret of a session", cookie.Value)
	_, used, _ = strings.Cut(used, "?link=")
	keepBase64URL("the secret of a used link", used)

	lines := strings.NewReplacer(`"Ann"`, `"control-user"`, `"Fuel"`, `"control-card"`, `"Taxi"`, `"control-reimbursement"`).Replace(spendLines())
	h.importData(t, lines, "-").want(t, exitOK, "imported 6  refused 0", "")

	dump := everythingStored(t, server, h.dir)
	for what, secret := range secrets {
		if holds(dump, secret) {
			t.Errorf("%s stands in a store in clear", what)
		}
	}
	// The search finds these texts in plain and within base64, as a control.
	statement := uuid.MustParse(statementUUID)
	for _, control := range []string{
		"control-name", "control-url", "control-filter", "control-transform", "control-client", "PAYMENT_PAID", "control-answer", "control-user", "control-card", "control-reimbursement",
		string(statement[:]), "console-session.open",
	} {
		if !holds(dump, []byte(control)) {
			t.Errorf("the search misses %s", control)
		}
	}
	for what, secret := range secrets {
		for _, shift := range []string{"", "x", "xx"} {
			planted := base64.StdEncoding.EncodeToString([]byte(shift + string(secret) + "tail"))
			if err := server.Client().Set(t.Context(), "planted", planted, 0).Err(); err != nil {
				t.Fatal(err)
			}
			if !holds([]byte(server.Client().Dump(t.Context(), "planted").Val()), secret) {
				t.Errorf("the search would miss %s in base64", what)
			}
		}
	}
	d.stop(t)
}

func sendWithKey(t *testing.T, d *running, path, body, key string, into any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.api+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+d.token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode > 299 {
		t.Fatalf("%d %s %v", response.StatusCode, text, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func clientPair(t *testing.T) tls.Certificate {
	t.Helper()
	now := time.Now()
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(devca.Leaf{Name: "client", Usage: x509.ExtKeyUsageClientAuth, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	both, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return both
}

// certificateBody is a request that sets a client certificate.
func certificateBody(t *testing.T, pair tls.Certificate) string {
	t.Helper()
	pkcs8, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]string{
		"certificateChain": pemText("CERTIFICATE", pair.Certificate[0]), "privateKey": pemText("PRIVATE KEY", pkcs8),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func clientInput(t *testing.T) certificate.Input {
	t.Helper()
	pair := clientPair(t)
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return certificate.Input{Chain: pemText("CERTIFICATE", pair.Certificate[0]), PrivateKey: pemText("PRIVATE KEY", der)}
}

func pemText(kind string, der []byte) string {
	text := base64.StdEncoding.EncodeToString(der)
	return "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n"
}

// sealedUnder counts the subscribers' secrets by the key they are sealed under.
func sealedUnder(t *testing.T, client redis.UniversalClient, id string) (n int) {
	t.Helper()
	for _, key := range client.Keys(t.Context(), "sh:{*}:s:*").Val() {
		for _, raw := range client.HGetAll(t.Context(), key).Val() {
			n += strings.Count(raw, "sealed1:"+id+":")
		}
	}
	return n
}

// killReencrypt runs the command through a proxy that stops at the hundredth secret, and kills it
// there.
func killReencrypt(t *testing.T, server *redistest.Server, args []string, newID string) {
	t.Helper()
	proxy := redistest.NewProxy(t, server)
	reached, killed := make(chan struct{}), make(chan struct{})
	var written atomic.Int64
	proxy.Follow(func(request [][]string, reply []byte) bool {
		if reply != nil || !strings.Contains(fmt.Sprint(request), "sealed1:"+newID+":") {
			return true
		}
		n := written.Add(1)
		if n == 100 {
			close(reached)
		}
		if n >= 100 {
			<-killed
		}
		return n < 100
	})
	defer close(killed)
	cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "--redis", proxy.URL())...)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reached:
	case <-time.After(patience):
		t.Error("it did not come to the hundredth secret")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// keys reencrypt is killed and run again. Then everything is encrypted with the new key. At no
// time can a daemon start that lacks a needed key.
func TestReencryptSurvivesAKill(t *testing.T) {
	t.Parallel()
	const companies, each = 30, 50
	const secrets = companies*each + companies // signing secrets, and a v1a key of each company
	server := redistest.Start(t, redistest.Options{})
	client := server.Client()
	before, after := seal.NewKeyText(), seal.NewKeyText()
	oldID, newID := parsedKey(t, before).ID, parsedKey(t, after).ID
	if err := keycheck.Verify(t.Context(), client, ringOf(t, before)); err != nil {
		t.Fatal(err)
	}
	store := subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: ringOf(t, before)})
	var one subscribers.Subscriber
	for range companies {
		company := uuid.New()
		for i := range each {
			var err error
			one, err = store.Create(t.Context(), company, subscribers.Settings{
				Name: new("n"), CallbackURL: new(fmt.Sprint("https://hooks.example.com/", i)), Events: new([]string{"A"}),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	both := newInstallation(t, unhurried(server.URL()), fmt.Sprintf("encryption: {key: %s, old_keys: [%s]}\n", after, before))
	fresh := newInstallation(t, unhurried(server.URL()), "encryption: {key: "+after+"}\n")
	reencrypt := func(h installation) []string {
		return []string{"keys", "reencrypt", "--redis", h.redis, "--data-dir", h.dir, "--config", filepath.Join(h.dir, "config.yml")}
	}

	command(t, "", append(reencrypt(both), "--dry-run")...).want(t, exitOK, fmt.Sprintf("%d secrets are still encrypted with key %s", secrets, oldID), "")
	command(t, "", reencrypt(fresh)...).want(t, exitFailure, "", "sealed under key "+oldID)

	killReencrypt(t, server, reencrypt(both), newID)
	if n := sealedUnder(t, client, newID); n == 0 || n == secrets {
		t.Fatalf("%d of %d were done when it was killed: this proves nothing", n, secrets)
	}
	refused := fresh.begin(t)
	refused.ended(t)
	if refused.code != exitFailure || !strings.Contains(refused.stderr.String(), "sealed under key "+oldID) {
		t.Errorf("a daemon without the old key: exit code %d\n%s", refused.code, refused.stderr)
	}

	again := command(t, "", reencrypt(both)...)
	again.want(t, exitOK, "all secrets are encrypted with the current key", newID)
	again.want(t, exitOK, "key "+oldID+" is no longer needed", "")
	if n := sealedUnder(t, client, oldID); n != 0 {
		t.Errorf("%d are still under the old key", n)
	}
	if _, err := certificate.New(certificate.Options{Client: client, Keyring: ringOf(t, before)}).Set(t.Context(), one.CompanyUUID, clientInput(t)); err != nil { // it ends within the hour
		t.Fatal(err)
	}
	command(t, "", reencrypt(both)...).want(t, exitOK, "encrypted 1 again\n", "")
	d := fresh.start(t)
	eventually(t, patience, "the metric and the log report the expiring certificate", func() bool {
		_, metrics := get(t, d.admin+"/metrics")
		return strings.Contains(metrics, "\nspendhook_egress_certificates_ending 1\n") && strings.Contains(d.stderr.String(), one.CompanyUUID.String())
	})
	d.stop(t)
	read, err := subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: ringOf(t, after)}).Get(t.Context(), one.CompanyUUID, one.UUID)
	if err != nil || read.Unusable() != nil || read.Secrets[0].Key != one.Secrets[0].Key {
		t.Errorf("%v, %v", err, read.Unusable())
	}
	command(t, "", reencrypt(fresh)...).want(t, exitOK, "encrypted 0 again", "")
}

// A lost key can be forgotten. Then the daemon starts without it.
func TestALostKeyCanBeForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	lost := seal.NewKeyText()
	if err := keycheck.Verify(t.Context(), server.Client(), ringOf(t, lost)); err != nil {
		t.Fatal(err)
	}
	h := newInstallation(t, unhurried(server.URL()), "")
	args := []string{"keys", "reencrypt", "--redis", h.redis, "--data-dir", h.dir}
	command(t, "", args...).want(t, exitFailure, "", "cannot decrypt the secrets in Redis")
	command(t, "", append(args, "--forget", "another")...).want(t, exitFailure, "", "does not know this key")
	command(t, "", append(args, "--forget", parsedKey(t, lost).ID)...).want(t, exitOK, "all secrets are encrypted with the current key", "")
	d := h.start(t)
	d.stop(t)
}
