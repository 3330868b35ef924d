package main

import (
	"crypto/x509"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/subscribers/layout"
)

// Dead letters are delivered: a single one, all of an event, and all of a subscriber.
func TestReplayDeadLetters(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\n").start(t)
	var broken atomic.Bool
	broken.Store(true)
	e := newEndpoint(t, func(string) int {
		if broken.Load() {
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	})
	sub := e.subscribe(t, d, "PAYMENT_PAID").UUID.String()
	began := time.Now()
	d.cli(t, eventLines(0, 3, began), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	eventually(t, patience, "all three are dead", func() bool {
		var list gen.DeliveryList
		d.read(t, "/api/v1/deliveries?status=DEAD", &list)
		return len(list.Content) == 3
	})
	broken.Store(false)

	d.cli(t, "", "delivery", "retry", "evt_0."+sub, "-o", "name").want(t, exitOK, "evt_0."+sub+"\n", "")
	e.awaits(t, 1)
	d.cli(t, "", "event", "replay", "evt_1").want(t, exitOK, "evt_1."+sub, "")
	e.awaits(t, 2)
	d.cli(t, "", "subscriber", "recover", sub, "--since", "1h", "--dry-run", "--wait").
		want(t, exitOK, "changed         1", "")
	d.cli(t, "", "subscriber", "recover", sub, "--since", began.Add(-time.Minute).Format(time.RFC3339), "--wait").
		want(t, exitOK, "COMPLETED", "")
}

const testCompany = "6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11"

// Every command does with one daemon what it says.
func TestResourceCommands(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\n")
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	d := h.start(t)
	e := newEndpoint(t, nil)
	ok := func(in string, args ...string) string {
		t.Helper()
		r := d.cli(t, "", args[0], args[1:]...)
		if r.want(t, exitOK, "", ""); !strings.Contains(squeezed(r.stdout), squeezed(in)) {
			t.Errorf("%v: want %q in\n%s", args, in, r.stdout)
		}
		return strings.TrimSpace(r.stdout)
	}
	operator := strings.TrimSpace(command(t, "", "token", "--data-dir", h.dir, "--scope", "operator platform").stdout)
	asOperator := func(in string, args ...string) {
		t.Helper()
		command(t, "", append(args, "--url", d.api, "--token-file", secretFile(t, operator))...).want(t, exitOK, in, "")
	}

	ok("POST "+d.api+"/api/v1/subscribers\n{", "subscriber", "create", "--name", "Books", "--callback-url", e.URL+"/hook", "--event", "PAYMENT_PAID", "--dry-run")
	ok("", "subscriber", "list", "-o", "name")
	headers := secretFile(t, `{"Authorization":"Bearer 4f1c"}`)
	created := ok(`"secret": "whsec_`, "subscriber", "create", "--name", "Books", "--callback-url", e.URL+"/hook", "--event", "PAYMENT_PAID", "--event", "CARD_ISSUED",
		"--filter", `metadata.amount != "0"`, "--rate-limit-per-second", "500", "--ordered=false", "--stop-on", "422", "--stop-on", "404", "--retry-schedule", "5,300", "--headers-file", headers, "-o", "json")
	var sub gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(created), &sub); err != nil || len(sub.Events) != 2 || sub.RateLimit == nil || !slices.Equal(*sub.StopOn, []int{404, 422}) || !slices.Equal(*sub.RetrySchedule, []int{5, 300}) || (*sub.Headers)["Authorization"] != "***" {
		t.Fatalf("%v: %s", err, created)
	}
	e.setSubscriber(t, sub.UUID, sub.Secret)
	id := sub.UUID.String()
	if got := ok("", "subscriber", "list", "--name", "book", "--enabled", "--events", "CARD_ISSUED", "-o", "name"); got != id {
		t.Errorf("listed %q, want %s", got, id)
	}
	ok("[]", "subscriber", "list", "--enabled=false", "-o", "json")
	ok("name: Books\n", "subscriber", "get", id, "-o", "yaml")
	ok("name                       Ledger\n", "subscriber", "update", id, "--name", "Ledger", "--no-rate-limit")
	oauth := secretFile(t, `{"tokenUrl":"https://login.example.com/token","clientId":"us","clientSecret":"hunter22"}`)
	if r := d.cli(t, "", "subscriber", "update", id, "--oauth-file", oauth); !strings.Contains(r.stderr, "Authorization") {
		t.Errorf("oauth beside a header: %+v", r)
	}
	without := secretFile(t, `{"Authorization":null}`)
	if got := ok(`"tokenUrl": "https://login.example.com/token"`, "subscriber", "update", id, "--oauth-file", oauth, "--headers-file", without, "-o", "json"); strings.Contains(got, "hunter22") {
		t.Errorf("the secret is shown: %s", got)
	}
	if got := ok("", "subscriber", "update", id, "--no-oauth", "-o", "json"); strings.Contains(got, "oauth") {
		t.Errorf("not removed: %s", got)
	}
	if got := ok(`"state": "unconfirmed"`, "subscriber", "update", id, "--contact", "https://8.8.8.8/services/hunter22", "-o", "json"); strings.Contains(got, "hunter22") {
		t.Errorf("the URL of a chat is shown: %s", got)
	}
	if got := ok("", "subscriber", "update", id, "--stop-on", "422", "--retry-schedule", "60,600", "-o", "json"); !strings.Contains(got, "422") || !strings.Contains(got, "600") {
		t.Errorf("with a schedule and a status of its own: %s", got)
	}
	if got := ok("", "subscriber", "update", id, "--no-stop-on", "--no-retry-schedule", "-o", "json"); strings.Contains(got, "422") || strings.Contains(got, "600") {
		t.Errorf("without them: %s", got)
	}
	if got := ok("", "subscriber", "update", id, "--no-contacts", "-o", "json"); strings.Contains(got, "contacts") {
		t.Errorf("not removed: %s", got)
	}
	ok("paused                     true", "subscriber", "pause", id)
	ok("paused                     false", "subscriber", "resume", id)
	ok("delivered                                 true", "subscriber", "test", id)

	ok("status  ACCEPTED", "event", "send", "--id", "evt_1", "--event", "PAYMENT_PAID", "--metadata", `{"amount":"12.50"}`)
	e.awaits(t, 2) // with the test
	eventually(t, patience, "it is delivered", func() bool {
		return strings.Contains(d.cli(t, "", "event", "get", "evt_1").stdout, "DELIVERED")
	})
	ok("evt_1  PAYMENT_PAID  DELIVERED", "event", "list", "--since", "1h", "--status", "DELIVERED")
	ok("evt_1."+id, "event", "deliveries", "evt_1", "-o", "name")
	ok("DELIVERED", "event", "explain", "evt_1")
	ok("evt_1  PAYMENT_PAID  true", "subscriber", "filter-test", id, "--filter", `metadata.amount == "12.50"`)
	ok("evt_1."+id, "delivery", "list", "--subscriber-uuid", id, "--status", "DELIVERED", "--all", "-o", "name")
	var event gen.Event
	d.read(t, "/api/v1/events/evt_1", &event)
	export := ok(`"id":"evt_1"`, "company", "export", event.CompanyUUID.String())
	for _, kind := range []string{"subscriber", "event", "delivery", "audit", "card", "location"} {
		if !strings.Contains(export, `{"kind":"`+kind+`","data":{`) {
			t.Errorf("the export has no %s", kind)
		}
	}
	ok("ATTEMPT  STARTED", "delivery", "get", "evt_1."+id)
	ok("total           1", "subscriber", "stats", id)
	ok("POST "+d.api+"/api/v1/events/evt_1/replay", "event", "replay", "evt_1", "--dry-run")
	ok("evt_1."+id, "event", "replay", "evt_1", "--subscriber-uuid", id, "-o", "name")
	eventually(t, patience, "it is delivered again", func() bool {
		return strings.Contains(d.cli(t, "", "delivery", "get", "evt_1."+id).stdout, "DELIVERED")
	})
	ok("changed     1", "delivery", "retry", "--status", "DELIVERED", "--since", "1h", "--dry-run")
	ok("changed     0", "delivery", "cancel", "--event", "PAYMENT_PAID", "--dry-run")
	d.cli(t, "", "delivery", "retry", "--status", "DELIVERED", "--since", "1h").want(t, exitUsage, "", "Retry all deliveries that match these filters (1)? Add --yes")
	if r := d.cli(t, "", "delivery", "cancel", "--yes"); r.code != exitUsage {
		t.Errorf("all deliveries would be cancelled: %+v", r)
	}
	ok("PAYMENT_PAID", "event-type", "list", "-o", "name")
	ok("fixed true", "event-type", "get", "DELIVERY_DEAD")
	schema, example := secretFile(t, `{"properties":{"amount":{"type":"string"}}}`), secretFile(t, `{"amount":"1.50"}`)
	documented := []string{"event-type", "put", "PAYMENT_PAID", "--description", "Paid.", "--schema-file", schema, "--example-file", example}
	asOperator("PUT "+d.api+"/api/v1/event-types/PAYMENT_PAID", append(documented, "--dry-run")...)
	asOperator("1.50", documented...)
	ok("schema.properties.amount.type string", "event-type", "get", "PAYMENT_PAID")
	d.cli(t, "", documented[0], documented[1:]...).want(t, exitNotAllowed, "", "INSUFFICIENT_SCOPE")
	asOperator("deleted", "event-type", "delete", "PAYMENT_PAID", "--yes")

	job := ok("", "subscriber", "recover", id, "--since", "1h", "--dry-run", "-o", "name")
	ok("COMPLETED", "job", "wait", job)
	ok("RECOVER", "job", "get", job)
	ok(job, "job", "list", "--subscriber-uuid", id, "--kind", "RECOVER", "-o", "name")
	d.cli(t, "", "job", "cancel", job, "--yes").want(t, exitFailure, "", "JOB_FINISHED")

	pair := clientPair(t)
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	chain, key := secretFile(t, pemText("CERTIFICATE", pair.Certificate[0])), secretFile(t, pemText("PRIVATE KEY", private))
	ok(id, "certificate", "set", chain, key, "--subscriber", id)
	ok(id, "certificate", "get", "--subscriber", id)
	d.cli(t, "", "certificate", "get").want(t, exitNotFound, "", "NO_EGRESS_CERTIFICATE")
	ok("deleted", "certificate", "delete", "--subscriber", id, "--yes")
	r := d.cli(t, "", "subscriber", "rotate-secret", id)
	r.want(t, exitUsage, "", "--yes")
	ok("whsec_", "subscriber", "rotate-secret", id, "--yes")
	ok("DELETE "+d.api, "subscriber", "delete", id, "--dry-run")
	ok("deleted", "subscriber", "delete", id, "--yes")
	d.cli(t, "", "subscriber", "get", id).want(t, exitNotFound, "", "404")
	d.cli(t, "", "certificate", "get").want(t, exitNotFound, "", "NO_EGRESS_CERTIFICATE")

	ok("DELETE "+d.api+"/api/v1/events/evt_1/payload", "event", "erase", "evt_1", "--dry-run")
	ok("erased evt_1", "event", "erase", "evt_1", "--yes")
	d.cli(t, "", "event", "get", "evt_1").want(t, exitNotFound, "", "EVENT_COMPACTED")
	whole := []string{"company", "erase", developerCompany.String()}
	d.cli(t, "", whole[0], whole[1:]...).want(t, exitUsage, "", "--yes")
	d.cli(t, "", whole[0], append(whole[1:], "--yes")...).want(t, exitNotAllowed, "", "INSUFFICIENT_SCOPE")
	asOperator("Acme", "company", "name", developerCompany.String(), "Acme", "--yes")
	asOperator("ERASE", append(whole, "--yes", "-o", "json")...)
	eventually(t, patience, "it is erased", func() bool {
		return strings.Contains(d.cli(t, "", "job", "list", "--kind", "ERASE").stdout, "COMPLETED")
	})
	command(t, "", "company", "get", developerCompany.String(), "--url", d.api, "--token-file", secretFile(t, operator)).want(t, exitNotFound, "", "The company has no name.")

	asOperator("subscriber.create", "audit", "list", "--action", "subscriber", "--since", "1h")
	asOperator("", "quarantine", "list", "-o", "name")
	reader := command(t, "", "token", "--data-dir", h.dir, "--scope", "events:read", "--company", developerCompany.String()).stdout
	command(t, "", "quarantine", "list", "--url", d.api, "--token-file", secretFile(t, reader)).want(t, exitNotAllowed, "", "Log in with a client that has the scope")
	d.stop(t)
}

func TestEgressAddressCommand(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "egress: {addresses: [{cidr: 93.184.216.34, valid_until: '2099-12-01T00:00:00Z'}, {cidr: 93.184.216.33, valid_until: '2026-01-01T00:00:00Z'}, {cidr: '2606:2800:220:1::/64', valid_from: '2099-12-01T00:00:00Z'}]}\n")
	d := h.start(t)
	for _, args := range [][]string{{"list"}, {}} {
		r := d.cli(t, "", "egress-address", args...)
		r.want(t, exitOK, "", "")
		const want = "CIDR VALID FROM VALID UNTIL\n93.184.216.34/32 2099-12-01T00:00:00.000Z\n2606:2800:220:1::/64 2099-12-01T00:00:00.000Z \n"
		if got := squeezed(r.stdout); got != want {
			t.Errorf("%v: %q, want %q", args, got, want)
		}
	}
	d.cli(t, "", "egress-address", "list", "-o", "name").want(t, exitOK, "93.184.216.34/32\n2606:2800:220:1::/64\n", "")
	var list []gen.EgressAddress
	text := d.cli(t, "", "egress-address", "list", "-o", "json").stdout
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 2 || list[0].ValidFrom != nil || list[0].ValidUntil == nil {
		t.Errorf("%v: %s", err, text)
	}
	h.settings(t, "")
	if code, body := d.reload(t); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	d.cli(t, "", "egress-address", "list").want(t, exitNotFound, "", "NO_EGRESS_ADDRESSES")
	d.stop(t)
}

// A key that leaked is revoked, and the next one signs. The keys of a company that nobody can decrypt are replaced.
func TestWebhookKeyCommands(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	d.cli(t, "", "webhook-key", "list").want(t, exitNotFound, "", "NO_WEBHOOK_KEYS")
	newEndpoint(t, nil).subscribe(t, d, "PAYMENT_PAID")
	keysOf := func(args ...string) map[string]string {
		t.Helper()
		return kids(t, d.cli(t, "", "webhook-key", append(args, "-o", "json")...))
	}
	first := keysOf("list")
	if shown := d.cli(t, "", "webhook-key", "list"); !strings.Contains(shown.stdout, first["ed25519 SIGNING"]) || !strings.Contains(shown.stdout, first["ecdsa-p256-sha256 NEXT"]) {
		t.Errorf("want the ids %v in\n%s", first, shown.stdout)
	}
	d.cli(t, "", "webhook-key", "rotate").want(t, exitUsage, "", "--yes")
	d.cli(t, "", "webhook-key", "rotate", "--yes").want(t, exitFailure, "", "KEYS_ROTATED_RECENTLY")

	leaked := first["ed25519 SIGNING"]
	d.cli(t, "", "webhook-key", "revoke", leaked).want(t, exitUsage, "", "--yes")
	d.cli(t, "", "webhook-key", "revoke", leaked, "--yes").want(t, exitOK, "revoked", "")
	d.cli(t, "", "webhook-key", "revoke", leaked, "--yes").want(t, exitNotFound, "", "NO_WEBHOOK_KEYS")
	second := keysOf("list")
	if second["ed25519 SIGNING"] != first["ed25519 NEXT"] || second["ed25519 NEXT"] == leaked || second["ecdsa-p256-sha256 SIGNING"] != first["ecdsa-p256-sha256 SIGNING"] {
		t.Errorf("revoked %s of %v: now %v", leaked, first, second)
	}

	h.damageKeys(t)
	d.cli(t, "", "webhook-key", "list").want(t, exitUnavailable, "", "SECRETS_LOCKED")
	third := keysOf("rotate", "--yes")
	if third["ed25519 SIGNING"] == second["ed25519 NEXT"] || !maps.Equal(third, keysOf("list")) {
		t.Errorf("rotated %v: now %v", second, third)
	}
	d.stop(t)
}

// kids returns the ids of the four keys of a company in an answer, by algorithm and state.
func kids(t *testing.T, r result) map[string]string {
	t.Helper()
	r.want(t, exitOK, "", "")
	var list gen.CompanyKeys
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	byState := map[string]string{}
	for _, k := range list.Keys {
		byState[string(k.Algorithm)+" "+string(k.State)] = k.Kid
	}
	if len(list.Keys) != 4 || len(byState) != 4 {
		t.Fatalf("want a key that signs and a next one of each algorithm: %s", r.stdout)
	}
	return byState
}

// damageKeys has the stored signing keys of the company be such that nobody can decrypt them.
func (h installation) damageKeys(t *testing.T) {
	t.Helper()
	options, err := redis.ParseURL(h.redis)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	if err := client.HSet(t.Context(), layout.CompanyKey(developerCompany), layout.SigningKeysField, "{").Err(); err != nil {
		t.Fatal(err)
	}
}

func TestSpendCommands(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	d := h.start(t)
	ok := func(in string, args ...string) string {
		t.Helper()
		r := d.cli(t, "", args[0], args[1:]...)
		if r.want(t, exitOK, "", ""); !strings.Contains(squeezed(r.stdout), squeezed(in)) {
			t.Errorf("%v: want %q in\n%s", args, in, r.stdout)
		}
		return strings.TrimSpace(r.stdout)
	}
	card := ok("", "card", "create", "--type", "VIRTUAL", "--alias", "Travel", "--user-uuid", annUUID, "--threshold", "10", "--periodicity", "MONTHLY", "-o", "name")
	many := secretFile(t, "["+strings.Repeat(`{"type":"VIRTUAL","alias":"Fuel","userUuid":"`+annUUID+`"},`, 6)+`{"type":"VIRTUAL","alias":"Fuel","userUuid":"`+annUUID+`"}]`)
	ok("succeeded 7", "card", "create", "--file", many, "--wait")
	nobody := secretFile(t, `[{"type":"VIRTUAL","alias":"Fuel","userUuid":"`+testCompany+`"}]`)
	d.cli(t, "", "card", "create", "--file", nobody, "--wait").want(t, exitFailure, "USER_NOT_FOUND", "1 cards were not created")
	all := strings.Fields(ok("", "card", "list", "--size", "4", "--all", "-o", "name"))
	if slices.Sort(all); len(all) != 9 || len(slices.Compact(all)) != 9 {
		t.Errorf("%d cards on all pages", len(all))
	}
	ok("status BLOCKED", "card", "lock", card)
	ok("status ACTIVE", "card", "unlock", card)
	ok("threshold 1.25", "card", "threshold", card, "1.25")
	ok("status ACTIVE", "card", "get", card)
	ok(card+" CANCELLED", "card", "cancel", card, "--yes")
	ok(requestUUID+" PAID 10.1", "reimbursement", "list", "--status", "PAID", "--uuid", requestUUID)
	ok(locationUUID+" P1", "location", "list", "--status", "INACTIVE")
	ok("code P1", "location", "get", locationUUID)
	ok(statementUUID, "statement", "get", "-o", "name")
	ok("closingDate 2026-02-28", "statement", "get", "--month", "2", "--year", "2026")
	d.stop(t)
}

// squeezed has one space in place of several: how wide columns are does not matter.
func squeezed(text string) string { return regexp.MustCompile(` +`).ReplaceAllString(text, " ") }

// Login stores private files, and every command uses them.
func TestLogin(t *testing.T) { //nolint:paralleltest // it sets the environment
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	var made struct{ ClientID, ClientSecret string }
	text := command(t, "", "client", "create", "--data-dir", h.dir, "--name", "cli", "--company", developerCompany.String(), "--scope", "events:read", "--json").stdout
	if err := json.Unmarshal([]byte(text), &made, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err, text)
	}
	command(t, "", "event", "list").want(t, exitUsage, "", "spendhook login")
	login := []string{"login", "--url", d.api, "--client-id", made.ClientID, "--client-secret-file", "-"}
	command(t, "wrong", login...).want(t, exitNotAllowed, "", "invalid_client")
	command(t, made.ClientSecret, login...).want(t, exitOK, "(profile default)", "")
	command(t, made.ClientSecret, append(login, "--profile", "test")...).want(t, exitOK, "(profile test)", "")
	command(t, "", "event", "list", "--url", d.api+"/").want(t, exitOK, "", "")
	err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	command(t, "", "event", "list", "-o", "json").want(t, exitOK, "[]", "")
	command(t, "", "event", "list", "--url", "http://127.0.0.1:1").want(t, exitUsage, "", "you are not logged in") // and no secret goes there
	command(t, "", "event", "list", "--profile", "none").want(t, exitFailure, "", "spendhook login --profile none")
	command(t, "", "profile").want(t, exitOK, "test     "+d.api, "")
	command(t, "", "profile", "delete", "test").want(t, exitOK, "deleted", "")
	if err := os.Chmod(filepath.Join(home, "spendhook", "profiles", "default.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "", "event", "list").want(t, exitFailure, "", "chmod 600")
	d.stop(t)
}

// The example of each command is one of that command, and its flags are right.
func TestEveryCommandHasAnExample(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"client.pem", "client.key", "companies.ndjson", "cards.ndjson"} { // some arguments must be there
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parser := func() *kong.Kong {
		return kong.Must(&commands{}, kong.Vars{"version": ""}, kong.ExplicitGroups(groups))
	}
	model := parser().Model
	var walk func(*kong.Node)
	walk = func(n *kong.Node) {
		for _, child := range n.Children {
			walk(child)
		}
		if len(n.Children) > 0 {
			return
		}
		name, example := strings.TrimPrefix(n.FullPath(), model.Name+" "), n.Tag.Get("example")
		words := shellWords(example)
		if len(words) == 0 || words[0] != "spendhook" {
			t.Errorf("%s: the example is %q", name, example)
			return
		}
		got, err := parser().Parse(words[1:])
		if err != nil || got.Selected().FullPath() != n.FullPath() {
			t.Errorf("%s: the example is %q: %v", name, example, err)
		}
	}
	walk(model.Node)
}

// shellWords are those before a redirection, without their quotes.
func shellWords(line string) []string {
	words := regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1)
	for i, word := range words {
		if word == "<" || word == ">" {
			return words[:i]
		}
		words[i] = strings.Trim(word, "'")
	}
	return words
}
