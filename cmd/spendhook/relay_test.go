package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spendhook/internal/pgtest"
)

// relayTrial is a relay of an outbox in a database of its own, to a daemon.
type relayTrial struct {
	tb      testing.TB
	daemon  *running
	company uuid.UUID
	dir     string
	conn    *pgx.Conn
	relay   *running // nil: it does not run
}

func newRelayTrial(tb testing.TB, h installation, d *running) *relayTrial {
	tb.Helper()
	r := &relayTrial{tb: tb, daemon: d, company: uuid.New(), dir: tb.TempDir()}
	database := pgtest.New(tb)
	conn, err := pgx.Connect(tb.Context(), database)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(tb.Context()) })
	r.conn = conn
	r.sql(command(tb, "", "relay", "schema").stdout)
	r.authorize(d.as(tb, h, r.company).token)
	r.write("relay.yml", fmt.Sprintf("url: %s\ntoken_file: %s\nadmin_listen: 127.0.0.1:0\nlog: {format: json}\nsources:\n  orders:\n    companies: [%s]\n    postgres: {url: '%s'}\n",
		d.api, r.file("token"), r.company, database))
	return r
}

func (r *relayTrial) file(name string) string { return filepath.Join(r.dir, name) }

func (r *relayTrial) write(name, text string) {
	r.tb.Helper()
	if err := os.WriteFile(r.file(name), []byte(text), 0o600); err != nil {
		r.tb.Fatal(err)
	}
}

// authorize gives the relay a token, from its next start or 401 on.
func (r *relayTrial) authorize(token string) { r.write("token", token) }

func (r *relayTrial) sql(statement string, args ...any) {
	r.tb.Helper()
	if _, err := r.conn.Exec(r.tb.Context(), statement, args...); err != nil {
		r.tb.Fatal(err)
	}
}

// insert writes a row for an event of the trial's company, unless company says another one.
func (r *relayTrial) insert(id string, at time.Time, company uuid.UUID) {
	r.tb.Helper()
	r.sql(`INSERT INTO spendhook_outbox (id, company_uuid, event, "timestamp", metadata) VALUES ($1, $2, 'PAYMENT_PAID', $3, '{"amount": 12.50}')`, id, company, at)
}

func (r *relayTrial) count(table string) (n int) {
	r.tb.Helper()
	if err := r.conn.QueryRow(r.tb.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		r.tb.Fatal(err)
	}
	return n
}

var relayLine = regexp.MustCompile(`"msg":"listening","admin_address":"([^"]+)"`)

// start runs the relay inside the test, until it listens.
func (r *relayTrial) start() {
	r.tb.Helper()
	r.relay = beginWith(r.tb, []string{"relay", "--config", r.file("relay.yml")})
	eventually(r.tb, patience, "the relay listens", func() bool {
		select {
		case <-r.relay.done:
			r.tb.Fatalf("the relay ended with %d:\n%s", r.relay.code, r.relay.stderr)
		default:
		}
		address := relayLine.FindStringSubmatch(r.relay.stderr.String())
		if address != nil {
			r.relay.admin = "http://" + address[1]
		}
		return address != nil
	})
}

func TestRelay(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	r := newRelayTrial(t, h, d)
	command(t, "", "relay", "doctor", "--timeout", patience.String(), "--config", r.file("relay.yml")).want(t, exitOK, "ok    source orders", "")
	now := time.Now()
	r.insert("order-1", now, r.company)
	r.insert("order-2", now, uuid.New()) // may not be named
	r.start()
	eventually(t, deliveryPatience, "the outbox is empty", func() bool { return r.count("spendhook_outbox") == 0 })
	if n := r.count("spendhook_outbox_dead"); n != 1 {
		t.Errorf("%d rows are dead", n)
	}
	owner := d.as(t, h, r.company)
	if status, body := owner.answered(t, "/api/v1/events/order-1"); status != http.StatusOK || !strings.Contains(body, `{"amount":12.50}`) {
		t.Errorf("order-1: %d %s", status, body)
	}
	if status, body := owner.answered(t, "/api/v1/events/order-2"); status != http.StatusNotFound {
		t.Errorf("order-2: %d %s", status, body)
	}
	if status, body := get(t, r.relay.admin+"/readyz"); status != http.StatusOK {
		t.Errorf("readyz: %d %s", status, body)
	}
	if _, text := get(t, r.relay.admin+"/metrics"); !strings.Contains(text, `spendhook_relay_records_total{result="dead",source="orders"} 1`) {
		t.Errorf("metrics:\n%s", text)
	}
	r.relay.stop(t)
}

// A relay whose token is of another company sends nothing, loses nothing, and goes on with the right one.
func TestRelayWithAWrongToken(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	r := newRelayTrial(t, h, d)
	right, err := os.ReadFile(r.file("token"))
	if err != nil {
		t.Fatal(err)
	}
	r.authorize(d.as(t, h, uuid.New()).token)
	command(t, "", "relay", "doctor", "--timeout", patience.String(), "--config", r.file("relay.yml")).want(t, exitFailure, "COMPANY_MISMATCH", "there are problems")
	r.insert("order-1", time.Now(), r.company)
	r.start()
	eventually(t, deliveryPatience, "the refusal is counted", func() bool {
		_, text := get(t, r.relay.admin+"/metrics")
		return strings.Contains(text, "spendhook_relay_refusals_total{source=\"orders\"} 1")
	})
	r.relay.stop(t)
	if r.count("spendhook_outbox") != 1 || r.count("spendhook_outbox_dead") != 0 {
		t.Error("the row is gone")
	}
	r.authorize(string(right))
	r.start()
	eventually(t, deliveryPatience, "the outbox is empty", func() bool { return r.count("spendhook_outbox") == 0 })
	r.relay.stop(t)
}

// A token that is written to the file works without a restart.
func TestRelayReadsANewToken(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	r := newRelayTrial(t, h, h.start(t))
	right, err := os.ReadFile(r.file("token"))
	if err != nil {
		t.Fatal(err)
	}
	r.authorize("expired")
	r.insert("order-1", time.Now(), r.company)
	r.start()
	eventually(t, deliveryPatience, "the refusal is counted", func() bool {
		_, text := get(t, r.relay.admin+"/metrics")
		return strings.Contains(text, "spendhook_relay_refusals_total{source=\"orders\"}") && !strings.Contains(text, "spendhook_relay_refusals_total{source=\"orders\"} 0\n")
	})
	r.authorize(string(right))
	eventually(t, deliveryPatience, "the outbox is empty", func() bool { return r.count("spendhook_outbox") == 0 })
	r.relay.stop(t)
}

func TestRelayTest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "relay.yml")
	settings := `
url: http://127.0.0.1:9
token_file: /there/is/none
sources:
  payments:
    companies: [6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11]
    kafka: {brokers: ['127.0.0.1:9'], topics: [payments], dead_letter_topic: payments-dead}
    mapping:
      id: headers["payment-id"] + "-" + string(from.offset)
      event: '"PAYMENT_PAID"'
      timestamp: time
      metadata: value.payment
`
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"relay", "test", "--config", file, "--header", "payment-id=pay;4711", "--from", "offset=7", "--key", "k"}
	command(t, `{"payment":{"amount":12.50}}`, append(args, "--time", "2026-11-28T12:00:00Z")...).
		want(t, exitFailure, "", "id: ")
	args[slices.Index(args, "payment-id=pay;4711")] = "payment-id=pay-4711"
	command(t, `{"payment":{"amount":12.50}}`, append(args, "--time", "2026-11-28T12:00:00Z")...).
		want(t, exitOK, `"metadata": {
      "amount": 12.50
    },
    "timestamp": "2026-11-28T12:00:00Z"
  },
  "key": "k"`, "")
	command(t, `{"payment":{"amount":12.50}}`, args...).want(t, exitFailure, "", "the record would be dead: timestamp: ")
	settings = strings.NewReplacer("/there/is/none", secretFile(t, "token"), "timestamp: time", "timestamp: when").Replace(settings)
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run", "test"} {
		command(t, "", "relay", name, "--config", file).want(t, exitFailure, "", "sources.payments.mapping.timestamp: ")
	}
	command(t, `{`, append(args, "--source", "other")...).want(t, exitUsage, "", "--source must be one of payments")
}
