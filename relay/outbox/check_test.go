package outbox

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"spendhook/internal/pgtest"
	"spendhook/internal/porttest"
	"spendhook/internal/secret"
)

// grants are as in docs/outbox.md.
const grants = `GRANT SELECT, DELETE ON spendhook_outbox TO relay; GRANT INSERT ON spendhook_outbox_dead TO relay;`

func TestCheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ change, want string }{
		{``, ``},
		{`DROP TABLE spendhook_outbox`, `"spendhook_outbox" does not exist`},
		{`DROP TABLE spendhook_outbox_dead`, `"spendhook_outbox_dead" does not exist`},
		{`ALTER TABLE spendhook_outbox DROP COLUMN key`, `table "spendhook_outbox" has no column key`},
		{`ALTER TABLE spendhook_outbox_dead DROP COLUMN reason`, `table "spendhook_outbox_dead" has no column reason`},
		{`REVOKE SELECT ON spendhook_outbox FROM relay`, `no privilege SELECT on the table "spendhook_outbox"`},
		{`REVOKE DELETE ON spendhook_outbox FROM relay`, `no privilege DELETE on the table "spendhook_outbox"`},
		{`REVOKE INSERT ON spendhook_outbox_dead FROM relay`, `no privilege INSERT on the table "spendhook_outbox_dead"`},
		{`ALTER DATABASE postgres SET default_transaction_read_only = on`, `read-only`},
	} {
		t.Run(tc.want, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			change := strings.Replace(tc.change, "DATABASE postgres", "DATABASE "+db.name(), 1)
			s := db.as("relay", grants+change)
			err := s.Check(t.Context())
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, not %q", err, tc.want)
			}
		})
	}
}

func TestCheckNeedsAServer(t *testing.T) {
	t.Parallel()
	s, err := New(Options{URL: secret.Text("postgres://u:hidden@/x?host=" + t.TempDir())})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}

// Its rows could be sent, but not deleted, so they would be sent for ever.
func TestAReadOnlyDatabaseIsNotRead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 1)
	if _, err := db.conn().Exec(t.Context(), `ALTER DATABASE `+db.name()+` SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	e := &emitter{}
	if err := db.source().Run(t.Context(), db.sender(e).sender); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Error(err)
	}
	if n := len(e.accepted()); n > 0 {
		t.Errorf("%d rows were sent", n)
	}
}

// The privileges of the document suffice.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 10)
	e := &emitter{reject: func(id string) bool { return id == "row-5" }}
	s := db.as("relay", grants)
	db.serveSource(s, e)
	e.wait(t, 9)
	db.waitEmpty()
	if _, err := s.Behind(t.Context()); err != nil {
		t.Error(err)
	}
}

// On a Unix socket, which the other tests use, the settings do nothing.
func TestTheServerNoticesThatARelayIsLost(t *testing.T) {
	t.Parallel()
	port := strconv.Itoa(porttest.Free(t))
	_, remove, err := pgtest.Launch("listen_addresses=127.0.0.1", "port="+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	s, err := New(Options{URL: secret.Text("postgres://spendhook@127.0.0.1:" + port + "/postgres?sslmode=disable")})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect(t.Context(), conn)
	var got string
	err = conn.QueryRow(t.Context(), `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name)
		FROM pg_settings WHERE name ~ '^tcp_'`).Scan(&got)
	want := "tcp_keepalives_count=3 tcp_keepalives_idle=10 tcp_keepalives_interval=5 tcp_user_timeout=30000"
	if err != nil || got != want {
		t.Errorf("%s, want %s; %v", got, want, err)
	}
}

// A pooler in the mode "transaction" shares sessions; here, one answers for both connections.
func TestASharedSessionIsFound(t *testing.T) {
	t.Parallel()
	if err := compareSessions(7, 7); err == nil {
		t.Error("one process for two connections")
	}
	if err := compareSessions(7, 8); err != nil {
		t.Error(err)
	}
}

// The SQL of the document is right: it runs, its grants suffice, and a dead row is sent again.
func TestTheSQLOfTheDocument(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	document, err := os.ReadFile("../../docs/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.conn().Exec(t.Context(), `CREATE ROLE payments; INSERT INTO spendhook_outbox_dead
		(seq, id, event, "timestamp", metadata, reason) VALUES (1, 'dead-1', 'PAID', now(), '{}', 'companyUuid: of the test')`); err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(document, -1)
	for _, block := range blocks {
		if _, err := db.conn().Exec(t.Context(), string(block[1])); err != nil {
			t.Errorf("%v: %s", err, block[1])
		}
	}
	if err := db.as("spendhook_relay", "").Check(t.Context()); err != nil {
		t.Error(err)
	}
	if n := db.count(`spendhook_outbox WHERE id IN ('pay-4711', 'dead-1')`); n != 2 || len(blocks) < 5 {
		t.Errorf("%d blocks made %d rows", len(blocks), n)
	}
}

func TestMain(m *testing.M) {
	bound = 10 * time.Minute
	pgtest.Main(m)
}
